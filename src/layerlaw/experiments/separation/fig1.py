"""Figure 1: the law in networks of 4, 8 and 20 layers trained with SGD, momentum and Adam on Fashion-MNIST.

    layerlaw reproduce fig1            the whole grid of learning rates: 57 networks per seed
    layerlaw reproduce fig1 --quick    the nine networks shown, 100 epochs

Rows at the learning rates that the authors show, in their BatchNorm mode; the rate with the best law (how the paper
chose), eval mode and the whole grid beside them. The paper's nine r lie between −0.997 and −1.000: ours agree when the
mean over seeds is at most −0.990.
"""

from collections.abc import Sequence
from statistics import median

from layerlaw.experiments.drawing import EVAL_LONG_TITLE, grid_table, law_sheet
from layerlaw.experiments.numbers import Claim, at_most, row, within
from layerlaw.experiments.runs import LAW, Runs, record_of
from layerlaw.experiments.setting import ADAM, Setting, samples
from layerlaw.lab import Recipe, Samples, Schedule, Shape
from layerlaw.law import CHANCE, STRAIGHT
from layerlaw.outcome import Outcome, Row
from layerlaw.sheet import PlanePanel, Sheet

TITLE = "The law of equi-separation over depths and optimizers"
SGD = (0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0)
RATES = {"sgd": SGD, "momentum": SGD, "adam": ADAM}
SHOWN = {  # the learning rate of the authors' panels, and their r
    ("sgd", 4): (0.3, -1.000),
    ("sgd", 8): (0.03, -0.998),
    ("sgd", 20): (0.01, -0.997),
    ("momentum", 4): (0.3, -0.999),
    ("momentum", 8): (0.01, -0.998),
    ("momentum", 20): (0.001, -0.998),
    ("adam", 4): (3e-3, -1.000),
    ("adam", 8): (1e-3, -0.997),
    ("adam", 20): (3e-4, -0.999),
}
FACTORS = {("adam", 8): (0.53, 1.1), ("adam", 20): (0.818, 3.45)}  # the authors' ρ and half-life


def run(setting: Setting) -> Outcome:
    """Train the grid, report what came out."""
    data = {"fashion_mnist": samples(setting, "fashion_mnist")}
    base = Recipe(data="fashion_mnist", epochs=setting.epochs(quick=100))
    recipes = []
    for (optimizer, depth), (rate, _) in SHOWN.items():
        rates = (rate,) if setting.quick else RATES[optimizer]
        grid = {"optimizer": (optimizer,), "network": (Shape.even(depth),), "learning_rate": rates}
        recipes += base.grid(**grid, seed=setting.seeds())
    runs = setting.train("grid", recipes, data, Schedule(test=True, permuted=True))
    cells = runs.by(lambda r: (str(r.recipe.optimizer), r.recipe.network.depth))
    shown = {cell: cells[cell].at(learning_rate=rate) for cell, (rate, _) in SHOWN.items()}
    found = [one for cell in SHOWN for one in _rows(cell, shown[cell], cells[cell])]
    titles = {cell: f"{cell[0]}, {cell[1]} layers, lr {rate:g}" for cell, (rate, _) in SHOWN.items()}
    panels, behind = ({title: some[cell] for cell, title in titles.items()} for some in (shown, cells))
    best = {f"{o}, {depth} layers, best of the grid": cells[o, depth].best() for o, depth in SHOWN}
    words = ("BatchNorm as the authors had it (batches of 100).",)
    sheets = [
        law_sheet("D at the authors' learning rates", panels, faint=behind, words=words),
        law_sheet(EVAL_LONG_TITLE, panels, batchnorm="running"),
        *([] if setting.quick else [law_sheet("The learning rate with the best law, as the paper chose it", best)]),
        _planes(cells["adam", 8].at(learning_rate=1e-3).sound, data["fashion_mnist"]),
    ]
    return Outcome("fig1", TITLE, found, sheets, [grid_table("Every network of the grid", runs)], _notes(found, runs))


def _rows(cell: tuple[str, int], shown: Runs, grid: Runs) -> list[Row]:
    name, (rate, paper) = f"{cell[0]}-{cell[1]}", SHOWN[cell]
    claims = {"pearson": at_most(STRAIGHT, paper)}
    names: tuple[str, ...] = LAW
    if cell in FACTORS:
        rho, half_life = FACTORS[cell]
        claims |= {"rho": within(rho, 0.03), "half-life": within(half_life, round(0.2 * half_life, 3))}
        names = (*LAW[:2], "half-life", *LAW[2:])
    found = shown.rows(name, names, claims)
    choices = len({r.recipe.learning_rate for r in grid})
    if choices > 1:
        best = grid.best()
        rates = [r.recipe.learning_rate for r in best]
        found += [
            row(f"{name}/pearson-best-of-grid", best.values("pearson"), Claim(paper)),
            row(f"{name}/greenwood-p-best-of-grid", best.values("greenwood-p", choices)),
            Row(f"{name}/learning-rate-best-of-grid", rate, median(rates), min(rates), max(rates)),
        ]
    return found


def _notes(found: Sequence[Row], runs: Runs) -> list[str]:
    """What held, counted."""

    def count(end: str, limit: float) -> int:
        return sum(r.ours is not None and r.ours <= limit for r in found if r.name.endswith(end))

    recipes = [r.recipe for r in runs if r.diverged is not None]
    lost = sorted({f"{r.optimizer}-{r.network.depth} at {r.learning_rate:g}" for r in recipes})
    return [
        f"At the authors' learning rates the mean r is at most −0.990 in {count('/pearson', STRAIGHT)} of 9 cells with "
        f"batch statistics, in {count('/pearson-eval', STRAIGHT)} of 9 with running statistics.",
        f"In {count('/greenwood-p', CHANCE)} of 9 cells the layers share the drop more evenly than a random split would "
        "(mean Greenwood p < 0.05).",
        f"Diverged: {', '.join(lost)}." if lost else "No network diverged.",
    ]


def _planes(runs: Runs, data: Samples) -> Sheet:
    """The principal plane of every layer of the 8-layer network trained with Adam."""
    title = "Principal planes of the 8-layer network"
    if not runs:
        return Sheet(title, [])
    record = record_of(runs[0], data)
    planes = [[(a, b) for a, b in site.plane] for site in record.sites if site.plane and site.in_fit]
    panels = [
        PlanePanel(f"layer {i}" if i else "input", plane, record.plane_labels, data.class_names)
        for i, plane in enumerate(planes)
    ]
    return Sheet(f"{title} (Adam, seed {runs[0].recipe.seed}, batch statistics)", panels, columns=4)
