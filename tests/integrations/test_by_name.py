"""Models by name: which they are, their weights, their own preprocessing, and what is said where there is none."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from named_models import LABELS, TEXTS, save_image_classifier, save_text_classifier, vision_library

import layerlaw as ll
from layerlaw.data import load
from layerlaw.data.prepared import labeled_lines
from layerlaw.errors import DataError, InputError, MissingExtraError
from layerlaw.integrations.by_name import Wish, is_named, load_named, probe_named

pytestmark = pytest.mark.filterwarnings("ignore")  # of the libraries, while they build a model

Image = pytest.importorskip("PIL.Image", reason="pillow is not installed")


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_image_classifier(tmp_path_factory.mktemp("models") / "vit")


@pytest.fixture(scope="module")
def texts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_text_classifier(tmp_path_factory.mktemp("models") / "bert")


def test_a_name_says_source_weights_classes_and_seed() -> None:
    assert Wish.of("hf:owner/name?classes=7&seed=3") == Wish("hf", "owner/name", None, 7, 3)
    assert is_named("torchvision:resnet18")
    assert not is_named("model.py:make")
    assert not is_named("timm")


@pytest.mark.parametrize(
    ("reference", "words"),
    [
        ("timm:", "expected 'timm:name', 'torchvision:name' or 'hf:name'"),
        ("keras:resnet", "expected 'timm:name', 'torchvision:name' or 'hf:name'"),
        ("timm:resnet18?pretrained=0", r"expected weights, classes or seed after '\?'.*got 'pretrained=0'"),
        ("timm:resnet18?", r"expected weights, classes or seed after '\?'"),
        ("timm:resnet18?classes=1", "expected classes as a whole number from 2, got '1'"),
        ("timm:resnet18?seed=x", "expected seed as a whole number from 0, got 'x'"),
        ("timm:resnet18?seed=1&seed=2", "expected weights, classes or seed"),
    ],
)
def test_a_name_that_cannot_be_read_is_answered(reference: str, words: str) -> None:
    with pytest.raises(InputError, match=words):
        load_named(reference)


@pytest.mark.parametrize("library", ["timm", "torchvision"])
def test_a_library_that_is_missing_is_named(library: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, library, None)
    with pytest.raises(MissingExtraError, match=rf"needs the package '{library}': pip install 'layerlaw\[hub\]'"):
        load_named(f"{library}:resnet18")


def test_an_image_classifier_of_a_folder_is_measured_with_its_own_processor(images: Path) -> None:
    found = load_named(f"hf:{images}")
    assert (found.reads, found.weights, found.name) == ("images", "saved in vit", "hf:vit")
    data = load().balanced(3)
    record = probe_named(f"hf:{images}", data, scores=None, reduce="first")
    pixels = data.resized(16).with_channels(3).tensors((0.2, 0.3))
    plain = ll.probe(found.model, pixels, scores=None, reduce="first", progress=False)
    np.testing.assert_allclose(record.column("separation")[1:], plain.column("separation")[1:], rtol=0.02)
    assert record.provenance["weights"] == "saved in vit"
    assert record.name == "hf:vit"
    assert record.settings["inputs"] == "images prepared as hf says for this model"
    assert record.classes == list(data.class_names)


def test_random_weights_are_drawn_by_their_seed_and_told(images: Path) -> None:
    one, same, other = (load_named(f"hf:{images}?weights=random&classes=5&seed={seed}") for seed in (1, 1, 2))
    assert one.weights == "random (seed 1)"
    assert one.model.config.num_labels == 5
    states = [torch.cat([p.flatten() for p in found.model.parameters()]) for found in (one, same, other)]
    assert torch.equal(states[0], states[1])
    assert not torch.equal(states[0], states[2])
    before = torch.random.get_rng_state()
    load_named(f"hf:{images}?weights=random")
    assert torch.equal(before, torch.random.get_rng_state())


def test_a_text_classifier_is_measured_with_its_tokenizer_and_masks(texts: Path, tmp_path: Path) -> None:
    found = load_named(f"hf:{texts}")
    assert (found.reads, found.class_names, found.most_tokens) == ("texts", ("bad", "good"), 12)
    file = tmp_path / "texts.jsonl"
    lines = [json.dumps({"text": text, "label": label}) for text, label in zip(TEXTS, LABELS, strict=True)]
    file.write_text("\n".join(lines), encoding="utf-8")
    data = labeled_lines(file, found.prepare, found.most_tokens)
    assert set(data[0]) >= {"input_ids", "attention_mask", "labels"}
    record = found.note(ll.probe(found.model, data, reduce="mean", progress=False))
    alone = torch.stack(
        [found.model.bert(**_batch(found.prepare, text)).last_hidden_state[0].mean(0) for text in TEXTS]
    )
    last = record.column("separation")[record.position("bert.encoder.layer.4")]
    assert last == pytest.approx(ll.separation_fuzziness(alone.detach(), torch.tensor(LABELS)), rel=1e-3)
    assert record.settings["inputs"] == "texts prepared as hf says for this model"


def test_texts_are_cut_at_what_the_model_takes(tmp_path: Path) -> None:
    found = load_named(f"hf:{save_text_classifier(tmp_path / 'roberta', family='Roberta')}")
    assert found.most_tokens == 11  # positions are counted from behind that of padding
    file = tmp_path / "long.jsonl"
    lines = [json.dumps({"text": f"{'very ' * 40}{text}", "label": k}) for text, k in zip(TEXTS, LABELS, strict=True)]
    file.write_text("\n".join(lines), encoding="utf-8")
    data = labeled_lines(file, found.prepare, found.most_tokens)
    assert data[0]["input_ids"].shape == (11,)
    found.model(**{k: v[None] for k, v in data[0].items() if k in ("input_ids", "attention_mask")})


def _batch(tokenizer: Any, text: str) -> Any:
    return {name: value for name, value in tokenizer(text, return_tensors="pt").items() if name != "token_type_ids"}


def test_what_is_no_classifier_is_answered(tmp_path: Path, images: Path) -> None:
    with pytest.raises(InputError, match=r"expected a classifier.*got BertForMaskedLM; layerlaw lm"):
        load_named(f"hf:{save_text_classifier(tmp_path / 'masked', kind='ForMaskedLM')}")
    (tmp_path / "empty").mkdir()
    with pytest.raises(DataError, match=r"with a config\.json, got nothing"):
        load_named(f"hf:{tmp_path / 'empty'}")
    with pytest.raises(InputError, match=r"expected \?weights=random"):
        load_named(f"hf:{images}?weights=best")
    with pytest.raises(InputError, match=r"\?classes=… goes with &weights=random"):
        load_named(f"hf:{images}?classes=4")


def test_a_model_without_its_preprocessing_or_classifier_is_answered(tmp_path: Path, images: Path) -> None:
    with pytest.raises(DataError, match="expected a classifier of images or texts, with its image processor"):
        load_named(f"hf:{save_image_classifier(tmp_path / 'bare', processor=False)}")
    half = save_image_classifier(tmp_path / "half")
    files = pytest.importorskip("safetensors.torch", reason="safetensors is not installed")
    state = {k: v for k, v in files.load_file(half / "model.safetensors").items() if not k.startswith("classifier")}
    files.save_file(state, half / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(
        DataError, match=r"expected weights of all layers, got none of classifier\.bias, classifier\.weight"
    ):
        load_named(f"hf:{half}")


def test_a_name_on_the_hub_is_answered_offline(monkeypatch: pytest.MonkeyPatch) -> None:
    hub = pytest.importorskip("huggingface_hub", reason="huggingface_hub is not installed")
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setattr(hub.constants, "HF_HUB_OFFLINE", True)
    with pytest.raises(DataError, match=r"HF_HUB_OFFLINE is set, so nothing is downloaded"):
        load_named("hf:nobody/nothing")


# With the libraries themselves: `make families`.


@pytest.mark.parametrize(
    ("reference", "blocks", "size"),
    [
        ("timm:resnet18?weights=random&classes=10", 8, 224),
        ("timm:vit_tiny_patch16_224?weights=random&classes=10", 12, 224),
        ("torchvision:resnet18?weights=random&classes=10", 8, 224),
    ],
)
@pytest.mark.timeout(240)
def test_a_model_of_a_library_is_measured_on_images_prepared_by_it(reference: str, blocks: int, size: int) -> None:
    library = vision_library(reference.partition(":")[0])
    found = load_named(reference)
    picture = Image.fromarray(np.random.default_rng(0).integers(0, 255, (300, 260, 3)).astype(np.uint8))
    if reference.startswith("timm"):
        config = library.data.resolve_data_config({}, model=found.model)
        expected = library.data.create_transform(**config)(picture)
    else:
        expected = library.models.ResNet18_Weights.DEFAULT.transforms()(picture)
    assert torch.equal(found.prepare(picture), expected)
    assert expected.shape == (3, size, size)
    record = probe_named(reference, load().balanced(2), uncertainty=False, progress=False)
    assert record.provenance["weights"] == "random (seed 0)"
    assert record.name == reference.partition("?")[0]
    assert record.settings["sites"] == "blocks"
    assert (
        sum(site.at != "input" for site in record.sites if ".layer" in f".{site.name}" or "block" in site.name)
        >= blocks
    )
    assert all(value is not None for value in record.column("separation"))


def test_an_unknown_name_of_timm_or_torchvision_is_answered_with_the_nearest() -> None:
    vision_library("timm")
    with pytest.raises(InputError, match=r"timm knows no 'resnet_18'.*Did you mean timm:resnet18"):
        load_named("timm:resnet_18")
    vision_library("torchvision")
    with pytest.raises(InputError, match=r"knows no 'resnet19'.*Did you mean torchvision:resnet"):
        load_named("torchvision:resnet19")
    with pytest.raises(InputError, match=r"knows no 'fasterrcnn_resnet50_fpn'"):  # no classifier
        load_named("torchvision:fasterrcnn_resnet50_fpn")
    with pytest.raises(InputError, match=r"expected weights of random or IMAGENET1K_V1, got 'V9'"):
        load_named("torchvision:resnet18?weights=V9")
    with pytest.raises(InputError, match=r"timm names others in the model: timm:resnet18\.a1_in1k"):
        load_named("timm:resnet18?weights=a1")


def test_published_weights_that_are_not_here_are_no_silent_random_ones(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    vision_library("timm")
    import huggingface_hub

    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path))
    with pytest.raises(DataError, match=r"expected its published weights in the cache of timm.*\?weights=random draws"):
        load_named("timm:vit_tiny_patch16_224")
    vision_library("torchvision")

    def unreachable(*_: Any, **__: Any) -> None:
        raise OSError("no network")

    monkeypatch.setattr("torch.hub.download_url_to_file", unreachable)
    monkeypatch.setattr("torch.hub.get_dir", lambda: str(tmp_path))
    with pytest.raises(DataError, match=r"in the cache of torchvision.*no network"):
        load_named("torchvision:resnet18")


def test_published_weights_are_taken_from_the_cache_of_the_library(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    models = vision_library("torchvision").models
    monkeypatch.setattr("torch.hub.get_dir", lambda: str(tmp_path))
    (tmp_path / "checkpoints").mkdir()
    drawn = models.squeezenet1_1(weights=None)
    name = models.SqueezeNet1_1_Weights.DEFAULT.url.rpartition("/")[2]
    torch.save(drawn.state_dict(), tmp_path / "checkpoints" / name)
    monkeypatch.setattr("torch.hub.download_url_to_file", None)
    found = load_named("torchvision:squeezenet1_1")
    assert found.weights == "published by torchvision as SqueezeNet1_1_Weights.IMAGENET1K_V1"
    assert found.class_names is not None
    assert found.class_names[0] == "tench"
    assert torch.equal(found.model.features[0].weight, drawn.features[0].weight)


def test_code_that_a_model_brings_along_is_not_run(tmp_path: Path) -> None:
    folder = save_image_classifier(tmp_path / "own_code")
    config = json.loads((folder / "config.json").read_text())
    config |= {
        "auto_map": {"AutoConfig": "code.Own", "AutoModelForImageClassification": "code.Own"},
        "model_type": "own",
    }
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "code.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w').close()")
    for reference in (f"hf:{folder}", f"hf:{folder}?weights=random"):
        with pytest.raises(DataError, match="it brings Python code of its own"):
            load_named(reference)
    assert not (tmp_path / "ran").exists()
