"""Figure 1: the law in networks of 4, 8 and 20 layers trained with SGD, momentum and Adam on Fashion-MNIST.

    layerlaw reproduce fig1            the whole grid of learning rates: 57 networks for each of 10 seeds
    layerlaw reproduce fig1 --quick    the nine networks shown, 100 epochs

Every seed draws its own 1000 training images. Rows at the learning rates that the authors show, in their BatchNorm mode; the
rate with the best law (how the paper chose), the other protocols and the whole grid beside them. The paper's claim that the
law holds is judged by `LawFit.holds` in every seed; its nine r, −0.997 to −1.000, within 0.01, and ρ within 0.03 (learning
rates are from the authors' scripts, ρ and half-life from their talks); and its remark that 20-layer networks end with a
larger D than 8-layer ones, by t tests over seeds. The first images in file order (three seeds, at the authors' rates) stand
beside the drawn ones. Other protocols are asked twice: at the same rates, and with the rate chosen anew in each.
"""

from collections.abc import Callable, Sequence
from functools import partial
from statistics import fmean, median

from layerlaw.experiments.drawing import EVAL_LONG_TITLE, across_table, grid_table, law_sheet
from layerlaw.experiments.numbers import Claim, above, holds, row, within
from layerlaw.experiments.runs import ANEW, ENDS, LAW, PROTOCOL_WORDS, PROTOCOLS, Runs, protocol_table, record_of
from layerlaw.experiments.setting import ADAM, FILE_ORDER, Data, Images, Setting, samples
from layerlaw.lab import Recipe, Shape
from layerlaw.lab.schedule import BatchNormMode
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
LARGER = above(1, "larger", ratio=True)
FACTORS = {("adam", 8): (0.53, 1.1), ("adam", 20): (0.818, 3.45)}  # the authors' ρ and half-life


def run(setting: Setting) -> Outcome:
    """Train the grid, report what came out."""
    images = samples(setting, "fashion_mnist")
    base = Recipe(data="fashion_mnist", epochs=setting.epochs(quick=100))
    recipes = []
    for (optimizer, depth), (rate, _) in SHOWN.items():
        rates = (rate,) if setting.quick else RATES[optimizer]
        grid = {"optimizer": (optimizer,), "network": (Shape.even(depth),), "learning_rate": rates}
        recipes += base.grid(**grid, seed=setting.seeds(least=10))
        if not setting.quick:
            recipes += base.grid(**{**grid, "learning_rate": (rate,)}, data=(FILE_ORDER,), seed=setting.seeds()[:3])
    data: Data = {"fashion_mnist": images, FILE_ORDER: images(None)}
    everything = setting.train("grid", recipes, data, PROTOCOLS, shared="fig1")
    runs, ordered = everything.at(data="fashion_mnist"), everything.at(data=FILE_ORDER)
    cells = runs.by(lambda r: (str(r.recipe.optimizer), r.recipe.network.depth))
    shown = {cell: cells[cell].at(learning_rate=rate) for cell, (rate, _) in SHOWN.items()}
    first = ordered.by(lambda r: (str(r.recipe.optimizer), r.recipe.network.depth))
    found = [one for cell in SHOWN for one in _rows(cell, shown[cell], cells[cell])]
    found += [
        row(f"{name}/final-D-20-over-8{end}", deeper(shown, name, end), LARGER if not end else Claim())
        for name in RATES
        for end in ENDS.values()
    ]
    for (optimizer, depth), some in first.items():
        found += some.rows(f"{optimizer}-{depth}/{FILE_ORDER}", ("holds", "pearson", "rho"))
    titles = {cell: f"{cell[0]}, {cell[1]} layers, lr {rate:g}" for cell, (rate, _) in SHOWN.items()}
    panels, behind = ({title: some[cell] for cell, title in titles.items()} for some in (shown, cells))
    best = {f"{o}, {depth} layers, best of the grid": cells[o, depth].best() for o, depth in SHOWN}
    words = ("BatchNorm as the authors had it (batches of 100).",)
    sheets = [
        law_sheet("D at the authors' learning rates", panels, faint=behind, words=words),
        law_sheet(EVAL_LONG_TITLE, panels, batchnorm="running"),
        *([] if setting.quick else [law_sheet("The learning rate with the best law, as the paper chose it", best)]),
        _planes(cells["adam", 8].at(learning_rate=1e-3).sound, images),
    ]
    survives: dict[str, Callable[[BatchNormMode], bool | None]] = {
        f"Fig. 1: the law holds, {title}": shown[cell].mostly_hold for cell, title in titles.items()
    }
    survives |= {
        f"Fig. 1: 20 layers end with a larger D than 8, {name}": partial(_deeper, shown, name) for name in RATES
    }
    if not setting.quick:
        survives |= {f"Fig. 1: the law holds, {o}, {d} layers, {ANEW}": cells[o, d].holds_anew for o, d in SHOWN}
    tables = [
        across_table("Over seeds and images", panels),
        protocol_table(survives),
        grid_table("Every network of the grid", runs),
    ]
    return Outcome("fig1", TITLE, found, sheets, tables, _notes(found, runs))


def deeper(shown: dict[tuple[str, int], Runs], optimizer: str, end: str = "") -> list[float | None]:
    """The final D of 20 layers over that of 8, seed by seed."""
    return shown[optimizer, 20].over(shown[optimizer, 8], f"final-D{end}")


def _deeper(shown: dict[tuple[str, int], Runs], optimizer: str, mode: BatchNormMode) -> bool | None:
    return row("", deeper(shown, optimizer, ENDS[mode]), LARGER).reproduced


def _rows(cell: tuple[str, int], shown: Runs, grid: Runs) -> list[Row]:
    name, (rate, paper) = f"{cell[0]}-{cell[1]}", SHOWN[cell]
    claims = {"holds": holds(), "pearson": within(paper, 0.01)}
    names: tuple[str, ...] = LAW
    if cell in FACTORS:
        rho, half_life = FACTORS[cell]
        claims |= {
            "rho": within(rho, 0.03),
            "half-life": Claim(half_life),
        }  # half-life is ρ again: it does not count twice
        names = (*LAW[:3], "half-life", *LAW[3:])
    found = shown.rows(name, names, claims, among=grid)
    choices = len({r.recipe.learning_rate for r in grid})
    if choices > 1:
        best = grid.best()
        rates = [r.recipe.learning_rate for r in best]
        found += [
            row(f"{name}/holds-best-of-grid", best.values("holds", choices)),
            row(f"{name}/pearson-best-of-grid", best.values("pearson"), Claim(paper)),
            row(f"{name}/pearson-best-of-grid-untrained-too", grid.best(trained=False).values("pearson"), Claim(paper)),
            Row(f"{name}/learning-rate-best-of-grid", rate, median(rates), min(rates), max(rates)),
        ]
    return found


def _notes(found: Sequence[Row], runs: Runs) -> list[str]:
    """What held, counted."""

    cells = [f"{optimizer}-{depth}" for optimizer, depth in SHOWN]
    known = {r.name: r.ours or 0.0 for r in found}
    counts = {mode: sum(known[f"{cell}/holds{end}"] > 0.5 for cell in cells) for mode, end in ENDS.items()}
    recipes = [r.recipe for r in runs if r.diverged is not None]
    lost = sorted({f"{r.optimizer}-{r.network.depth} at {r.learning_rate:g}" for r in recipes})
    well = runs.trained.by(lambda r: r.recipe.network.depth)
    shares = {depth: fmean(v for v in some.values("holds") if v is not None) for depth, some in sorted(well.items())}
    words = ", ".join(f"{depth} layers {share:.0%} of {len(well[depth])}" for depth, share in shares.items())
    survived = ", ".join(f"{n} ({PROTOCOL_WORDS[mode]})" for mode, n in counts.items())
    return [
        f"At the authors' learning rates the law holds in most seeds in so many of 9 cells: {survived}.",
        f"Over the whole grid it holds in these shares of the trained networks (loss ≤ 0.1): {words}.",
        f"Diverged: {', '.join(lost)}." if lost else "No network diverged.",
    ]


def _planes(runs: Runs, images: Images) -> Sheet:
    """The principal plane of every layer of the 8-layer network trained with Adam."""
    title = "Principal planes of the 8-layer network"
    if not runs:
        return Sheet(title, [])
    data = images(runs[0].recipe.seed)
    record = record_of(runs[0], data)
    planes = [[(a, b) for a, b in site.plane] for site in record.sites if site.plane and site.in_fit]
    panels = [
        PlanePanel(f"layer {i}" if i else "input", plane, record.plane_labels, data.class_names)
        for i, plane in enumerate(planes)
    ]
    return Sheet(f"{title} (Adam, seed {runs[0].recipe.seed}, batch statistics)", panels, columns=4)
