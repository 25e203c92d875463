"""Figure 3: the law on CIFAR-10, on imbalanced data, and at several learning rates of SGD.

    layerlaw reproduce fig3            three depths × five learning rates of Adam on four samples, and 9 layers with SGD:
                                       63 networks for each of 10 seeds
    layerlaw reproduce fig3 --quick    one learning rate, 5 epochs, an imbalanced sample a fifth as large

The learning rate of Adam is the one with the best law, as in the paper, chosen anew for every seed among trained networks;
chance is given the same choice. The paper shows the panels without numbers: judged by `LawFit.holds` in every seed
(not at 4 layers with Adam: three steps and a choice among five rates leave a test that true laws mostly fail).

Imbalanced: classes 0–4 with 500 images, classes 5–9 with 100. The paper finds the half-life "significantly larger than in
the balanced case" of 1000 images: a t test over seeds of the ratio. That comparison has three times the images on one side;
controls of ours: a balanced sample of as many images (300 per class), the other protocols, and the cosines between the rows
of the classifier, in which the paper suspects the cause (minority collapse would bring those of the minority classes to 1;
−1/9 is a simplex).
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from statistics import fmean

from torch import Tensor

from layerlaw.experiments.drawing import EVAL_TITLE, curves_panel, ends_table, grid_table, law_sheet
from layerlaw.experiments.numbers import UNCLAIMED, Claim, above, holds, power, row
from layerlaw.experiments.runs import ANEW, ENDS, LAW, OURS, PROTOCOLS, Runs, protocol_table
from layerlaw.experiments.setting import ADAM, Setting, samples, stand_in
from layerlaw.lab import Recipe, Run, Shape
from layerlaw.lab.schedule import BatchNormMode
from layerlaw.measures.collapse import mean_cosine
from layerlaw.outcome import Outcome, Row, Table
from layerlaw.sheet import Sheet
from layerlaw.wording import sentence

TITLE = "The law on CIFAR-10, on imbalanced data and over learning rates"
DEPTHS = (4, 8, 20)
SGD = (0.01, 0.03, 0.1)
MAJORITY, MINORITY = slice(5), slice(5, 10)  # classes
SIMPLEX = -1 / 9  # cosine of any two rows of a simplex of 10 classes
Cells = dict[tuple[str, int], Runs]  # data, depth
NAMES = {
    "cifar10": "CIFAR-10",
    "imbalanced": "imbalanced",
    "equal": "balanced, as many images",
    "fashion_mnist": "balanced, 1000 images",
}
SHOWN = [(name, depth) for name in ("cifar10", "imbalanced") for depth in DEPTHS]
BESIDE = ("imbalanced", "equal", "fashion_mnist")
COMPARED = (
    "the imbalanced half-life is {:.2f} times the one of 1000 balanced images, and {:.2f} times the one of as many balanced "
    "images ({:.2f} with balanced chunks, {:.2f} with running statistics)."
)
LARGER = above(1.0, "larger")
FLAT = "D does not fall with depth in one of the networks"


def run(setting: Setting) -> Outcome:
    """Train the grid, report what came out."""
    few, many, tests = (20, 100, 50) if setting.quick else (100, 500, 200)
    data = {
        "cifar10": samples(setting, "cifar10", tests=tests),
        "fashion_mnist": samples(setting, "fashion_mnist", tests=tests),
        "imbalanced": samples(setting, "fashion_mnist", (many,) * 5 + (few,) * 5, tests=tests),
        "equal": samples(setting, "fashion_mnist", (many + few) // 2, tests=tests),
    }
    base = Recipe(epochs=setting.epochs(quick=5))
    rates = (1e-3,) if setting.quick else ADAM
    adam = base.grid(network=map(Shape.even, DEPTHS), data=data, learning_rate=rates, seed=setting.seeds(least=10))
    sgd = replace(base, network=Shape.even(9), data="fashion_mnist", optimizer="sgd")
    recipes = [*adam, *sgd.grid(learning_rate=SGD, seed=setting.seeds(least=10))]
    runs = setting.train("grid", recipes, data, PROTOCOLS)
    grid = runs.by(lambda r: (r.recipe.data, r.recipe.network.depth))
    by_rate = grid.pop(("fashion_mnist", 9)).by(lambda r: r.recipe.learning_rate)
    best = {cell: some.best() for cell, some in grid.items()}
    found = [
        r
        for name, d in SHOWN
        for r in best[name, d].rows(f"{name}-{d}", LAW, {"holds": _claim(d, len(rates))}, choices=len(rates))
    ]
    found += [r for rate, some in by_rate.items() for r in some.rows(f"sgd-9-lr-{rate:g}", LAW, {"holds": holds()})]
    found += [*_imbalance_rows(best), *_cosine_rows(best)]
    names = [f"{NAMES[r.recipe.data]}, {r.recipe.optimizer}, {r.recipe.network.depth} layers" for r in runs]
    tables = [
        _protocols(grid, best, by_rate, len(rates)),
        grid_table("Every network of the grid", runs, names=names),
        ends_table("What comes out at the end", runs, names=names),
        _cosine_table(best),
    ]
    small = setting.note("Quick run: 100 and 20 images per class instead of 500 and 100.")
    notes = [*_notes(found), *stand_in(setting, "cifar10"), *small]
    return Outcome("fig3", TITLE, found, _sheets(grid, best, by_rate), tables, notes)


def _claim(depth: int, choices: int) -> Claim:
    """That the law holds; not judged where even a network that obeys it would mostly not pass."""
    passes = power(depth - 1, choices)
    if passes >= 0.5:
        return holds()
    words = f"not judged: equal steps with noise of 20 % pass in {passes:.0%}"
    return Claim("law", tolerance=words)


def _imbalance_rows(best: Cells) -> list[Row]:
    found = []
    for depth in DEPTHS:
        ours, equal, small = (best[name, depth] for name in BESIDE)
        name = f"imbalanced-{depth}/half-life"
        found.append(ours.row(name, "half-life", reason=FLAT))
        for end in ENDS.values():
            claim = LARGER if not end else UNCLAIMED
            for other, runs in (("1000", small), ("equal", equal)):
                values = ours.over(runs, f"half-life{end}")
                what = f"{name}-over-balanced-{other}{end}"
                found.append(row(what, values, claim if other == "1000" else UNCLAIMED, reason=FLAT))
    return found


def _protocols(grid: Cells, best: Cells, by_rate: dict[float, Runs], choices: int) -> Table:
    """Adam's rate as chosen in the authors' protocol, and chosen anew in each."""
    claims: dict[str, Callable[[BatchNormMode], bool | None]] = {
        f"Fig. 3: the law holds, {NAMES[name]}, {depth} layers": partial(best[name, depth].mostly_hold, choices=choices)
        for name, depth in SHOWN
        if _claim(depth, choices).agrees is not None
    }
    claims |= {f"Fig. 3: the law holds, SGD at {rate:g}, 9 layers": runs.mostly_hold for rate, runs in by_rate.items()}

    def longer(other: str, depth: int, *, anew: bool = False) -> Callable[[BatchNormMode], bool | None]:
        def verdict(mode: BatchNormMode) -> bool | None:
            ours, theirs = (
                grid[name, depth].best(batchnorm=mode) if anew else best[name, depth] for name in ("imbalanced", other)
            )
            return row("", ours.over(theirs, f"half-life{ENDS[mode]}"), LARGER, reason=FLAT).reproduced

        return verdict

    for depth in DEPTHS:
        claims[f"Fig. 3: imbalanced half-life larger, {depth} layers"] = longer("fashion_mnist", depth)
        claims[f"{OURS}imbalanced half-life larger than with as many images, {depth} layers"] = longer("equal", depth)
    if choices > 1:
        claims |= {f"Fig. 3: the law holds, {NAMES[n]}, {d} layers, {ANEW}": grid[n, d].holds_anew for n, d in SHOWN}
        for depth in DEPTHS:
            name = f"Fig. 3: imbalanced half-life larger, {depth} layers, {ANEW}"
            claims[name] = longer("fashion_mnist", depth, anew=True)
    return protocol_table(claims)


def classifier_cosines(run: Run, *, centered: bool = False) -> tuple[float, float]:
    """Mean cosine between the classifier's rows, of the minority classes and of the majority classes."""
    W = _classifier(run)
    W = (W - W.mean(0) if centered else W).double()
    return float(mean_cosine(W[MINORITY])), float(mean_cosine(W[MAJORITY]))


def _classifier(run: Run) -> Tensor:
    assert run.state is not None
    return run.state["classifier.weight"]


def _cosine_rows(best: Cells) -> list[Row]:
    found = []
    for depth in DEPTHS:
        for data, name in (("imbalanced", "imbalanced"), ("equal", "balanced-equal")):
            pairs = [classifier_cosines(r) for r in best[data, depth]]
            for i, group in enumerate(("minority", "majority")):
                found.append(row(f"{name}-{depth}/cosine-{group}-classes", [pair[i] for pair in pairs]))
    return found


def _cosine_table(best: Cells) -> Table:
    columns = ("network", "lr", "seed", "minority", "majority", "minority centered", "majority centered", "norm ratio")
    lines = []
    for name, depth in [(name, depth) for name in BESIDE for depth in DEPTHS]:
        for r in best[name, depth]:
            norms = _classifier(r).norm(dim=1)
            cosines = (*classifier_cosines(r), *classifier_cosines(r, centered=True))
            ratio = float(norms[MINORITY].mean() / norms[MAJORITY].mean())
            lines.append((f"{NAMES[name]}, {depth} layers", r.recipe.learning_rate, r.recipe.seed, *cosines, ratio))
    note = (
        f"Mean cosine of pairs of rows of the classifier, plain and with the mean of all rows taken off; a simplex has "
        f"{SIMPLEX:.3f}, collapsed classifiers 1. Minority are classes 5–9 in every network, also where they are not fewer."
    )
    return Table("Cosines between the classifier's rows", columns, lines, sentence(note))


def _sheets(grid: Cells, best: Cells, by_rate: dict[float, Runs]) -> list[Sheet]:
    shown, behind = ({f"{NAMES[name]}, {d} layers": some[name, d] for name, d in SHOWN} for some in (best, grid))
    shown |= {f"SGD, lr {rate:g}, 9 layers": runs for rate, runs in by_rate.items()}
    panels = [curves_panel(f"{depth} layers", {NAMES[k]: best[k, depth] for k in BESIDE}) for depth in DEPTHS]
    return [
        law_sheet("The law in many settings", shown, faint=behind, words=()),
        law_sheet(EVAL_TITLE, shown, batchnorm="running"),
        Sheet("Imbalanced against balanced, with 1000 and with as many images", panels, share_y=True),
    ]


def _notes(found: Sequence[Row]) -> list[str]:
    known = {r.name: r.ours for r in found if r.ours is not None}
    notes = []
    for depth in DEPTHS:
        parts = ("1000", "equal", "equal-balanced", "equal-eval")
        ratios = [known.get(f"imbalanced-{depth}/half-life-over-balanced-{part}") for part in parts]
        nothing = "no half-life on one side, nothing to compare."
        notes.append(f"{depth} layers: {nothing if None in ratios else COMPARED.format(*ratios)}")
    minor, major = (
        [v for name, v in known.items() if name.startswith("imbalanced") and f"cosine-{group}" in name]
        for group in ("minority", "majority")
    )
    if minor and major:
        low, high = fmean(minor), fmean(major)
        near = "nearer to collapse" if low > high + 0.05 else "no nearer to collapse"
        notes.append(
            f"In the imbalanced networks the rows of the classifier have a mean cosine of {low:.3f} among the minority and "
            f"{high:.3f} among the majority classes (a simplex: {SIMPLEX:.3f}): the minority is {near}."
        )
    return notes
