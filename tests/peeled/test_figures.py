"""Figures as data: what they show is what the theory says, and they can be drawn."""

import inspect
import math

import numpy as np
import pytest

import layerlaw.peeled as lp
from layerlaw.errors import InputError
from layerlaw.pages import draw_sheet
from layerlaw.sheet import Panel, PlanePanel


def test_cosines_reach_one_at_the_threshold_and_end_where_they_are_undefined() -> None:
    sheet = lp.cosine_sheet()
    assert [panel.title for panel in sheet.panels] == ["E_W = 1, E_H = 5", "E_W = 1, E_H = 10"]
    for panel, E_H in zip(sheet.panels, (5, 10), strict=True):
        assert isinstance(panel, Panel)
        assert panel.note.startswith("R0 = ")
        assert panel.note.count("K_A = ") == 3
        *curves, mark = panel.series
        assert mark.label == "rows become 0"  # where the curve of K_A = 7 ends
        assert mark.x[0] == pytest.approx(lp.vanish_ratio(7, 3, E_W=1, E_H=E_H))
        for series, K_A in zip(curves, (3, 5, 7), strict=True):
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


def test_coinciding_rows_are_all_seen_and_one_scale_holds() -> None:
    sheet = lp.collapse_sheet(1, 2)
    last = sheet.panels[-1]
    assert isinstance(last, PlanePanel)
    points, labels = np.array(last.points), np.array(last.labels)
    one, other = ({tuple(p) for p in points[labels == k][: lp.figures.LONGEST - 1].round(9)} for k in (1, 2))
    assert len(one & other) <= 1  # dashes in turn
    assert last.classes == ("majority", "minority 1", "minority 2", "the longest row of all panels")
    circles = [np.linalg.norm(np.array(p.points)[np.array(p.labels) == 3], axis=1) for p in sheet.panels]
    assert np.ptp(np.concatenate(circles)) < 1e-9


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: lp.simplex_sheet((1,)), "classes: expected a whole number of at least 2, got 1"),
        (lambda: lp.simplex_sheet(()), "classes: expected at least one of numbers of classes"),
        (lambda: lp.phase_sheet(pairs=[(0, 3)]), r"pairs\[0\], K_A: expected at least 1, got 0. A group has"),
        (lambda: lp.phase_sheet(pairs=[5]), r"pairs\[0\]: expected a pair \(K_A, K_B\), got 5"),
        (lambda: lp.phase_sheet(budgets=[]), "budgets: expected at least one of budgets"),
        (lambda: lp.phase_sheet(budgets=[-1.0]), r"budgets\[0\]: expected a positive, finite budget"),
        (lambda: lp.collapse_sheet(shares=[]), "shares: expected at least one of values of log R"),
        (lambda: lp.collapse_sheet(shares=[-1]), r"shares\[0\]: expected a positive"),
        (lambda: lp.collapse_sheet(2, 1), "K_B: expected at least 2 minority classes"),
        (lambda: lp.cosine_sheet(K_A=()), "K_A: expected at least one of numbers of majority classes"),
        (lambda: lp.cosine_sheet(K_A=(10,)), "K_A: expected fewer majority classes than K = 10, got 10"),
        (lambda: lp.cosine_sheet(E_H=()), "E_H: expected at least one of feature budgets"),
        (lambda: lp.cosine_sheet(ratios=[]), "ratios: expected at least one of ratios"),
    ],
)
def test_sheets_of_nothing_are_refused(make, message: str) -> None:
    with pytest.raises(InputError, match=message):
        make()


def test_signatures_are_short() -> None:
    for sheet in (lp.cosine_sheet, lp.phase_sheet, lp.simplex_sheet, lp.collapse_sheet):
        assert len(str(inspect.signature(sheet))) < 320


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


def test_ratios_beyond_a_double_are_written_as_powers() -> None:
    assert lp.collapse_sheet(E_H=1e6).panels[-1].title.startswith("R = 10^")
