"""Figure S4: networks of width 1000 on images of 32×32 pixels, Fashion-MNIST and CIFAR-10 in color, 4, 8 and 20 layers.

    layerlaw reproduce s4              2 data sets × 3 depths × 3 learning rates: 18 networks per seed of up to 22 million
                                       parameters (a few minutes on a GPU; not for a CPU)
    layerlaw reproduce s4 --quick      16×16 pixels, width 50, one learning rate, 8 epochs

The learning rate is the one with the best law, chosen anew for every seed; the names of the authors' figures give theirs,
which is given beside it. The paper says that the law emerges: ours agrees when the mean r over seeds is at most −0.990.
Control: with as many units as images noise alone looks separated, so D with permuted labels is shown at every layer, and
the ratio to it at the input and after the last hidden layer.
"""

from collections.abc import Sequence
from statistics import median_low

from layerlaw.experiments.drawing import both_modes, ends_table, floor_sheet, grid_table
from layerlaw.experiments.numbers import LAW_HOLDS, Claim, over, row
from layerlaw.experiments.runs import LAW, NO_RUN, Runs
from layerlaw.experiments.setting import TITLES, Setting, samples, stand_in
from layerlaw.lab import Recipe, Run, Schedule, Shape
from layerlaw.outcome import Outcome, Row

TITLE = "The law on larger images, in wide networks"
SHOWN = {  # learning rates in the names of the authors' figures
    ("fashion_mnist", 4): 1e-4,
    ("fashion_mnist", 8): 1e-4,
    ("fashion_mnist", 20): 3e-5,
    ("cifar10", 4): 1e-4,
    ("cifar10", 8): 3e-4,
    ("cifar10", 20): 3e-5,
}
RATES = (3e-5, 1e-4, 3e-4)


def run(setting: Setting) -> Outcome:
    """Train the grid, report what came out."""
    size, width = (16, 50) if setting.quick else (32, 1000)
    rates = (3e-3,) if setting.quick else RATES
    data = {name: samples(setting, name, size=size) for name in ("fashion_mnist", "cifar10")}
    base = Recipe(epochs=setting.epochs(quick=8))
    recipes = []
    for name, depth in SHOWN:
        shape = Shape.even(depth, inputs=data[name].inputs.shape[1], width=width)
        recipes += base.grid(data=[name], network=[shape], learning_rate=rates, seed=setting.seeds())
    runs = setting.train("grid", recipes, data, Schedule(test=True, permuted=True))
    grid = runs.by(lambda r: (r.recipe.data, r.recipe.network.depth))
    best = {cell: some.best() for cell, some in grid.items()}
    found = [r for cell in SHOWN for r in _rows(cell, best[cell], len(rates))]
    titles = {(name, depth): f"{TITLES[name]}, {depth} layers" for name, depth in SHOWN}
    names = [titles[r.recipe.data, r.recipe.network.depth] for r in runs]
    shown, behind = ({title: some[cell] for cell, title in titles.items()} for some in (best, grid))
    train, other = both_modes(shown, behind)
    tables = [
        grid_table("Every network of the grid", runs, names=names),
        ends_table("What comes out at the end", runs, names=names),
    ]
    small = setting.note(f"Quick run: {size}×{size} pixels and width {width} instead of 32×32 and 1000.")
    notes = [*_notes(found), *stand_in(setting, "cifar10"), *small]
    return Outcome("s4", TITLE, found, [train, floor_sheet(shown), other], tables, notes)


def input_above_floor(run: Run) -> float | None:
    """D of the raw images over what permuted labels give there."""
    return over(run.measurement().separation[0], run.measurement(split="permuted").separation[0])


def _rows(cell: tuple[str, int], runs: Runs, choices: int) -> list[Row]:
    name = f"{cell[0]}-{cell[1]}"
    found = [
        *runs.rows(name, LAW, {"pearson": LAW_HOLDS}, choices=choices),
        runs.row(f"{name}/input-D-over-permuted", input_above_floor),
        *runs.rows(name, ["final-D-over-permuted"]),
    ]
    if choices > 1:
        median = median_low([r.recipe.learning_rate for r in runs]) if runs else None
        found.append(row(f"{name}/learning-rate", [median], Claim(SHOWN[cell]), reason=NO_RUN))
    return found


def _notes(found: Sequence[Row]) -> list[str]:
    laws = [r for r in found if r.name.endswith("/pearson")]
    held = [r.name.removesuffix("/pearson") for r in laws if r.reproduced]
    first = f"The law holds in {len(held)} of {len(laws)} panels" + (f" ({', '.join(held)})." if held else ".")
    floors, ends = (
        [r.ours for r in found if r.name.endswith(f"{place}-D-over-permuted") and r.ours is not None]
        for place in ("input", "final")
    )
    if not floors or not ends:
        return [first]
    return [
        first,
        f"Measured against permuted labels, the raw images have {min(floors):.2g} to {max(floors):.2g} of the D of noise "
        f"alone, the last hidden layer {min(ends):.2g} to {max(ends):.2g}.",
    ]
