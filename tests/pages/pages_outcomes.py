"""Synthetic outcomes for the pages' tests: like those of real experiments, but made in a millisecond."""

from __future__ import annotations

import math

from pages_records import NASTIER, NASTY, falling

from layerlaw.outcome import Outcome, Row, Table
from layerlaw.sheet import Panel, PlanePanel, Series, Sheet


def law_panel(title: str, count: int = 8, *, seed: int = 0, note: str = "r = −0.998, ρ = 0.53\np = .0003") -> Panel:
    """Points with a range, their fit, and three runs in the background, one of which diverges."""
    D = falling(count, seed=seed)
    x = tuple(range(count))
    background = [falling(count, last=last, seed=seed) for last in (3.0, 60.0, 4e6)]
    return Panel(
        title,
        (
            *(Series(x, tuple(y), "other learning rates", style="faint") for y in background),
            Series((0, count - 1), (36.8, 0.4), "least squares", style="fit"),
            Series(x, tuple(D), "mean of 3 seeds", tuple(0.9 * d for d in D), tuple(1.1 * d for d in D)),
        ),
        note=note,
    )


def law_sheet() -> Sheet:
    """Three by three."""
    panels = [law_panel(f"{rule}, {n} layers", n, seed=n) for rule in ("SGD", "momentum", "Adam") for n in (4, 8, 20)]
    return Sheet("Three optimizers, three depths", tuple(panels), 3, "Whiskers: range over seeds.")


def epoch_sheet() -> Sheet:
    """One panel on linear axes with a marked epoch and a gap."""
    x = tuple(range(0, 601, 10))
    y = tuple(None if t == 300 else -1 + 0.8 * math.exp(-t / 60) for t in x)
    series = (Series(x, y, "8 layers", style="line"), Series(x, tuple(-0.9 for _ in x), "20 layers", style="line"))
    return Sheet("When?", (Panel("", series, "epoch", "Pearson r", log_y=False, marked=290.0),), 1)


def plane_sheet() -> Sheet:
    """Two planes of ten classes."""
    points = tuple((math.cos(i) * i, math.sin(i) * i) for i in range(40))
    return Sheet("Planes", tuple(PlanePanel(f"layer {k}", points, tuple(i % 10 for i in range(40))) for k in (0, 1)), 2)


def law_outcome(*, quick: bool = False) -> Outcome:
    """Four judged numbers of which two are reproduced, one the paper lacks; a table, notes, provenance."""
    rows = (
        Row("Adam, 8 layers: Pearson r", -0.997, -0.99812, -0.9987, -0.9972, True, "± 0.005"),
        Row("Adam, 8 layers: ρ", "≈ 0.53", 0.5274, 0.5251, 0.5302, True, "± 0.01"),
        Row("SGD, 20 layers: ρ", 0.85, None, reproduced=False, reason="diverged in epoch 12", tolerance="± 0.01"),
        Row("final D", 0.4, 0.6124, 0.6, 0.63, False, reason="the paper does not give its learning rate"),
        Row("Greenwood p (a control)", None, 0.00026, 9.9e-5, 0.00046),
    )
    cells = (("SGD", 0.001, 666, -0.99123, None), ("SGD | Nesterov", 0.3, 1, None, "diverged"))
    grid = Table("The grid", ("rule", "learning rate", "seed", "Pearson r", "why"), cells, "The best is taken.")
    provenance = {
        "command": "layerlaw reproduce fig1", "device": "NVIDIA H200", "wall_s": 1284.2, "seeds": [666, 1, 2],
        "quick": quick, "epochs": 600, "code_version": "0.1.0", "torch": "2.11.0", "data": {"fashion": "9f2c" * 16},
    }  # fmt: skip
    notes = ("Batch statistics, chunks of 100.", "With running statistics r = -0.985.")
    return Outcome("fig1", "The law holds", rows, (law_sheet(),), (grid,), notes, provenance)


def epoch_outcome() -> Outcome:
    """A small one, of a supplementary figure."""
    return Outcome("s4", "The law emerges", (Row("epoch", "about 300", 290.0, reproduced=True),), (epoch_sheet(),))


def nasty_outcome() -> Outcome:
    """Text that tries to be markup, in every place a text can stand."""
    series = (Series((0, 1, 2), (3.0, 2.0, 1.0), NASTY), Series((0, 1, 2), (2.0, 1.0, 0.5), f"_{NASTIER}"))
    panels = (Panel(NASTY, series, NASTIER, NASTY, note=f"{NASTY}\n{NASTIER}"), PlanePanel(NASTIER, ((0, 1),), (3,)))
    return Outcome(
        NASTIER,
        NASTY,
        (Row(NASTY, NASTIER, None, reason=NASTY, tolerance=NASTIER), Row(NASTIER, NASTY, 1.0, reproduced=False)),
        (Sheet(NASTY, panels, 2, NASTIER),),
        (Table(NASTY, (NASTIER, NASTY), ((NASTY, NASTIER),), NASTY),),
        (NASTY, NASTIER),
        {"command": NASTY, NASTIER: NASTY, "device": NASTIER, "data": {NASTY: NASTIER}},
    )


def bare_outcome() -> Outcome:
    """Nothing but a name."""
    return Outcome("planes", "Only pictures", (), (plane_sheet(),))
