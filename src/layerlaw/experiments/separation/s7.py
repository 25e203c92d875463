"""Figure S7: which layers converge first. D_{l+1}/D_l over training, in the 8-layer network on CIFAR-10 (Adam).

    layerlaw reproduce s7            60 networks: five learning rates, at least ten seeds; the chosen ones once more
    layerlaw reproduce s7 --quick    two networks on Fashion-MNIST, 60 epochs instead of 600 (told as the paper's)

A minute on a GPU. The authors' rate for CIFAR-10 is not known: per seed the one with the best law at the last epoch, as
the paper chose. Layer l (1 … 7) has converged at the epoch from which on its ratio stays within 10 % of its final value.
Agreement, in the authors' BatchNorm mode: the mean over seeds of Spearman's correlation between layer and epoch of
convergence is positive ("lower layers converge first"); likewise between layer and ratio at epoch 20 ("in early stages
the bottom layers learn faster"). Page's test says whether ten seeds could agree so by chance. Epochs are told as fine as
the probes: 5 up to epoch 220, then 10. Two of our controls: other shares than 10 %, and a constant learning rate at the
rate chosen, because the drops at epochs 200 and 400 move all ratios at once. Page's test needs ten seeds: fewer are never
taken, --seeds asks for more.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise

from layerlaw.experiments.drawing import LOSS, caption, epoch_series
from layerlaw.experiments.fig1 import RATES, SHOWN
from layerlaw.experiments.images import TITLES, samples, stand_in
from layerlaw.experiments.moments import page_p, probed, scaled, settling, shortened, spearman, told
from layerlaw.experiments.numbers import best_of_seeds, law_row, mean_of, row, trouble
from layerlaw.experiments.setting import Setting
from layerlaw.lab import Recipe, Run, Schedule, Shape
from layerlaw.lab.schedule import BatchNormMode
from layerlaw.outcome import Outcome, Row, Table
from layerlaw.sheet import Panel, Series, Sheet

TITLE = "Lower layers converge first"
DEPTH = 8
SEEDS = 10
PROBES = (*range(0, 221, 5), *range(230, 601, 10))
QUICK_PROBES = range(0, 601, 30)
EARLY = 20  # epoch
SHARES = (0.05, 0.1, 0.2)
CONVERGED = 0.1
ENOUGH = f"At least {SEEDS} seeds, because a test of order over seeds needs them; --seeds asks for more."


def run(setting: Setting) -> Outcome:
    """Train the grid, choose the rate, follow the ratios; then once more with a constant rate."""
    total = setting.epochs(quick=60)
    data = {"cifar10": samples(setting, "cifar10")}
    base = Recipe(Shape.even(DEPTH), "cifar10", epochs=total)
    rates = (SHOWN["adam", DEPTH][0],) if setting.quick else RATES["adam"]
    schedule = Schedule(scaled((*QUICK_PROBES, EARLY) if setting.quick else PROBES, total))
    runs = setting.train("ratios", base.grid(learning_rate=rates, seed=setting.seeds(SEEDS)), data, schedule)
    best = best_of_seeds(runs)
    constant = setting.train("constant", [replace(r.recipe, drops=()) for r in best], data, schedule) if best else []
    early = scaled((EARLY,), total)[0]
    return Outcome(
        "s7",
        TITLE,
        [*_rows(best, early), *_constant_rows(constant)],
        _sheets(best, constant),
        [_layer_table(best), _run_table(runs, early)],
        [
            *shortened(total),
            *stand_in(setting, "cifar10"),
            *_notes(best, setting),
            *([] if setting.quick else [ENOUGH]),
        ],
    )


def ratios(run: Run, epoch: int, *, batchnorm: BatchNormMode = "batch") -> list[float | None]:
    """D_{l+1}/D_l of every hidden layer: below 1 where it separates the classes better than the layer before."""
    D = run.measurement(epoch=epoch, batchnorm=batchnorm).separation
    pairs = pairwise(D)
    return [None if a is None or b is None or a <= 0 else b / a for a, b in pairs]


def convergence(run: Run, *, share: float = CONVERGED, batchnorm: BatchNormMode = "batch") -> list[int | None]:
    """Per hidden layer, the epoch from which on its ratio stays within a share of its final value."""
    epochs = probed(run, batchnorm=batchnorm)
    courses = zip(
        *(ratios(run, epoch, batchnorm=batchnorm) for epoch in epochs), strict=True
    )  # one layer over the epochs
    return [settling(epochs, course, share) for course in courses]


def order(run: Run, *, share: float = CONVERGED, batchnorm: BatchNormMode = "batch") -> float | None:
    """Spearman's correlation of the layer and its epoch of convergence: positive when lower layers converge first."""
    found = convergence(run, share=share, batchnorm=batchnorm)
    known = [float(epoch) for epoch in found if epoch is not None]
    return spearman(range(len(found)), known) if len(known) == len(found) else None


def head_start(run: Run, epoch: int, *, batchnorm: BatchNormMode = "batch") -> float | None:
    """Spearman's correlation of the layer and its ratio at an epoch: positive when lower layers are ahead."""
    found = [r for r in ratios(run, epoch, batchnorm=batchnorm) if r is not None]
    return spearman(range(len(found)), found) if len(found) == run.recipe.network.depth - 1 else None


def _rows(runs: Sequence[Run], early: int) -> list[Row]:
    why = trouble(runs) or ("no run to choose from" if not runs else "all layers converge at one probe")
    judged = {"holds": lambda mean: mean > 0, "tolerance": "> 0", "reason": why}
    orders = [order(r) for r in runs]
    known = [v for v in orders if v is not None]
    layers = DEPTH - 1
    first, last = [[told(convergence(r)[i], r.recipe.epochs) for r in runs] for i in (0, -1)]
    return [
        row("layer-and-convergence/spearman", orders, paper="lower layers first", **judged),  # type: ignore[arg-type]
        row("layer-and-convergence/spearman-eval", [order(r, batchnorm="running") for r in runs], reason=why),
        row("layer-and-convergence/page-p", [page_p(known, layers) if known else None], reason=why),
        row("layer-and-convergence/seeds-above-0", [sum(v > 0 for v in known) if known else None], reason=why),
        *(
            row(f"layer-and-convergence/spearman-within-{share:.0%}", [order(r, share=share) for r in runs], reason=why)
            for share in SHARES
            if share != CONVERGED
        ),
        row("convergence-epoch/layer-1", first, reason=why),
        row(f"convergence-epoch/layer-{layers}", last, reason=why),
        row(
            f"layer-and-ratio-at-{EARLY}/spearman",
            [head_start(r, early) for r in runs],
            paper="bottom layers learn faster",
            **judged,  # type: ignore[arg-type]
        ),
        row(
            f"layer-and-ratio-at-{EARLY}/spearman-eval",
            [head_start(r, early, batchnorm="running") for r in runs],
            reason=why,
        ),
        law_row("law/pearson", runs, "pearson"),
        law_row("law/pearson-eval", runs, "pearson", batchnorm="running"),
    ]


def _constant_rows(runs: Sequence[Run]) -> list[Row]:
    why = trouble(runs) or "all layers converge at one probe"
    orders = [order(r) for r in runs if r.diverged is None]
    known = [v for v in orders if v is not None]
    return [
        row("constant-rate/spearman", orders, reason=why),
        row("constant-rate/page-p", [page_p(known, DEPTH - 1) if known else None], reason=why),
    ]


def _sheets(best: Sequence[Run], constant: Sequence[Run]) -> list[Sheet]:
    modes: tuple[BatchNormMode, ...] = ("batch", "running")
    panels = [_course(f"{batchnorm} mode", best, batchnorm) for batchnorm in modes] if best else []
    several = "Mean over seeds of the ratio" if len(best) > 1 else "The ratio"
    settled = _moments(best, constant)
    return [
        Sheet(
            "D of a layer over D of the layer before",
            panels,
            2,
            f"{several} of every hidden layer, the first after the input.",
        ),
        Sheet("When each layer has converged", [settled], 1, caption([settled], "Train mode.")),
    ]


def _course(title: str, runs: Sequence[Run], batchnorm: BatchNormMode) -> Panel:
    epochs = probed(runs[0], batchnorm=batchnorm)
    series = []
    for layer in range(DEPTH - 1):

        def value(r: Run, epoch: int, layer: int = layer) -> float | None:
            return ratios(r, epoch, batchnorm=batchnorm)[layer]

        mean = epoch_series(f"layer {layer + 1}", runs, epochs, value, total=runs[0].recipe.epochs)
        series.append(replace(mean, low=None, high=None))  # seven bands would cover one another
    return Panel(title, tuple(series), xlabel="epoch", ylabel="ratio", log_y=False)


def _moments(best: Sequence[Run], constant: Sequence[Run]) -> Panel:
    series = []
    for label, runs in (("falling learning rate", best), ("constant learning rate", constant)):
        found = [[told(epoch, r.recipe.epochs) for epoch in convergence(r)] for r in runs if r.diverged is None]
        known = [[epoch for epoch in layer if epoch is not None] for layer in zip(*found, strict=True)]
        if known and all(known):
            mean = tuple(mean_of(layer) for layer in known)
            ends = (tuple(map(min, known)), tuple(map(max, known))) if len(runs) > 1 else (None, None)
            series.append(Series(tuple(range(1, len(known) + 1)), mean, label, *ends))
    return Panel("", tuple(series), xlabel="hidden layer", ylabel="epoch", log_y=False)


def _epochs(
    runs: Sequence[Run], layer: int, *, share: float = CONVERGED, batchnorm: BatchNormMode = "batch"
) -> list[int | None]:
    """When a layer has converged, per seed, in the paper's epochs."""
    return [told(convergence(r, share=share, batchnorm=batchnorm)[layer], r.recipe.epochs) for r in runs]


def _layer_table(runs: Sequence[Run]) -> Table:
    columns = (
        "layer",
        *(f"within {share:.0%}" for share in SHARES),
        "within 10% eval",
        "final ratio",
        "final ratio eval",
    )
    rows: list[tuple[float | None, ...]] = []
    for layer in range(DEPTH - 1):
        settled = [mean_of(_epochs(runs, layer, share=share)) for share in SHARES]
        evals = mean_of(_epochs(runs, layer, batchnorm="running"))
        final = [
            mean_of(ratios(r, r.epoch, batchnorm=batchnorm)[layer] for r in runs) for batchnorm in ("batch", "running")
        ]
        rows.append((layer + 1, *settled, evals, *final))
    note = "Mean epoch over the seeds from which on the ratio stays within a share of its final value."
    return Table("Every layer, at the chosen rates", columns, tuple(rows), note)


def _run_table(runs: Sequence[Run], early: int) -> Table:
    spans = tuple(f"Spearman {share:.0%}" for share in SHARES)
    columns = ("lr", "seed", "r", *spans, "Spearman 10% eval", f"layer and ratio at {EARLY}", LOSS)
    rows: list[tuple[str | float | None, ...]] = []
    for run in runs:
        law = None if run.diverged is not None else run.law()
        if law is None:
            rows.append((run.recipe.learning_rate, run.recipe.seed, trouble([run]), *(None,) * 6))
            continue
        orders = [order(run, share=share) for share in SHARES]
        rest = (order(run, batchnorm="running"), head_start(run, early), run.losses[-1])
        rows.append((run.recipe.learning_rate, run.recipe.seed, law.pearson, *orders, *rest))
    return Table("Every network of the grid", columns, tuple(rows))


def _notes(runs: Sequence[Run], setting: Setting) -> list[str]:
    if not runs:
        return []
    rates: dict[float, int] = {}
    for r in runs:
        rates[r.recipe.learning_rate] = rates.get(r.recipe.learning_rate, 0) + 1
    chosen = ", ".join(f"{rate:g} ({count})" for rate, count in sorted(rates.items()))
    means = [mean_of(convergence(r)[layer] for r in runs) for layer in range(DEPTH - 1)]
    known = [m for m in means if m is not None]
    rising = sum(b > a for a, b in pairwise(known))
    where = "Fashion-MNIST" if setting.quick else TITLES["cifar10"]
    return [
        f"Learning rate with the best law on {where} (and in how many seeds): {chosen}.",
        f"The mean epoch of convergence rises at {rising} of the {len(known) - 1} steps from a layer to the next.",
    ]
