"""Data sets in the order of their difficulty, from records."""

from __future__ import annotations

import json
import math
import re
from pathlib import Path

import pytest
import torch
from torch import nn

import layerlaw as ll
from layerlaw.advice import compare_difficulty
from layerlaw.errors import InputError
from layerlaw.record import Record, SiteRow


def record(first: float, *, n: int = 10_000, right: float = 1.0, sites: tuple[str, ...] = ("a", "b")) -> Record:
    values = (first, first / 2)
    rows = [SiteRow("input", "Input", (4,), 4, values={"ncc_mismatch": 0.9})]
    rows += [
        SiteRow(s, "Linear", (4,), 4, values={"ncc_mismatch": v, "test_ncc_mismatch": v + 0.01})
        for s, v in zip(sites, values, strict=True)
    ]
    return Record("net", rows, ["x", "y"], counts=[n // 2] * 2, test_counts=[5, 5], accuracy=right, test_accuracy=0.8)


def test_data_sets_are_ordered_by_the_first_layer_behind_the_input() -> None:
    found = compare_difficulty({"hard": record(0.6), "easy": record(0.16), "middle": record(0.3)})
    assert [s.name for s in found.sets] == ["easy", "middle", "hard"]
    assert [s.first for s in found.sets] == [0.16, 0.3, 0.6]
    assert found.sets[0].standard_error == pytest.approx((0.16 * 0.84 / 10_000) ** 0.5)
    assert found.sets[0].test_first == pytest.approx(0.17)
    assert "easy (16.0%) < middle (30.0%) < hard (60.0%)" in found.sentence
    assert len(found.notes) == 1


def test_differences_inside_the_noise_and_unfitted_networks_are_said() -> None:
    found = compare_difficulty({"one": record(0.30, n=100), "other": record(0.32, n=100, right=0.9)})
    assert "one (30.0%) ≈ other (32.0%)" in found.sentence
    assert "Not fitted to 99.5%: other (90.0%)" in found.notes[0]
    noise = "“≈”: the two differ by less than the noise of so many samples."
    assert noise in found.notes
    assert noise not in compare_difficulty({"one": record(0.2), "other": record(0.4)}).notes


def test_it_is_saved_drawn_and_shown(tmp_path: Path) -> None:
    found = compare_difficulty({"one": record(0.2), "other": record(0.4)})
    plain = json.loads(found.save(tmp_path / "difficulty.json").read_text())
    assert plain["sets"][1]["first"] == 0.4
    assert plain["sentence"] == found.sentence
    page = found.page(tmp_path / "difficulty.html").read_text(encoding="utf-8")
    assert "Difficulty of data sets" in page
    assert "other" in page
    first, along = found.sheet().panels
    assert [series.y for series in first.series] == [(20.0,), (40.0,)]
    assert [series.y for series in along.series] == [(20.0, 10.0), (40.0, 20.0)]
    assert (first.title, along.xlabel) == ("At the first site", "site, counted from 1: 'a' to 'b'")


def of(model: str, shapes: list[tuple[int, ...]], kind: str = "Block", classes: int = 2) -> Record:
    """A record that knows its architecture, with maps of these shapes."""
    rows = [
        SiteRow(f"blocks.{i}", kind, shape, math.prod(shape), values={"ncc_mismatch": 0.5 / (i + 1)})
        for i, shape in enumerate(shapes)
    ]
    about = {"model": model, "parameters": 7242}
    return Record(model, rows, list("abcdefghij"[:classes]), counts=[50] * classes, accuracy=1.0, provenance=about)


@pytest.mark.parametrize(
    ("other", "words"),
    [
        (of("Mixer", [(17, 16)] * 3), "ViT of 7,242 parameters ('one') and Mixer of 7,242 parameters ('other')"),
        (of("ViT", [(17, 16)] * 3, "Mix"), "at 'blocks.0' Block 17×16 ('one') and Mix 17×16 ('other')"),
        (of("ViT", [(33, 32)] * 3), "at 'blocks.0' Block 17×16 ('one') and Block 33×32 ('other')"),
        (of("ViT", [(17, 16), (17, 16), (272,)]), "at 'blocks.2' Block 17×16 ('one') and Block 272 ('other')"),
    ],
)
def test_records_of_two_architectures_are_refused_though_their_sites_have_the_same_names(
    other: Record, words: str
) -> None:
    with pytest.raises(InputError, match=re.escape(f"records: expected one architecture, got {words}")):
        compare_difficulty({"one": of("ViT", [(17, 16)] * 3), "other": other})


def test_images_of_another_size_and_other_classes_are_the_same_architecture() -> None:
    small, large = [(64, 28, 28), (64, 14, 14), (3136,), (100,)], [(64, 32, 32), (64, 16, 16), (4096,), (100,)]
    found = compare_difficulty({"one": of("Net", small), "other": of("Net", large, classes=10)})
    assert found.architecture == "Net"
    assert any("Classes differ in number (one 2, other 10)" in note for note in found.notes)
    with pytest.raises(InputError, match=r"at 'blocks.3' Block 100 .* and Block 200"):
        compare_difficulty({"one": of("Net", small), "other": of("Net", [*large[:3], (200,)])})


def read_by_layers(first: float, kinds: tuple[str, ...], shapes: list[tuple[int, ...]]) -> Record:
    """A network without repeated blocks: the inputs of its layers are measured, the first of which is the raw input."""
    values = (0.9 - first, first, first / 2)
    rows = [
        SiteRow(f"{i}", kind, shape, math.prod(shape), at="input", values={"ncc_mismatch": v})
        for i, (kind, shape, v) in enumerate(zip(kinds, shapes, values, strict=True))
    ]
    return Record("net", rows, ["x", "y"], counts=[500, 500], accuracy=1.0)


def test_what_enters_the_first_layer_is_no_layer() -> None:
    """The raw inputs are ordered the other way around."""
    linear = ("Linear",) * 3
    easy, hard = (read_by_layers(first, linear, [(9,), (8,), (8,)]) for first in (0.2, 0.6))
    found = compare_difficulty({"hard": hard, "easy": easy})
    assert found.sites == ("1", "2")
    assert [(s.name, s.first) for s in found.sets] == [("easy", 0.2), ("hard", 0.6)]
    assert str(found).startswith(found.sentence)
    with pytest.raises(InputError, match=r"at '1' Linear 8 .* and Linear 16"):
        compare_difficulty({"one": easy, "other": read_by_layers(0.3, linear, [(9,), (16,), (16,)])})
    kinds = ("Conv2d", "Linear", "Linear")  # maps are flattened behind the convolution
    small, large = (read_by_layers(0.3, kinds, [(1, n, n), (4 * n * n,), (8,)]) for n in (8, 16))
    assert compare_difficulty({"small": small, "large": large}).sites == ("1", "2")


class Words(nn.Module):
    """Token ids, embedded, then layers without repeated blocks; `flat` reads all tokens, else their mean."""

    def __init__(self, tokens: int, *, flat: bool = False) -> None:
        super().__init__()
        self.flat = flat
        self.words, self.first = nn.Embedding(20, 8), nn.Linear(8 * tokens if flat else 8, 6)
        self.second, self.out = nn.Linear(6, 6), nn.Linear(6, 3)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        h = self.words(ids)
        h = self.first(h.flatten(1) if self.flat else h.mean(1)).relu()
        return self.out(self.second(h).relu())


@pytest.mark.parametrize("flat", [False, True])
def test_what_an_embedding_gives_is_no_raw_input(flat: bool, tmp_path: Path) -> None:
    torch.manual_seed(0)
    y = torch.arange(60) % 3
    short, long = (ll.probe(Words(n, flat=flat), (torch.randint(20, (60, n)), y), progress=False) for n in (4, 6))
    short = Record.load(short.save(tmp_path / "short.json"))
    assert compare_difficulty({"short": short, "long": long}).sites == ("first", "second", "out")
    by_name = record(0.3)
    by_name.sites[0].name, by_name.sites[0].at = "embedded input", "input"  # in front of blocks
    assert compare_difficulty({"one": by_name, "other": by_name}).sites == ("embedded input", "a", "b")


def test_records_made_with_other_settings_are_refused() -> None:
    for name, a, b in (("reduce", "first", "flatten"), ("batchnorm", "running", "batch")):
        one, other, same, untold = (record(0.1 * i) for i in (1, 2, 3, 4))
        one.settings[name], other.settings[name], same.settings[name] = a, b, a
        words = (
            f"records: expected the same {name} in all, got '{a}' ('one') and '{b}' ('other'). Probe both with the same"
        )
        with pytest.raises(InputError, match=re.escape(f"{words} {name}=… (layerlaw probe --{name} …).")):
            compare_difficulty({"untold": untold, "one": one, "same": same, "other": other})
        assert len(compare_difficulty({"one": one, "same": same, "untold": untold}).sets) == 3


def test_bars_stand_over_their_ticks_with_their_errors() -> None:
    found = compare_difficulty({"one": record(0.2), "other": record(0.4)})
    first = found.sheet().panels[0]
    assert first.series[0].high[0] - first.series[0].y[0] == pytest.approx(100 * found.sets[0].standard_error)
    axes = found.plot().axes[0]
    assert [bar.get_x() + bar.get_width() / 2 for bar in axes.patches] == pytest.approx([1, 2])


def test_records_that_cannot_be_compared_are_answered() -> None:
    expected = r"expected those of two or more data sets, \{name: record\}, got"
    for few, came in (
        ({"one": record(0.2)}, "1 of them"),
        ([record(0.2)] * 2, r"a list\."),
        ({record(0.2).name}, "a set"),
    ):
        with pytest.raises(InputError, match=f"{expected} {came}"):
            compare_difficulty(few)
    with pytest.raises(InputError, match=r"expected the sites of 'one' \(a, b\), got a, c of 'other'"):
        compare_difficulty({"one": record(0.2), "other": record(0.2, sites=("a", "c"))})
    empty = record(0.2)
    for site in empty.sites:
        site.values.clear()
    with pytest.raises(InputError, match=r"got blocks.0, blocks.1, blocks.2, …, blocks.19 \(20 sites\) of 'long'"):
        compare_difficulty({"one": record(0.2), "long": of("net", [(4,)] * 20)})
    with pytest.raises(
        InputError, match=r"record 'other': expected ncc_mismatch .* Probe a classifier with its class labels"
    ):
        compare_difficulty({"one": record(0.2), "other": empty})
