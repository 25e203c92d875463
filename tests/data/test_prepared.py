"""Hugging Face datasets go into a probe directly; images and texts are prepared one by one.

Where the package datasets is not installed a stand-in has its place, of the few methods that are used.
"""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import layerlaw as ll
from layerlaw.data import load
from layerlaw.data.prepared import Prepared, folder_pictures, labeled_lines, labeled_pictures, of_texts
from layerlaw.errors import DataError, LabelError

Image = pytest.importorskip("PIL.Image", reason="pillow is not installed")
REAL = importlib.util.find_spec("datasets") is not None


class Feature:
    """What a column holds, as the package datasets says it."""

    def __init__(self, dtype: str = "", names: list[str] | None = None) -> None:
        self.dtype = dtype
        if names is not None:
            self.names = names


class StandIn:
    """As much of a datasets.Dataset as a probe looks at."""

    def __init__(self, columns: dict[str, list[Any]], features: dict[str, Any], format: str | None = None) -> None:
        self.columns, self.features, self.format = columns, features, {"type": format}
        self.column_names = list(columns)

    def __len__(self) -> int:
        return len(next(iter(self.columns.values())))

    def __getitem__(self, key: Any) -> Any:
        if isinstance(key, str):
            return self.columns[key]
        made = torch.as_tensor if self.format["type"] == "torch" else lambda value: value
        return {k: v[key] if isinstance(v[key], str) else made(v[key]) for k, v in self.columns.items()}

    def with_format(self, kind: str | None) -> StandIn:
        return StandIn(self.columns, self.features, kind)

    def select_columns(self, names: list[str]) -> StandIn:
        return StandIn({k: self.columns[k] for k in names}, {k: self.features[k] for k in names}, self.format["type"])


StandIn.__module__ = "datasets.arrow_dataset"
PictureFeature = type("Image", (Feature,), {})


def dataset(columns: dict[str, list[Any]], names: list[str] | None = None, label: str = "label") -> Any:
    """A dataset with names of classes: the real one where it is installed."""
    kinds = {key: type(values[0]) for key, values in columns.items()}
    if REAL:
        import datasets

        text, whole, numbers = datasets.Value("string"), datasets.Value("int64"), datasets.Value("float32")
        known: dict[Any, Any] = {str: text, int: whole, list: datasets.List(numbers)}
        features = {k: known.get(kind, datasets.Image()) for k, kind in kinds.items()}
        features |= {label: datasets.ClassLabel(names=names)} if names else {}
        return datasets.Dataset.from_dict(columns, features=datasets.Features(features))
    shapes: dict[Any, Any] = {str: Feature("string"), int: Feature("int64"), list: [Feature("float32")]}
    stand_ins = {k: shapes.get(kind) or PictureFeature() for k, kind in kinds.items()}
    return StandIn(columns, stand_ins | ({label: Feature("int64", names)} if names else {}))


def rng() -> np.random.Generator:
    return np.random.default_rng(0)


LABELS = [k % 3 for k in range(48)]
PIXELS = [np.uint8(np.clip(60 * k + 20 * rng().normal(size=(10, 8, 3)), 0, 255)) for k in LABELS]
PIXELS = [np.roll(image, i, axis=0) ^ np.uint8(i) for i, image in enumerate(PIXELS)]  # no two alike


@pytest.fixture
def images() -> Any:
    return dataset({"image": [Image.fromarray(p) for p in PIXELS], "label": LABELS}, ["cat", "dog", "owl"])


def network(inputs: int) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Flatten(), nn.Linear(inputs, 12), nn.ReLU(), nn.Linear(12, 8), nn.ReLU(), nn.Linear(8, 3))


def test_images_and_labels_go_in_directly_with_the_names_of_the_classes(images: Any) -> None:
    pixels = torch.from_numpy(np.stack(PIXELS)).permute(0, 3, 1, 2)
    plain = ll.probe(network(240), ((pixels / 255 - 0.5) / 0.5, torch.tensor(LABELS)), progress=False)
    found = ll.probe(network(240), images, test=images, progress=False)
    assert found.classes == ["cat", "dog", "owl"]
    assert found.column("separation") == pytest.approx(plain.column("separation"), rel=1e-5)
    assert found.settings["inputs"] == "(x − 0.5)/0.5 (the default)"
    assert found.column("test_separation") == pytest.approx(found.column("separation"), rel=1e-6)


def test_images_are_prepared_as_the_model_says_of_itself_or_as_the_user_does(images: Any) -> None:
    model: Any = network(3 * 16)
    model.pretrained_cfg = {"mean": (0.1, 0.2, 0.3), "std": (1.0, 2.0, 1.0), "input_size": (3, 4, 4)}
    found = ll.probe(model, images, progress=False)
    assert found.settings["inputs"] == "4×4 pixels, (x − [0.1, 0.2, 0.3])/[1, 2, 1] (pretrained_cfg of the model)"

    def four_corners(image: Any) -> Tensor:
        return torch.tensor(np.asarray(image)[:4, :4].transpose(2, 0, 1) / 255, dtype=torch.float32)

    other = ll.probe(model, images, prepare=four_corners, progress=False)
    assert other.settings["inputs"] == "by four_corners"
    assert other.column("separation") != found.column("separation")


def test_a_dry_run_and_paths_take_them_too(images: Any) -> None:
    from layerlaw.probing.paths import sample_paths

    assert len(ll.sites(network(240), images).sites) == 3
    assert sample_paths(network(240), images, progress=False).rows([0])


def test_columns_of_tensors_are_taken_as_they_are() -> None:
    values = rng().normal(size=(48, 5)) + np.array(LABELS)[:, None]
    rows = dataset({"x": values.astype("float32").tolist(), "label": LABELS, "id": [f"n{i}" for i in range(48)]})
    plain = ll.probe(network(5), (torch.tensor(values, dtype=torch.float32), torch.tensor(LABELS)), progress=False)
    for given in (rows.with_format("torch"), rows):
        found = ll.probe(network(5), given, progress=False)
        assert found.column("separation") == pytest.approx(plain.column("separation"), rel=1e-6)


class Tokenizer:
    """Words become numbers; as much of a tokenizer of transformers as is used."""

    pad_token, model_max_length = "[PAD]", 6

    def pad(self) -> None:
        """By this a tokenizer is known."""

    def __call__(self, texts: Any, **how: Any) -> dict[str, Any]:
        rows = [[1 + len(word) for word in text.split()] for text in ([texts] if isinstance(texts, str) else texts)]
        longest = how.get("max_length")
        rows = [row[:longest] if how.get("truncation") else row for row in rows]
        if how.get("padding") != "max_length":
            return {"input_ids": rows}
        ids = torch.tensor([row + [0] * (longest - len(row)) for row in rows])
        return {"input_ids": ids, "attention_mask": (ids > 0).long()}


class Reader(nn.Module):
    """A small classifier of texts, which looks at the mask."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.words, self.hidden, self.scores = nn.Embedding(40, 6), nn.Linear(6, 6), nn.Linear(6, 2)

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        hidden = torch.relu(self.hidden(self.words(input_ids)))
        mask = attention_mask.unsqueeze(-1)
        return self.scores((hidden * mask).sum(1) / mask.sum(1))


TEXTS = [" ".join(["a" * (1 + i % 7)] * (1 + i % 9)) + " bb" * (i % 2) for i in range(30)]


def test_texts_are_tokenized_to_one_length_with_a_mask() -> None:
    prepare = of_texts(Tokenizer(), TEXTS)
    lengths = {tuple(prepare(text)["input_ids"].shape) for text in TEXTS}
    assert lengths == {(6,)}
    assert prepare("a b")["attention_mask"].tolist() == [1, 1, 0, 0, 0, 0]
    texts = dataset({"text": TEXTS, "label": [i % 2 for i in range(30)]}, ["short", "long"])
    found = ll.probe(Reader(), texts, prepare=Tokenizer(), sites=["hidden"], reduce="mean", progress=False)
    assert found.classes == ["short", "long"]
    assert found.settings["inputs"] == "by Tokenizer"
    with pytest.raises(DataError, match=r"expected texts of 'text' as tokens, got strings: a tokenizer"):
        ll.probe(Reader(), texts, progress=False)


def test_texts_of_a_file_have_labels_as_numbers_or_words(tmp_path: Path) -> None:
    path = tmp_path / "texts.jsonl"
    path.write_text('{"text": "so good", "label": "yes"}\n{"text": "so bad it is", "label": "no"}\n', encoding="utf-8")
    found = labeled_lines(path, Tokenizer())
    assert found.class_names == ("no", "yes")
    assert [int(found[i]["labels"]) for i in range(2)] == [1, 0]
    assert found[0]["input_ids"].tolist() == [3, 5, 0, 0]
    for lines, words in {'{"text": "a"}': "line 1: expected a number or a word in the field 'label', got None"}.items():
        path.write_text(lines, encoding="utf-8")
        with pytest.raises(DataError, match=words):
            labeled_lines(path, Tokenizer())
    path.write_text('{"text": "a", "label": 1}\n{"text": "b", "label": "no"}', encoding="utf-8")
    with pytest.raises(LabelError, match="all numbers or all words, got both"):
        labeled_lines(path, Tokenizer())


def small(image: Any) -> Tensor:
    return torch.from_numpy(np.array(image.convert("L").resize((4, 4)), np.float32))


def test_pictures_of_a_folder_keep_their_own_sizes_until_they_are_prepared(tmp_path: Path) -> None:
    for k, name in enumerate(("cat", "dog")):
        (tmp_path / name).mkdir()
        for i in range(3):
            Image.fromarray(np.full((5 + i, 9, 3), 50 * k, np.uint8)).save(tmp_path / name / f"{i}.png")
    found = folder_pictures(tmp_path, small, split="train")
    assert found.class_names == ("cat", "dog")
    assert [found.read(i).size for i in range(3)] == [(9, 5), (9, 6), (9, 7)]
    assert float(found[5][0].mean()) == 50.0
    assert found.balanced(1).chosen.tolist() == [0, 3]
    with pytest.raises(DataError, match="expected from 1 to 3 of each class"):
        found.balanced(4)


def test_classes_are_renumbered_and_others_left_out() -> None:
    data = labeled_pictures(load().balanced(2), small)
    found = data.relabeled({3: 0, 5: 1})
    assert len(found) == 4
    assert sorted(int(found[i][1]) for i in range(4)) == [0, 0, 1, 1]
    assert len(data) == 20


def test_labeled_images_can_be_prepared_by_a_probe() -> None:
    data = load().balanced(4)
    found = ll.probe(network(16)[:-1], data, prepare=small, scores=None, progress=False)
    assert found.classes == list(data.class_names)
    assert found.settings["inputs"] == "by small"


@pytest.mark.parametrize(
    ("columns", "how", "words"),
    [
        ({"text": ["a b"] * 4, "kind": [0, 1, 0, 1]}, {}, r"expected a column of labels.*got text, kind; labels='…'"),
        ({"text": ["a b"] * 4, "label": [0, 1] * 2}, {"labels": "nope"}, r"labels='nope': expected one of the columns"),
        ({"one": ["a"] * 4, "two": ["b"] * 4, "label": [0, 1] * 2}, {}, "expected one column of images or of texts"),
        (
            {"text": ["a"] * 4, "label": ["yes", "no"] * 2},
            {"prepare": Tokenizer()},
            "expected class numbers, got words",
        ),
        ({"text": ["a"] * 4, "label": [0, 1] * 2}, {"prepare": small}, "prepare: expected a tokenizer"),
    ],
)
def test_what_a_dataset_lacks_is_said(columns: dict[str, list[Any]], how: dict[str, Any], words: str) -> None:
    with pytest.raises((DataError, LabelError), match=words):
        ll.probe(Reader(), dataset(columns), progress=False, **how)


def test_images_of_different_sizes_are_answered_with_what_to_do() -> None:
    sizes = [Image.fromarray(np.zeros((4 + i % 2, 4, 3), np.uint8)) for i in range(6)]
    mixed = dataset({"image": sizes, "label": [0, 1] * 3}, ["a", "b"])
    with pytest.raises(DataError, match=r"equal size.*bring all samples to one size"):
        ll.probe(network(48), mixed, progress=False)


def test_splits_and_loaders_are_told_from_datasets() -> None:
    splits = type("DatasetDict", (dict,), {"__module__": "datasets.dataset_dict"})(train=1, test=2)
    with pytest.raises(DataError, match=r"expected one split.*pass data\['train'\]"):
        ll.probe(network(5), splits, progress=False)
    stream = type("IterableDataset", (), {"__module__": "datasets.iterable_dataset"})()
    with pytest.raises(DataError, match=r"known length, got a stream"):
        ll.probe(network(5), stream, progress=False)
    with pytest.raises(DataError, match=r"prepare: expected with a Hugging Face dataset.*got tuple"):
        ll.probe(network(5), (torch.randn(6, 5), torch.arange(6) % 2), prepare=small, progress=False)


def test_a_stream_of_tensors_is_taken() -> None:
    if not REAL:
        pytest.skip("datasets is not installed")
    values = rng().normal(size=(48, 5)).astype("float32").tolist()
    rows = dataset({"x": values, "label": LABELS}).with_format("torch")
    found = ll.probe(network(5), rows.to_iterable_dataset(), uncertainty=False, progress=False)
    plain = ll.probe(network(5), rows, uncertainty=False, progress=False)
    assert found.column("separation") == pytest.approx(plain.column("separation"), rel=1e-6)


def test_a_prepared_set_goes_into_a_loader() -> None:
    data = labeled_pictures(load().balanced(2), small)
    assert isinstance(data, Prepared)
    x, y = next(iter(torch.utils.data.DataLoader(data, batch_size=5)))
    assert (x.shape, y.shape) == ((5, 4, 4), (5,))
