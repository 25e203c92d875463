"""A training run as frames: what its movie shows at every step, turned so that nothing jumps, packed so that it is small.

Planes of principal components have no direction of their own: each is turned (and mirrored) to lie as near as it can to that
of the next step, by orthogonal Procrustes of the same samples, and at the last step to that of the next site. Coordinates
are whole numbers of two bytes, in base64.
"""

from __future__ import annotations

import base64
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt

from layerlaw.law.fit import BENT, CHANCE, EVEN
from layerlaw.law.words import law_numbers_written
from layerlaw.measures.columns import describe
from layerlaw.pages import theme
from layerlaw.pages.along_training import TrainingSeries, step_text
from layerlaw.pages.html.planes import plane_positions
from layerlaw.pages.kinds import presentation
from layerlaw.pages.law_numbers import ANSWERS
from layerlaw.pages.record_view import RecordView
from layerlaw.pages.sheets.scales import close_scale, even_ticks, tick_text
from layerlaw.wording import ABSENT, beginning, clean, number, percent, sentence, short_names

Points = npt.NDArray[np.float64]
MOST_POINTS = 800_000  # of all planes at all steps: 5.4 bytes each on the page
MOST_OF_A_SITE, FEWEST_OF_A_SITE = 500, 20
LARGEST, MISSING = 32_000, -32_768  # what the edge of a picture becomes, and a point that is not there
EDGE = 0.98  # share of the samples that lie inside a plane's picture with room to spare
FAR = 4.0  # where the picture of three classes ends; its corners are at 1
LONGEST_SITE = 16
MOST_SHARES = 0.9  # of all shares of the drop at all steps that their axis shows whole, beside those of the last step
LOWEST_SHARE, HIGHEST_SHARE = -1.0, 2.0  # where that axis ends at the latest


def frames(series: TrainingSeries) -> dict[str, Any]:
    """Plain data for movie.js: numbers along the sites and pictures, one entry per step."""
    last = series.views[-1]
    along = last.along
    names = short_names([site.name for site in last.sites], LONGEST_SITE)
    return {
        "unit": series.unit,
        "steps": [step_text(step) for step in series.steps],
        "symbol": describe(last.column).symbol,
        "sites": [clean(names[i]) for i in along],
        "numbers": [last.record.numbers[i] for i in along],
        "places": [last.places[i] for i in along],
        "laws": [law_of_frame(view) for view in series.views],
        "curve": curve(series, along),
        "shares": shares(series, along),
        "mismatch": mismatch(series, along),
        "planes": planes(series),
        "view": three_classes_packed(series),
        "colors": theme.class_colors(
            max([len(last.record.plane_names), 1, *(k + 1 for k in last.record.plane_labels)])
        ),
        "heat": [list(stop) for stop in theme.SEQUENTIAL],
    }


def law_of_frame(view: RecordView) -> dict[str, Any]:
    """What is said of the law at one step, each number with whether it is as asked for."""
    fit, record = view.fit, view.record
    even, trend, p = (ABSENT,) * 3 if fit is None else law_numbers_written(fit)
    asked: list[bool | None] = [None] * 3
    if fit is not None and fit.evenness is not None and fit.greenwood_p is not None:
        bent = fit.trend is None or not 1 / BENT <= fit.trend <= BENT
        asked = [fit.evenness >= EVEN, not bent, fit.greenwood_p < CHANCE]
    ends = view.fit_positions[:1] + view.fit_positions[-1:]
    line = None if fit is None or len(fit.line) < 2 else [rounded(fit.line[0]), rounded(fit.line[-1])]
    return {
        "holds": view.holds,
        "words": sentence(view.headline[0]),
        "numbers": [even, trend, p, ABSENT if fit is None else number(fit.rho)],
        "asked": asked,
        "answer": ANSWERS[view.holds],
        "line": line and [view.places[ends[0]], line[0], view.places[ends[1]], line[1]],
        "accuracy": [percent(share) for share in (record.accuracy, record.test_accuracy) if share is not None],
    }


def curve(series: TrainingSeries, along: Sequence[int]) -> dict[str, Any]:
    """The leading column along the sites at every step, on one axis for all steps."""
    values = [[view.series(view.column)[i] for i in along] for view in series.views]
    tests = [[view.series(f"test_{view.column}")[i] for i in along] for view in series.views]
    tested = all(any(v is not None for v in row) for row in tests)
    inside = [[view.sites[i].in_fit for i in along] for view in series.views]
    front = [
        v for row, points in zip(values, inside, strict=True) for v, point in zip(row, points, strict=True) if point
    ]
    front += [v for row in tests for v in row if tested]
    known = [v for v in front if v is not None and v > 0]
    axis = None
    if known:
        scale, ticks = close_scale(known, series.views[-1].record.kind.margin)
        axis = {"low": scale.low, "high": scale.high, "ticks": [[t, tick_text(t)] for t in ticks]}
    text = describe(series.views[-1].column).text
    return {
        "title": presentation(series.views[-1]).AXIS,
        "axis": axis,
        "values": [list(map(rounded, row)) for row in values],
        "words": [[text(v) for v in row] for row in values],
        "test": [list(map(rounded, row)) for row in tests] if tested else None,
        "points": [[int(point) for point in row] for row in inside],
    }


def shares(series: TrainingSeries, along: Sequence[int]) -> dict[str, Any] | None:
    """Each site's share of the drop; `None` where no step has any."""
    found = [[view.shares.get(i) for i in along] for view in series.views]
    known = [v for row in found for v in row if v is not None]
    if not known:
        return None
    even = 1 / max(1, max(len(view.shares) for view in series.views))
    # A few wild steps, as at the start of training, shall not make all other bars tiny: what is cut is marked as such.
    end = [v for v in found[-1] if v is not None] or [0.0]
    few, most = np.quantile(known, [1 - MOST_SHARES, MOST_SHARES]).tolist()
    low = max(LOWEST_SHARE, min(0.0, few, *end))
    high = min(HIGHEST_SHARE, max(2 * even, most, *end))
    ticks = [[t, percent(t, 0)] for t in even_ticks(low, high, 5)]
    values = [list(map(rounded, row)) for row in found]
    axis, cut = {"low": low, "high": 1.04 * high, "ticks": ticks}, min(known) < low or max(known) > 1.04 * high
    return {"even": even, "axis": axis, "values": values, "cut": cut}


def mismatch(series: TrainingSeries, along: Sequence[int]) -> dict[str, Any] | None:
    """How often the nearest class center disagrees with the network, on training and on test data."""
    both = []
    for column in ("ncc_mismatch", "test_ncc_mismatch"):
        rows = [[rounded(view.series(column)[i]) for i in along] for view in series.views]
        both.append(rows if all(any(v is not None for v in row) for row in rows) else None)
    known = [v for rows in both for row in rows or () for v in row if v is not None]
    if both[0] is None or not known:
        return None
    high = min(1.0, max(0.1, 1.05 * max(known)))
    ticks = [[t, percent(t, 0)] for t in even_ticks(0.0, high, 5)]
    return {"axis": {"low": 0.0, "high": high, "ticks": ticks}, "values": both[0], "test": both[1]}


# --- pictures ---------------------------------------------------------------------------------------------------------


def planes(series: TrainingSeries) -> dict[str, Any] | None:
    """The planes of all drawn sites at all steps: [site][step][sample][2], turned, scaled to the picture, packed."""
    last, views = series.views[-1], series.views
    chosen = plane_positions(last)
    if not chosen:
        return None
    room = MOST_POINTS // (len(chosen) * len(views))
    most = min(MOST_OF_A_SITE, max(FEWEST_OF_A_SITE, room))
    size = min(len(view.record.plane_labels) or MOST_OF_A_SITE for view in views)
    step = max(1, -(-size // most))
    labels = [view.record.plane_labels[:size:step] for view in views]
    kept = [same_samples(a, b) for a, b in pairwise(views)]
    data, counts, after = [], [], None
    for site in reversed(chosen):
        stack = [coordinates(view.sites[site].plane, size)[::step] for view in views]
        turned = turn_back(stack, labels, kept, after)
        after = turned[-1]
        data.append(quantized(np.stack([scaled(points) for points in turned]), 1.0))
        counts.append(len(turned[0]))
    column, names = last.column, short_names([site.name for site in last.sites], LONGEST_SITE)
    text = describe(column).text
    words = [[text(view.series(column)[i]) if not last.record.words else "" for i in chosen] for view in views]
    legend = [beginning(clean(name), 24) for name in last.record.plane_names]
    return {
        "sites": [clean(names[i]) for i in chosen], "numbers": [last.record.numbers[i] for i in chosen], "words": words,
        "counts": counts[::-1], "data": packed(np.concatenate([part.ravel() for part in data[::-1]])),
        "labels": labels[-1:] if all(one == labels[-1] for one in labels) else labels, "same": all(kept), "legend": legend,
    }  # fmt: skip


def same_samples(one: RecordView, other: RecordView) -> bool:
    """Whether the planes of two records are of the same samples in the same order, as far as the records can tell."""
    prints = {view.record.provenance.get("data_fingerprint") for view in (one, other)} - {None}
    return one.record.plane_labels == other.record.plane_labels and len(prints) < 2


def coordinates(plane: Sequence[Sequence[float | None]], size: int) -> Points:
    """(size, 2); NaN where a sample has no place."""
    out = np.full((size, 2), np.nan)
    found = np.array([[np.nan if v is None else v for v in point[:2]] for point in plane[:size]], dtype=float)
    if found.size:
        out[: len(found)] = np.where(np.isfinite(found), found, np.nan)
    return out


def turn_back(
    stack: Sequence[Points], labels: Sequence[Sequence[int]], kept: Sequence[bool], after: Points | None
) -> list[Points]:
    """Planes of one site along the steps, the last turned to `after` (the next site's), each other to the one behind it.

    Where the samples are not `kept` from a step to the next, class means take their place.
    """
    last = stack[-1] if after is None else turned(stack[-1], after)
    out = [last]
    for t in range(len(stack) - 2, -1, -1):
        here, there = stack[t], out[-1]
        if kept[t]:
            out.append(turned(here, there))
        else:
            classes = sorted(set(labels[t]) & set(labels[t + 1]))
            means = (class_means(here, labels[t], classes), class_means(there, labels[t + 1], classes))
            out.append(here @ rotation(*means))
    return out[::-1]


def turned(points: Points, towards: Points) -> Points:
    """The points, turned and mirrored so that they lie as near as they can to others."""
    return points @ rotation(points, towards)


def rotation(points: Points, towards: Points) -> Points:
    """The orthogonal (2, 2) that brings points nearest to others: orthogonal Procrustes, of those that both have.

    >>> turn = np.array([[0.0, 1.0], [-1.0, 0.0]])
    >>> some = np.array([[3.0, 0.0], [0.0, 1.0], [-3.0, -1.0]])
    >>> np.allclose(rotation(some, some @ turn), turn)
    True
    """
    if len(points) != len(towards):
        return np.eye(2)
    both = np.isfinite(points).all(1) & np.isfinite(towards).all(1)
    if not both.any():
        return np.eye(2)
    a, b = points[both], towards[both]
    a, b = (x / max(float(np.abs(x).max()), 1e-300) for x in (a, b))  # squares stay in range
    left, _, right = np.linalg.svd(a.T @ b)
    return np.asarray(left @ right)


def class_means(points: Points, labels: Sequence[int], classes: Sequence[int]) -> Points:
    """(classes, 2): the mean of each class's points."""
    at = np.array(labels)
    found = [points[(at == k) & np.isfinite(points).all(1)] for k in classes]
    return np.array([some.mean(0) if len(some) else [np.nan, np.nan] for some in found]).reshape(-1, 2)


def scaled(points: Points) -> Points:
    """Points about their middle, most of them within ±0.8: each picture has its own scale."""
    sound = points[np.isfinite(points).all(1)]
    if not len(sound):
        return points
    middle = (np.quantile(sound, EDGE, 0) + np.quantile(sound, 1 - EDGE, 0)) / 2
    reach = np.quantile(np.abs(sound - middle).max(1), EDGE)
    return np.asarray((points - middle) / (1.25 * reach if reach > 0 else 1.0))


def quantized(points: Points, edge: float) -> npt.NDArray[np.int16]:
    """Whole numbers from −LARGEST to LARGEST, which is the edge; MISSING where there is no number."""
    inside = np.clip(points / edge, -1, 1) * LARGEST
    return np.where(np.isfinite(points), np.rint(np.nan_to_num(inside)), MISSING).astype("<i2")


def packed(values: npt.NDArray[np.int16]) -> str:
    """Two bytes each, the lower one first, in base64."""
    return base64.b64encode(values.astype("<i2").tobytes()).decode("ascii")


def three_classes_packed(series: TrainingSeries) -> dict[str, Any] | None:
    """Three classes in three dimensions at every step that has them: samples, then three means, then three rows."""
    known = [view.record.collapse_view for view in series.views]
    there = [one for one in known if one]
    if not there or any(one["classes"] != there[-1]["classes"] for one in there):
        return None
    taken = [min(one["labels"].count(k) for one in there) for k in range(3)]
    labels = [k for k in range(3) for _ in range(taken[k])]
    blocks: list[Points] = []
    after: Points | None = None
    for one in reversed(known):
        block = np.full((len(labels) + 6, 3), np.nan)
        if one:
            rows = [i for k in range(3) for i in [j for j, label in enumerate(one["labels"]) if label == k][: taken[k]]]
            parts = [[one["features"][i] for i in rows], one["means"], one["rows"] or [[np.nan] * 3] * 3]
            block = np.concatenate([np.array(part, dtype=float).reshape(-1, 3) for part in parts])
            if after is not None and float(np.nansum(block[:, 2] * after[:, 2])) < 0:
                block[:, 2] *= -1  # the third direction has no sign of its own
            after = block
        blocks.append(block)
    last = series.views[-1].record
    names = [beginning(clean(last.classes[k]), 24) for k in there[-1]["classes"]]
    return {
        "classes": there[-1]["classes"], "names": names, "labels": labels, "far": FAR,
        "rows": any(one["rows"] for one in there), "data": packed(quantized(np.stack(blocks[::-1]), FAR)),
    }  # fmt: skip


def rounded(value: float | None) -> float | None:
    """Five digits: more than any screen shows."""
    return None if value is None else float(f"{value:.5g}")
