"""Figures as data: what they show is what the theory says, and they can be drawn."""

import math

import numpy as np
import pytest

import layerlaw.peeled as lp
from layerlaw.errors import InputError
from layerlaw.pages import Panel, PlanePanel, draw_sheet


def test_cosines_reach_one_at_the_threshold_and_end_where_they_are_undefined() -> None:
    sheet = lp.cosine_sheet()
    assert [panel.title for panel in sheet.panels] == ["E_W = 1, E_H = 5", "E_W = 1, E_H = 10"]
    for panel, E_H in zip(sheet.panels, (5, 10), strict=True):
        assert isinstance(panel, Panel)
        for series, K_A in zip(panel.series, (3, 5, 7), strict=True):
            R0 = lp.collapse_ratio(K_A, 10 - K_A, E_W=1, E_H=E_H)
            gone = lp.vanish_ratio(K_A, 10 - K_A, E_W=1, E_H=E_H)
            for R, cosine in zip(series.x, series.y, strict=True):
                assert (cosine is None) == bool(gone <= R)
                assert cosine is None or (cosine == 1) == bool(R0 <= R)


def test_boundaries_of_the_phases() -> None:
    sheet = lp.phase_sheet(((5, 5),), budgets=(0.5, 1.0, 2.0, 3.0))
    by_label = {series.label: dict(zip(series.x, series.y, strict=True)) for series in sheet.panels[0].series}
    assert by_label["R0: collapsed above"][2.0] == pytest.approx(lp.collapse_ratio(5, 5, E_W=2, E_H=2))
    assert by_label["R_vanish: zero above"][2.0] is None  # beyond c ≈ 1.76 nothing vanishes
    assert max(v for v in by_label["R_vanish: zero above"].values() if v is not None) > 1e4  # it runs up to infinity
    assert by_label["R_vanish: zero above (with a bias)"][2.0] == pytest.approx(
        lp.vanish_ratio(5, 5, E_W=2, E_H=2, bias=True)
    )


def tips(panel: PlanePanel, K: int) -> np.ndarray:
    points, labels = np.array(panel.points), np.array(panel.labels)
    return np.array([points[labels == k][lp.figures.LONGEST - 1] for k in range(K)])


def test_vectors_of_a_plane_have_their_true_angles() -> None:
    vectors = tips(lp.simplex_sheet().panels[1], 3)
    unit = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
    assert (unit @ unit.T)[~np.eye(3, dtype=bool)] == pytest.approx(-0.5)
    for panel in lp.collapse_sheet(1, 2, E_H=2).panels:
        vectors = tips(panel, 3)
        R = float(panel.title.split("=")[1].split(",")[0])
        s = lp.solve({round(R * 10**6): 1, 10**6: 2} if R > 1 else {1: 3}, E_W=1, E_H=2)
        assert np.linalg.norm(vectors, axis=1)[[0, -1]] == pytest.approx(s.norms[[0, -1]], rel=2e-3)
        cosine = vectors[1] @ vectors[2] / np.linalg.norm(vectors[1]) / np.linalg.norm(vectors[2])
        assert cosine == pytest.approx(s.minority_cosine, abs=3e-3)
        assert (vectors**2).sum() / 3 == pytest.approx(1)  # E_W


def test_too_many_classes_for_a_picture() -> None:
    with pytest.raises(InputError, match="expected 2 to 4 classes"):
        lp.collapse_sheet(3, 3)
    with pytest.raises(InputError, match="expected 2 to 4 classes"):
        lp.simplex_sheet([5])


@pytest.mark.parametrize(
    "make", [lp.cosine_sheet, lp.phase_sheet, lp.simplex_sheet, lp.collapse_sheet, lambda: lp.collapse_sheet(2, 2)]
)
def test_every_sheet_can_be_drawn(make, tmp_path) -> None:
    pytest.importorskip("matplotlib")
    sheet = make()
    draw_sheet(sheet).savefig(tmp_path / "sheet.png", dpi=60)
    assert (tmp_path / "sheet.png").stat().st_size > 5000
    assert math.isfinite(sheet.columns)
    assert sheet.caption
