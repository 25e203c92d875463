"""`layerlaw probe | sites | exit | paths` with a model by name, or with saved features."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from named_models import LABELS, TEXTS, save_image_classifier, save_text_classifier, vision_library

import layerlaw as ll
from layerlaw.cli import main
from layerlaw.integrations.by_name import load_named

pytestmark = pytest.mark.filterwarnings("ignore")  # of the libraries, while they build a model


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models")
    save_image_classifier(folder / "vit", classes=10)
    save_text_classifier(folder / "bert")
    lines = [json.dumps({"text": text, "label": label}) for text, label in zip(TEXTS, LABELS, strict=True)]
    (folder / "texts.jsonl").write_text("\n".join(lines), encoding="utf-8")
    return folder


@pytest.fixture
def run(models: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Callable[..., Any]:
    monkeypatch.chdir(models)

    def call(*arguments: str) -> Any:
        monkeypatch.setattr(sys, "argv", ["layerlaw", *arguments, "--json"])
        with pytest.raises(SystemExit) as left:
            main()
        said = capsys.readouterr()
        assert not left.value.code, said.err
        return json.loads(said.out), said.err

    return call


def test_a_probe_says_which_weights_and_inputs_it_is_of(run: Callable[..., Any], models: Path) -> None:
    found, said = run("probe", "hf:vit", "--per-class", "4", "--out", "vit.json", "--reduce", "first")
    assert "weights: saved in vit" in said
    assert "inputs: images prepared as hf says for this model" in said
    record = ll.Record.load(models / "vit.json")
    assert record.provenance["weights"] == "saved in vit"
    assert record.provenance["command"]["model"] == "hf:vit"
    assert record.counts == [4] * 10
    assert sum(record.test_counts) == 2000
    assert found["name"] == "hf:vit"


def test_options_for_images_take_the_place_of_its_own_preprocessing(run: Callable[..., Any]) -> None:
    found, said = run("probe", "hf:vit", "--per-class", "4", "--no-test", "--size", "16", "--normalize", "half")
    assert "pixels: (x − 0.5)/0.5" in said
    assert found["provenance"]["weights"] == "saved in vit"
    assert "inputs" not in found["settings"]


def test_a_text_classifier_reads_lines_of_text_and_label(run: Callable[..., Any]) -> None:
    found, _ = run("probe", "hf:bert", "--data", "texts.jsonl", "--reduce", "first", "--name", "reviews")
    assert found["name"] == "reviews"
    assert found["settings"]["classes"] == 2
    assert any("bert.encoder.layer" in row["site"] for row in found["rows"])


def test_weights_of_a_file_are_loaded_into_a_model_by_name(run: Callable[..., Any], models: Path) -> None:
    torch.save(load_named(f"hf:{models / 'vit'}").model.state_dict(), models / "tuned.pt")
    found, said = run("probe", "hf:vit", "--weights", "tuned.pt", "--per-class", "2", "--no-test")
    assert "weights: of the file tuned.pt" in said
    same, _ = run("probe", "hf:vit", "--per-class", "2", "--no-test")
    assert found["provenance"]["parameters_sha256"] == same["provenance"]["parameters_sha256"]


def test_checkpoints_of_a_model_by_name_are_prepared_as_its_library_says(run: Callable[..., Any], models: Path) -> None:
    network = load_named(f"hf:{models / 'vit'}").model
    (models / "run").mkdir()
    for step in (1, 2):
        torch.save(network.state_dict(), models / "run" / f"step{step}.pt")
    how = ("--per-class", "3", "--no-test", "--reduce", "first")
    found, said = run("checkpoints", "run", "--model", "hf:vit", "--out", "all", *how)
    assert "weights: of the checkpoints" in said
    assert "inputs: images prepared as hf says for this model" in said
    alone, _ = run("probe", "hf:vit", *how)
    for record in found["records"]:
        assert [row["separation"] for row in record["rows"]] == [row["separation"] for row in alone["rows"]]
        assert record["settings"]["inputs"] == alone["settings"]["inputs"]
    assert [record["provenance"]["weights"] for record in found["records"]] == [
        f"of the file step{step}.pt" for step in (1, 2)
    ]
    assert [record["name"] for record in found["records"]] == ["step 1", "step 2"]


def test_checkpoints_are_measured_on_some_classes_as_a_probe_is(run: Callable[..., Any], models: Path) -> None:
    network = load_named(f"hf:{models / 'vit'}").model
    (models / "few").mkdir()
    torch.save(network.state_dict(), models / "few" / "step1.pt")
    how = ("--per-class", "3", "--no-test", "--reduce", "first", "--classes", "0,3,7")
    found, _ = run("checkpoints", "few", "--model", "hf:vit", "--out", "some", *how)
    alone, _ = run("probe", "hf:vit", *how)
    (record,) = found["records"]
    assert record["settings"]["classes"] == [0, 3, 7]
    assert [row["separation"] for row in record["rows"]] == [row["separation"] for row in alone["rows"]]
    every, _ = run("checkpoints", "few", "--model", "hf:vit", "--out", "some", *how[:-2])
    assert every["kept"] == 0  # another question than before
    assert every["records"][0]["settings"]["classes"] == 10


@pytest.mark.parametrize("command", ["sites", "paths", "exit"])
def test_other_commands_take_models_by_name(run: Callable[..., Any], command: str, models: Path) -> None:
    folder = models / "pictures"
    if not folder.exists():
        Image = pytest.importorskip("PIL.Image", reason="pillow is not installed")
        for split in ("train", "test"):
            for k in range(10):
                (folder / split / f"c{k}").mkdir(parents=True)
                for i in range(4):
                    pixels = np.random.default_rng(40 * k + i).integers(0, 255, (20 + i, 18, 3)).astype(np.uint8)
                    Image.fromarray(pixels).save(folder / split / f"c{k}" / f"{i}.png")
    chosen = ("--sites", "*.layernorm") if command == "exit" else ()  # one place: read-outs are trained at each
    found, _ = run(command, "hf:vit?weights=random", "--data", "pictures", "--reduce", "first", *chosen)
    assert found


def test_a_hugging_face_dataset_by_the_folder_it_was_saved_in(run: Callable[..., Any], models: Path) -> None:
    datasets = pytest.importorskip("datasets", reason="datasets is not installed")
    columns = {"text": TEXTS, "label": LABELS}
    features = datasets.Features(
        {"text": datasets.Value("string"), "label": datasets.ClassLabel(names=["bad", "good"])}
    )
    rows = datasets.Dataset.from_dict(columns, features=features)
    datasets.DatasetDict({"train": rows, "validation": rows.select(range(20))}).save_to_disk(str(models / "reviews"))
    run("probe", "hf:bert", "--data", "hf:reviews", "--reduce", "mean", "--out", "reviews.json")
    record = ll.Record.load(models / "reviews.json")
    assert record.classes == ["bad", "good"]
    assert sum(record.test_counts) == 20


def test_a_folder_of_features_is_measured(run: Callable[..., Any], models: Path) -> None:
    rng, folder = np.random.default_rng(0), models / "saved"
    folder.mkdir()
    labels = np.arange(90) % 3
    np.save(folder / "labels.npy", labels)
    for i in (1, 2, 10):
        np.save(folder / f"layer{i}.npy", rng.normal(size=(90, 6)) + i * np.eye(3, 6)[labels])
    found, said = run("probe", "features:saved", "--page", "features.html")
    assert "features: layer1, layer2, layer10" in said
    assert found["name"] == "saved"
    assert [row["site"] for row in found["rows"]] == ["layer1", "layer2", "layer10"]
    assert (models / "features.html").exists()
    some, _ = run("probe", "features:saved", "--sites", "layer10", "--sites", "layer1", "--name", "two")
    assert [row["site"] for row in some["rows"]] == ["layer10", "layer1"]


@pytest.mark.timeout(240)
@pytest.mark.parametrize("name", ["timm:resnet18", "torchvision:resnet18", "timm:vit_tiny_patch16_224"])
def test_a_probe_of_a_model_of_a_library(run: Callable[..., Any], name: str) -> None:
    vision_library(name.partition(":")[0])
    found, said = run("probe", f"{name}?weights=random&classes=10", "--per-class", "2", "--no-test", "--no-uncertainty")
    assert "weights: random (seed 0)" in said
    assert found["name"] == name
    assert len(found["rows"]) >= 9


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("probe", "features:none"), "expected a folder of features"),
        (("probe", "features:none", "--null"), "--null: is for networks"),
        (("probe", "features:none", "--size", "8"), "--data: is for networks"),
        (("sites", "features:none"), "`layerlaw probe` measures saved features"),
        (("probe", "nothing"), "expected 'file.py:make', 'package.module:make', 'timm:name'"),
        (("probe", "timm:resnet18?pretrained=0"), "as in timm:resnet18?weights=random&classes=10, got 'pretrained=0'"),
        (("probe", "hf:{models}/bert"), "reads texts: name a .jsonl file"),
        (("probe", "hf:{models}/bert", "--data", "mnist"), "expected a .jsonl file"),
        (("probe", "hf:{models}/bert", "--data", "mnist", "--size", "8"), "shape images"),
        (("probe", "hf:{models}/vit", "--data", "nope"), "expected one of fashion_mnist_sample"),
        (("probe", "hf:{models}/nothing"), "and there is no folder of that name here"),
        (("probe", "hf:{models}/vit", "--per-class", "9999"), "expected from 1 to 500 of each class"),
    ],
)
def test_bad_input_is_one_line(
    refused: Callable[..., str], models: Path, arguments: tuple[str, ...], words: str
) -> None:
    assert words in refused(*(part.replace("{models}", str(models)) for part in arguments))


def test_the_random_numbers_of_the_process_stay_as_they_were(run: Callable[..., Any]) -> None:
    before = torch.random.get_rng_state()
    run("sites", "hf:vit?weights=random")
    assert torch.equal(before, torch.random.get_rng_state())
