"""The experiments on language models, quickly: rows equal what the records say, figures can be drawn, models are kept."""

import itertools
import math

import pytest
import torch

from layerlaw.errors import DataError
from layerlaw.experiments import NEXT_TOKEN, language, reproduce
from layerlaw.experiments.language import Shaped, books, measured, trained, walks
from layerlaw.experiments.residuals import law, pearson_rows, values_of
from layerlaw.experiments.setting import Setting
from layerlaw.law import fit_law
from layerlaw.outcome import Outcome
from layerlaw.pages import draw_sheet

QUICK = Setting(quick=True, progress=False)


@pytest.mark.parametrize("name", NEXT_TOKEN)
def test_every_experiment_runs_quickly_and_judges_nothing(name, tmp_path):
    outcome = reproduce(name, quick=True, progress=False, folder=tmp_path)
    assert outcome.name == name
    assert outcome.rows
    assert all(row.reproduced is None for row in outcome.rows)
    assert all(row.ours is None or math.isfinite(row.ours) for row in outcome.rows)
    for sheet in outcome.sheets:
        draw_sheet(sheet).savefig(tmp_path / "sheet.png", dpi=40)
    again = Outcome.load(outcome.save(tmp_path / f"{name}.json"))
    assert again.rows == outcome.rows
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
    shaped = Shaped("gpt", 2, 16, 666, 6, batch_size=2)
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


def test_a_missing_model_is_told(tmp_path, monkeypatch):
    monkeypatch.setenv("LAYERLAW_DATA", str(tmp_path))
    with pytest.raises(DataError, match=r"expected a folder smollm2/.*--quick needs none"):
        reproduce("lm_law", progress=False)
