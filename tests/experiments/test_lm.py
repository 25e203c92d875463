"""The experiments on language models, quickly: rows equal what the records say, figures can be drawn, models are kept."""

import itertools

import pytest
import torch

from layerlaw.errors import DataError
from layerlaw.experiments import PAPERS, reproduce
from layerlaw.experiments.next_token import language
from layerlaw.experiments.next_token.language import (
    OwnModel,
    books,
    law,
    measured,
    pearson_rows,
    trained,
    values_of,
    walks,
)
from layerlaw.experiments.setting import Setting
from layerlaw.law import fit_law
from layerlaw.outcome import Outcome
from layerlaw.pages import draw_sheet

QUICK = Setting(quick=True, progress=False)


ROWS = {
    "lm_law": 20, "lm_targets": 26, "lm_normalization": 36, "lm_flow": 16, "lm_tokens": 24, "lm_words": 7,
    "lm_training": 21, "lm_sizes": 14, "lm_task": 22,
}  # fmt: skip
UNSHARED = ("/effective-blocks", "/greenwood-p")  # where PR rises as a whole there is nothing to share


def test_every_experiment_is_in_the_list():
    assert tuple(ROWS) == PAPERS["next_token"]


@pytest.mark.parametrize("name", ROWS)
def test_a_quick_run_gives_every_number_and_judges_none(name, tmp_path):
    outcome = reproduce(name, quick=True, progress=False, folder=tmp_path)
    assert outcome.name == name
    assert len(outcome.rows) == len({row.name for row in outcome.rows}) == ROWS[name]
    assert {row.reproduced for row in outcome.rows} == {None}
    for row in outcome.rows:
        if row.ours is None:
            assert row.name.endswith(UNSHARED)
            assert row.reason == "PR does not fall with depth"
        else:
            assert row.low <= row.ours <= row.high
            assert "pearson" not in row.name or abs(row.ours) <= (2 if "minus" in row.name else 1)
    for sheet in outcome.sheets:
        assert all(panel.points and panel.classes if panel.kind == "plane" else panel.series for panel in sheet.panels)
    draw_sheet(outcome.sheets[0]).savefig(tmp_path / "sheet.png", dpi=40)
    assert Outcome.load(outcome.save(tmp_path / f"{name}.json")) == outcome
    assert outcome.provenance["networks"] >= 1


def test_rows_are_fits_of_the_record():
    record = measured(QUICK, null=True)
    found = {row.name: row.ours for row in pearson_rows("id", [record])}
    blocks = [site.values["residual"] for site in record.sites if site.in_fit]
    held = [site.values["residual_held_out"] for site in record.sites if site.in_fit]
    assert values_of(record) == blocks
    assert found["id/pearson"] == fit_law(blocks).pearson
    assert found["id/pearson-without-last-block"] == fit_law(blocks[:-1]).pearson
    assert found["id/pearson-held-out"] == fit_law(held).pearson
    assert law(record, drop_last=2).points == len(blocks) - 2


def test_the_tiny_model_has_learnt_something():
    record = measured(QUICK, null=True)
    trained_end, untrained_end = (record.sites[-1].values[c] for c in ("residual", "residual_untrained"))
    assert trained_end < untrained_end - 0.02


def test_a_trained_model_is_kept_and_found_again(tmp_path, monkeypatch):
    setting = Setting(quick=True, progress=False, folder=tmp_path / "lm_training")
    corpus = books(setting)
    shaped = OwnModel("gpt", 2, 16, 666, 6, batch_size=2)
    first = trained(setting, shaped, corpus, (0, 3))
    assert sorted(first) == [0, 3, 6]
    assert len(list((tmp_path / "language-models").glob("*.pt"))) == 3
    monkeypatch.setattr(language, "train_text", lambda *a, **k: pytest.fail("trained again"))
    other = Setting(quick=True, progress=False, folder=tmp_path / "lm_task")
    again = trained(other, shaped, corpus, (0, 3))
    for step, model in first.items():
        for a, b in zip(model.parameters(), again[step].parameters(), strict=True):
            assert torch.equal(a.cpu(), b)
    assert not torch.equal(first[0].head.weight, first[6].head.weight)


def test_walks_follow_their_chain():
    ids = walks(50, 30, seed=3)
    successors = torch.randint(0, 120, (120, 4), generator=torch.Generator().manual_seed(7))
    assert all(int(b) in successors[int(a)].tolist() for row in ids for a, b in itertools.pairwise(row))
    assert torch.equal(ids, walks(50, 30, seed=3))


def test_a_missing_model_is_named(tmp_path, monkeypatch):
    monkeypatch.setenv("LAYERLAW_DATA", str(tmp_path))
    with pytest.raises(DataError, match=r"expected a folder smollm2/.*--quick needs none"):
        reproduce("lm_law", progress=False)
