"""Which module obeys the law: levels from rows, the rule, pooling, and what is answered to other questions."""

import importlib
import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import layerlaw as ll
from layerlaw.errors import InputError
from layerlaw.law import greenwood_p, pooled_greenwood_p
from layerlaw.record import LANGUAGE_MODEL, Record, SiteRow
from layerlaw.verdict import find_modules, judge
from layerlaw.verdict.level_rows import row_levels

ROOT = Path(__file__).resolve().parents[2]
RESNET = [f"layer{s}.{b}.conv{c}" for s in (1, 2, 3) for b in (0, 1) for c in (1, 2)]


def entering(*names: str) -> list[SiteRow]:
    return [SiteRow(name, "Conv2d", (8,), 8, at="input") for name in names]


def record(steps: list[float], names: list[str], *, name: str = "net", **settings: object) -> Record:
    """Measured at the input of every layer: ln D falls by these steps at the named layers."""
    rows = entering(*names, "fc")
    for row, y in zip(rows, np.cumsum([0.0, *steps]), strict=True):
        row.values["separation"] = 40 * math.exp(-y)
    return Record(name=name, sites=rows, classes=["a", "b"], settings={"sites": "layers", **settings})


def pairs(steps: list[float], **more: object) -> Record:
    """Layers 0.a, 0.b, 1.a, 1.b … in blocks of two."""
    return record(steps, [f"{i // 2}.{'ab'[i % 2]}" for i in range(len(steps))], **more)  # type: ignore[arg-type]


def test_the_rows_of_a_resnet_are_borders_of_layers_blocks_and_stages() -> None:
    found = row_levels(entering("conv1", *RESNET, "fc"))
    block = ["blocks", "layers"]
    stage = ["stages", "layers", *block]
    assert found == ["stages", *stage, *stage, *stage, "stages"]  # the stem is a module of its own


def test_blocks_that_are_known_go_before_names() -> None:
    rows = entering("first.a", "first.b", "second.a", "second.b", "third.a", "third.b", "fc")
    assert row_levels(rows) == ["layers"] * 7
    found = row_levels(rows, ["first", "second", "third"])
    assert found == ["blocks", "layers", "blocks", "layers", "blocks", "layers", "blocks"]


@pytest.mark.parametrize(
    ("names", "blocks"),
    [
        (["linear1", "linear2", "linear3"], 0),
        (["features.0", "features.3", "features.6", "classifier.1"], 0),
        (
            [
                "blocks.0.attn.qkv",
                "blocks.0.mlp.0",
                "blocks.0.mlp.3",
                "blocks.1.attn.qkv",
                "blocks.1.mlp.0",
                "blocks.1.mlp.3",
            ],
            2,
        ),
        ([f"features.{s}.{b}.block.{k}" for s in (1, 2) for b in (0, 1) for k in ("0.0", "1.fc1", "1.fc2", "2.0")], 4),
        ([f"encoder.stages.{s}.layers.{b}.layer.{k}.convolution" for s in (0, 1) for b in (0, 1) for k in (0, 1)], 4),
        ([f"denseblock{s}.denselayer{b}.conv{k}" for s in (1, 2) for b in (1, 2, 3) for k in (1, 2)], 6),
    ],
    ids=["feed-forward", "vgg", "vit", "squeeze-excite inside", "one layer in a list", "dense"],
)
def test_blocks_are_found_by_the_names_of_layers(names: list[str], blocks: int) -> None:
    borders = [mark for mark in row_levels(entering(*names, "fc")) if mark in ("blocks", "stages")]
    assert len(borders) == (blocks + 1 if blocks else 0)


def test_layers_between_stages_are_modules_of_their_own() -> None:
    names = [f"stages.0.blocks.{b}.{k}" for b in (0, 1) for k in "ab"] + ["down"]
    names += [f"stages.1.blocks.{b}.{k}" for b in (0, 1) for k in "ab"]
    found = row_levels(entering(*names, "fc"))
    assert [mark for mark in found if mark != "layers"] == ["stages", "blocks", "stages", "stages", "blocks", "stages"]


def test_second_calls_and_ends_of_names_are_of_the_same_block() -> None:
    found = row_levels(entering("0.a", "0.a#2", "1.a", "1.a#2", "2.a (input)", "2.b", "fc"))
    assert found == ["blocks", "layers", "blocks", "layers", "blocks", "layers", "blocks"]


def test_a_few_blocks_among_many_layers_are_no_level() -> None:
    names = [f"conv{i}" for i in range(8)] + ["block1.a", "block1.b", "block2.a", "block2.b"]
    assert set(row_levels(entering(*names, "fc"))) == {"layers"}


def test_the_finest_level_that_passes_is_the_answer() -> None:
    even = find_modules(pairs([1.0] * 8))
    assert (even.level, even.most_even) == ("layers", "layers")
    assert even.sentence.startswith(
        "Modules: layers. The 8 layers share the drop of log D more evenly than a random split"
    )
    by_blocks = find_modules(pairs([1.9, 0.1, 0.2, 1.8, 1.95, 0.05, 0.1, 1.9]))
    assert by_blocks.level == "blocks"
    assert "; the 8 layers do not (p = 0.61)" in by_blocks.sentence


def test_groups_that_any_order_would_give_are_not_called_special() -> None:
    alternating = find_modules(*(pairs([1.95, 0.05] * 4 if i % 2 else [0.05, 1.95] * 4) for i in range(4)))
    assert alternating.level == "blocks"
    assert alternating.levels[1].permutation_p == pytest.approx(0.0, abs=0.01)
    assert "not shown to be special" not in alternating.sentence
    rng = np.random.default_rng(6)
    random = find_modules(
        *(record(list(rng.exponential(size=12)), [f"{i // 3}.{i}" for i in range(12)]) for _ in range(8))
    )
    assert random.level == "blocks"  # sums of three random steps are more even than random steps
    assert (random.levels[1].permutation_p or 0) > 0.05
    assert "Any groups of so many layers would be as even: these are not shown to be special." in random.sentence


def test_none_passes_and_the_most_even_is_named() -> None:
    found = find_modules(pairs([2.5, 0.1, 0.2, 1.2, 0.9, 0.05, 0.1, 1.9]))
    assert found.level is None
    assert found.most_even == "blocks"
    assert "none established; most even (least p): blocks (4 blocks: Greenwood p = " in found.sentence
    assert "of the 8 layers" in found.sentence
    assert "pass the records of several seeds" in found.sentence


def test_numbers_of_a_level_are_those_of_its_law() -> None:
    steps = [1.5, 0.3, -0.2, 1.4, 0.9, 0.4, 0.7, 0.8]
    found = find_modules(pairs(steps))
    layers, blocks = found.levels
    sums = [a + b for a, b in zip(steps[::2], steps[1::2], strict=True)]
    for level, each in ((layers, steps), (blocks, sums)):
        G = sum(s**2 for s in each) / sum(each) ** 2
        assert level.modules == (len(each),)
        assert level.p == level.median_p == pytest.approx(greenwood_p(G, len(each)))
        assert level.evenness == pytest.approx(1 / G / len(each))
        assert level.rises == sum(s < 0 for s in each)
        assert level.shares[0] == pytest.approx([s / sum(each) for s in each])
    assert layers.permutation_p is None
    assert found.rows[1][6] == "1 of 8"


def test_a_record_by_blocks_says_that_the_step_of_its_first_block_is_also_that_of_the_stem() -> None:
    rows = [SiteRow(n, "Block", (8,), 8, at="output") for n in ("input", *(f"blocks.{i}" for i in range(4)), "fc")]
    for i, row in enumerate(rows):
        row.values["separation"] = 40 * 0.5**i * (0.1 if i else 1.0)
    rows[0].at = rows[0].type = rows[-1].at = "input"
    settings: dict[str, Any] = {"sites": "blocks", "in_front": {"blocks.0": ["stem.0"]}}
    made = Record(name="net", sites=rows, classes=["a", "b"], settings=settings)
    blocks = find_modules(made).levels[0]
    assert blocks.counted == "4 blocks, 1 of them with the layers in front, and 1 other layer"
    assert replace(blocks, led=(4,)).counted == "4 blocks, each with the layers in front, and 1 other layer"
    findings = judge(made).findings
    assert any(
        line.startswith("The largest step is at 'stem.0' together with 'blocks.0', by a factor of 20")
        for line in findings
    )
    settings["in_front"]["blocks.0"] = ["stem.0", "stem.3", "stem.6"]
    assert "at 'stem.0' … 'stem.6' together with 'blocks.0'" in judge(made).findings[0]
    rows[0].in_fit = False  # then there is no such step
    assert find_modules(made).levels[0].counted == "3 blocks and 1 other layer"


def test_a_block_whose_end_is_no_point_is_said_to_be_cut() -> None:
    made = pairs([0.9, 1.1] * 4)
    assert find_modules(made).levels[1].counted == "4 blocks"
    made.sites[-1].in_fit, made.sites[-1].aside = False, "made of the first token, beside all tokens of other rows"
    layers, blocks = find_modules(made).levels
    assert (layers.counted, blocks.counted) == ("7 layers", "4 blocks, the last without its end")
    assert blocks.modules == (4,)
    made = pairs([1.9, 0.1, 0.2, 1.8, 1.95, 0.05, 2.0, 0.1])
    made.sites[-1].in_fit = False
    assert find_modules(made).sentence.startswith(
        "Modules: blocks. The 4 blocks, the last without its end, share the drop"
    )


def test_the_stem_and_the_head_are_modules_of_their_own_at_every_level() -> None:
    """All levels share the drop of the law: what the headline says of its steps holds of the finest level."""
    names = ["conv1", *(f"{i // 2}.{'ab'[i % 2]}" for i in range(8)), "head"]
    made = record([9.0, *[1.0] * 8, 0.01], names)
    found = find_modules(made)
    assert [(level.modules, level.outside) for level in found.levels] == [((10,), (0,)), ((6,), (2,))]
    assert found.levels[1].counted == "4 blocks and 2 other layers"
    fit = made.law()
    assert (found.levels[0].modules[0], found.levels[0].p) == (fit.layers, pytest.approx(fit.greenwood_p))
    assert found.level is None
    assert "does not hold" in judge(made).headline


@pytest.mark.parametrize("seed", range(20))
def test_the_finest_level_and_the_headline_never_contradict_each_other(seed: int) -> None:
    rng = np.random.default_rng(seed)
    made = pairs(list(rng.gamma(rng.integers(1, 30), size=8)))
    headline, found = judge(made).headline, find_modules(made)
    assert (found.levels[0].modules[0], found.levels[0].p) == (8, pytest.approx(made.law().greenwood_p))
    if headline.startswith("The law holds"):
        assert found.level == "layers"
        assert found.sentence.startswith("Modules: layers. ")
        assert "does not hold" not in found.sentence
    elif found.level == "layers":
        assert "The law, which also asks for evenness and no trend, does not hold of them." in found.sentence


def test_too_few_samples_for_a_law_are_too_few_for_its_modules() -> None:
    made = pairs([1.9, 0.1, 0.2, 1.8, 1.95, 0.05, 0.1, 1.9])
    made.counts = [50, 50]
    for row in made.sites:
        row.values["separation_permuted"] = row.values["separation"]
    assert "it cannot be told whether the law holds" in judge(made).headline
    assert "Modules:" not in str(judge(made))


def test_seeds_are_pooled_by_their_statistics_not_by_their_curves() -> None:
    """Two networks that are uneven in opposite ways: their mean is even, they are not."""
    one, other = [1.9, 0.1, 1.9, 0.1, 1.9, 0.1], [0.1, 1.9, 0.1, 1.9, 0.1, 1.9]
    found = find_modules(record(one, list("abcdef")), record(other, list("abcdef")))
    G = sum(s**2 for s in one) / sum(one) ** 2
    assert found.levels[0].p == pytest.approx(pooled_greenwood_p([G, G], [6, 6]))
    assert found.level is None
    assert len(found.networks) == 2


def test_pooling_finds_what_single_networks_cannot() -> None:
    rng = np.random.default_rng(3)
    seeds = []
    for _ in range(8):
        blocks = rng.gamma(12, 1 / 12, 4)
        first = rng.beta(0.1, 0.1, 4)
        seeds.append(pairs([x for b, f in zip(blocks, first, strict=True) for x in (b * f, b * (1 - f))]))
    alone = [find_modules(seed).level for seed in seeds]
    found = find_modules(*seeds)
    assert None in alone
    assert found.level == "blocks"
    assert "pooled over 8 networks, median" in found.sentence
    assert found.levels[1].median_p == pytest.approx(float(np.median([find_modules(s).levels[1].p for s in seeds])))


def test_networks_of_other_depths_pool_if_their_levels_are_the_same() -> None:
    found = find_modules(pairs([1.0] * 8), pairs([1.0] * 12))
    assert found.levels[0].modules == (8, 12)
    assert "8–12 layers" in found.sentence


@pytest.mark.parametrize("kind", ["separation", "target_separation"])
@pytest.mark.parametrize(("low", "high"), [(5e-324, 1.0), (1.0, 1.7e308), (5e-324, 1.7e308), (5e-324, 5e-324)])
def test_a_ratio_beyond_all_numbers_is_a_step_like_others(low: float, high: float, kind: str, tmp_path: Path) -> None:
    made = pairs([1.0, 0.8, 1.1, 0.9, 1.0, 1.2, 0.7, 1.0])
    data = made.to_dict() | ({"kind": "regression"} if kind == "target_separation" else {})
    for row in data["sites"]:
        row["values"] = {kind: row["values"]["separation"]}
    for at in (0, 3, len(data["sites"]) - 2):
        values = [dict(row["values"]) for row in data["sites"]]
        values[at][kind], values[at + 1][kind] = high, low
        sites = [row | {"values": one} for row, one in zip(data["sites"], values, strict=True)]
        edge = Record.from_dict(data | {"sites": sites})
        levels = find_modules(edge).levels
        assert [level.name for level in levels] == ["layers", "blocks"]
        shares = [level.shares[0] for level in levels]
        assert all(share is None or sum(share) == pytest.approx(1) for share in shares)
        assert all(0 <= level.p <= 1 for level in levels)
        assert ll.report([edge], tmp_path / "page.html").stat().st_size > 1000


def test_where_nothing_falls_nothing_is_even() -> None:
    for steps in ([-1.0] * 8, [1.0, -1.0] * 4, [0.005] * 8):
        found = find_modules(pairs(steps))
        assert (found.level, found.most_even) == (None, None)
        assert "D hardly falls from the first site to the last" in found.sentence
        assert found.levels[0].p == 1.0
        assert found.sheet().panels
    mixed = find_modules(pairs([1.0] * 8), pairs([-1.0] * 8))
    assert mixed.level is None
    assert mixed.levels[0].p == 1.0


def test_records_of_one_network_at_other_sites_complement_each_other() -> None:
    by_layers = pairs([1.9, 0.1, 0.2, 1.8, 1.95, 0.05, 0.1, 1.9])
    rows = [SiteRow(f"{i}", "Block", (8,), 8, at="output", values={"separation": 40 * 0.1**i}) for i in range(4)]
    first = SiteRow("input", "input", (8,), 8, at="input", values={"separation": 400.0})
    by_blocks = Record(name="net", sites=[first, *rows], classes=["a", "b"], settings={"sites": "blocks"})
    for one in (by_layers, by_blocks):
        one.provenance["parameters_sha256"] = "same"
    together = find_modules(by_blocks, by_layers)
    assert together.networks == ("net",)
    assert together.levels == find_modules(by_layers).levels  # where both have a level, that of the finer record
    assert [level.name for level in find_modules(by_blocks).levels] == ["blocks"]
    with pytest.raises(InputError, match=r"two records of the same network \('net'\) with layers and blocks"):
        find_modules(by_layers, by_layers)


def test_rows_of_side_branches_are_points_of_a_level_only_where_asked() -> None:
    made = pairs([1.9, 0.1, 0.2, 1.8, 1.95, 0.05, 0.1, 1.9])
    found = find_modules(made)
    for row in made.sites[1::2]:
        row.in_fit, row.branch = False, True
    [blocks] = find_modules(made).levels  # on the trunk the layers inside of blocks are no level
    assert (blocks.name, blocks.modules) == ("blocks", (made.law().layers,))
    assert find_modules(made, branches=True).levels == found.levels
    made.sites[1].aside = "3 features do not hold the 9 dimensions of 10 class means"
    assert find_modules(made, branches=True).levels[0].modules == (7,)


def test_a_language_model_has_one_level() -> None:
    rows = [SiteRow(f"h.{i}", "Block", (8,), 8, at="output", values={"residual": 0.9 - 0.02 * i}) for i in range(7)]
    found = find_modules(Record(name="lm", sites=rows, classes=[], kind=LANGUAGE_MODEL))
    assert [(level.name, level.modules) for level in found.levels] == [("blocks", (6,))]
    assert found.quantity == "PR"


def test_levels_of_few_modules_are_not_tested() -> None:
    names = [f"s{s}.{b}.{k}" for s in (0, 1) for b in (0, 1, 2) for k in "ab"]
    found = find_modules(record([1.0] * 12, names))
    assert [level.name for level in found.levels] == ["layers", "blocks"]
    assert found.too_few == {"stages": 2}


@pytest.mark.parametrize(
    ("records", "words"),
    [
        ((), "expected at least one record, got none"),
        (([pairs([1.0] * 8)],), "expected records, find_modules\\(record, record, …\\), got list"),
        ((pairs([1.0] * 8), record([1.0] * 4, list("abcd"))), "'net' has layers and blocks, 'net' has layers"),
        ((record([1.0, 1.0], ["a", "b"]),), "expected a level of at least 3 modules, 'net' has 2 layers"),
        ((Record(name="empty", sites=[], classes=[]),), "expected at least 2 points of a law, record 'empty' has 0"),
        (
            (pairs([1.0] * 8), Record(name="lm", sites=[], classes=[], kind=LANGUAGE_MODEL)),
            "got a classifier \\('net'\\) and a language model \\('lm'\\)",
        ),
    ],
    ids=["nothing", "a list", "other levels", "too short", "empty", "kinds"],
)
def test_what_cannot_be_answered_is_said(records: tuple[Record, ...], words: str) -> None:
    with pytest.raises(InputError, match=words):
        find_modules(*records)


@pytest.mark.parametrize("value", [None, 0.0, float("nan"), -1.0])
def test_a_hole_in_the_curve_is_named(value: float | None) -> None:
    made = pairs([1.0] * 8)
    made.sites[3].values["separation"] = value
    with pytest.raises(InputError, match=r"expected a positive separation at '1.b', got"):
        find_modules(made)


def test_the_verdict_says_it_where_there_is_a_choice() -> None:
    made = pairs([1.9, 0.1, 0.2, 1.8, 1.95, 0.05, 0.1, 1.9])
    assert find_modules(made).sentence in judge(made).findings
    assert "Modules:" not in str(judge(record([1.0] * 8, list("abcdefgh"))))


def test_the_finding_is_a_sentence_a_table_a_file_and_a_figure(tmp_path: Path) -> None:
    found = find_modules(pairs([1.9, 0.1, 0.2, 1.8, 1.95, 0.05, 0.1, 1.9]))
    sentence, heads, *rows = str(found).splitlines()
    assert sentence == found.sentence
    assert heads.split()[:2] == ["level", "modules"]
    assert [row.split()[0] for row in rows] == ["layers", "blocks"]
    assert ">blocks</td>" in found._repr_html_()
    saved = json.loads(found.save(tmp_path / "modules.json").read_text())
    assert saved["level"] == "blocks"
    assert saved["levels"][0]["p"] == pytest.approx(found.levels[0].p)
    assert [ax.get_title() for ax in found.plot().axes] == ["8 layers, p = 0.61", "4 blocks, p < 0.0001"]


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch) -> Any:
    """scripts/modules_table.py"""
    monkeypatch.syspath_prepend(str(ROOT / "scripts"))
    return importlib.import_module("modules_table")


def test_the_page_holds_what_was_measured(script: Any) -> None:
    kept = json.loads((ROOT / "docs" / "modules.json").read_text(encoding="utf-8"))
    assert script.trained_table(kept) in (ROOT / "docs" / "modules.md").read_text(encoding="utf-8")
    feed_forward = [r for r in kept if r["kind"] == "fnn8"]
    found = [find_modules(pairs(list(-np.diff(np.log(r["D"]))))).level for r in feed_forward]
    assert found.count("layers") >= 0.9 * len(found)
    residual = [find_modules(pairs(list(-np.diff(np.log(r["D"]))))) for r in kept if r["kind"] == "resnet2"]
    assert sum(f.level == "blocks" or (f.level is None and f.most_even == "blocks") for f in residual) >= 0.9 * len(
        residual
    )


def test_networks_trained_together_are_those_trained_alone(script: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(script, "EPOCHS", 1)
    torch.manual_seed(0)
    x, y = torch.randn(40, 8, 16, 16), torch.arange(40) % 10
    together, alone = script.train("mixed", [1, 2], x, y)[1], script.train("mixed", [2], x, y)[0]
    for one, other in zip(together.parameters(), alone.parameters(), strict=True):
        assert torch.allclose(one, other, atol=1e-4)


def test_the_script_that_counts_answers_follows_the_same_rule(script: Any) -> None:
    rng = np.random.default_rng(0)
    for draw in range(12):
        networks = [rng.gamma(1 + draw, size=8) for _ in range(1 + draw % 3)]
        found = find_modules(*(pairs([float(s) for s in steps]) for steps in networks))
        name, established, ps = script.answer(networks, [2, 2, 2, 2])
        assert ps == pytest.approx([level.p for level in found.levels])
        assert (found.level is not None) is established
        assert name == (found.level or found.most_even)


def test_it_is_public() -> None:
    assert ll.find_modules is find_modules
    assert replace(find_modules(pairs([1.0] * 8)), networks=("a",)).networks == ("a",)
