"""Figure S5: 8-layer networks on 1000, 2000 and 5000 images of Fashion-MNIST.

    layerlaw reproduce s5              3 sizes × 5 learning rates: 15 networks per seed (seconds on a GPU, half an hour on
                                       two cores)
    layerlaw reproduce s5 --quick      half as many images, one learning rate, 8 epochs

The learning rate is the one with the best law, chosen anew for every seed. The paper: the law emerges at every size (ours
agrees when the mean r over seeds is at most −0.990), and the half-life "can be larger for larger datasets" (ours agrees
when the mean ratio to the half-life at 1000 images is at least 1.05).

Controls of ours. D is biased by the number of images: the half-life is given again for D corrected for that (jackknife),
and with all networks measured on the same 1000 images, which are among the training images of each; D after the last
hidden layer also over the level that permuted labels give. At 600 epochs 5000 images also mean five times as many steps.
"""

from __future__ import annotations

from collections.abc import Sequence

from layerlaw.experiments.afterwards import corrected_half_life, half_life_on
from layerlaw.experiments.drawing import caption, curves_panel, ends_table, grid_table, law_panel
from layerlaw.experiments.images import samples
from layerlaw.experiments.numbers import above_floor, at_least, at_most, best_of_seeds, law_of, law_rows, row
from layerlaw.experiments.pairs import ratios
from layerlaw.experiments.setting import Setting
from layerlaw.lab import Recipe, Run, Samples, Schedule, Shape
from layerlaw.outcome import Outcome, Row
from layerlaw.sheet import Sheet

TITLE = "Sample size: 1000, 2000 and 5000 images"
PER_CLASS = (100, 200, 500)
RATES = (3e-5, 1e-4, 3e-4, 1e-3, 3e-3)
FLAT = "D does not fall with depth in one of the networks"
REFUSED = "the bias is too large to correct at some layer"
Best = dict[int, list[Run]]


def run(setting: Setting) -> Outcome:
    """Train all sizes, tell what came out."""
    sizes = [count // 2 for count in PER_CLASS] if setting.quick else PER_CLASS
    rates = (1e-3,) if setting.quick else RATES
    data = {str(10 * count): samples(setting, "fashion_mnist", count) for count in sizes}
    base = Recipe(network=Shape.even(8), epochs=setting.epochs(quick=8))
    recipes = base.grid(data=data, learning_rate=rates, seed=setting.seeds())
    runs = setting.train("grid", recipes, data, Schedule(test=True, permuted=True))
    grid = {int(name): [r for r in runs if r.recipe.data == name] for name in data}
    best = {n: best_of_seeds(found) for n, found in grid.items()}
    rows = [*(r for n in best for r in _rows(n, best[n], len(rates))), *_growth(best, data)]
    names = [f"{r.recipe.data} images" for r in runs]
    tables = [
        grid_table("Every network of the grid", runs, names=names, label="sample"),
        ends_table("What comes out at the end", runs, names=names, label="sample"),
    ]
    small = ["Quick run: half as many images."] if setting.quick else []
    return Outcome("s5", TITLE, rows, _sheets(grid, best), tables, [*_notes(rows, best), *small])


def _rows(n: int, runs: Sequence[Run], choices: int) -> list[Row]:
    holds, tolerance = at_most(-0.990)
    return [
        *law_rows(f"{n}-images", runs, choices=choices, paper="holds", holds=holds, tolerance=tolerance),
        row(f"{n}-images/final-D-over-permuted", [above_floor(r) for r in runs]),
    ]


def _half_life(run: Run) -> float | None:
    law = law_of(run)
    return law.half_life if law else None


def _half_life_eval(run: Run) -> float | None:
    law = law_of(run, batchnorm="running")
    return law.half_life if law else None


def _growth(best: Best, data: dict[str, Samples]) -> list[Row]:
    least, *larger = best
    holds, tolerance = at_least(1.05)
    first = data[str(least)]
    same = {id(r): half_life_on(r, first) for runs in best.values() for r in runs}
    corrected = {id(r): corrected_half_life(r, data[r.recipe.data]) for runs in best.values() for r in runs}
    rows = []
    for n in best:
        rows.append(row(f"{n}-images/half-life", [_half_life(r) for r in best[n]], reason=FLAT))
        rows.append(row(f"{n}-images/half-life-corrected", [corrected[id(r)] for r in best[n]], reason=REFUSED))
    for n in larger:
        name, pair = f"{n}-over-{least}-images/half-life", (best[n], best[least])
        plain = ratios(*pair, _half_life)
        rows.append(row(name, plain, paper="larger", holds=holds, tolerance=tolerance, reason=FLAT))
        rows.append(row(f"{name}-eval", ratios(*pair, _half_life_eval), reason=FLAT))
        rows.append(row(f"{name}-same-images", ratios(*pair, lambda r: same[id(r)]), reason=FLAT))
        rows.append(row(f"{name}-corrected", ratios(*pair, lambda r: corrected[id(r)]), reason=REFUSED))
    return rows


def _sheets(grid: Best, best: Best) -> list[Sheet]:
    train = [law_panel(f"{n} images", runs, faint=grid[n]) for n, runs in best.items()]
    floor = [law_panel(f"{n} images", runs, floor=True, note="") for n, runs in best.items()]
    other = [law_panel(f"{n} images", runs, batchnorm="running") for n, runs in best.items()]
    together = curves_panel("", {f"{n} images": runs for n, runs in best.items()})
    return [
        Sheet("D along depth", train, caption=caption(train), share_y=True),
        Sheet("The same networks in eval mode", other, share_y=True),
        Sheet("D beside the level of noise alone (permuted labels)", floor, share_y=True),
        Sheet("The three sizes together", [together], 1),
    ]


def _notes(rows: Sequence[Row], best: Best) -> list[str]:
    known = {r.name: r.ours for r in rows}
    least, *larger = best
    notes = []
    for n in larger:
        name = f"{n}-over-{least}-images/half-life"
        plain, same, corrected = (known.get(f"{name}{end}") for end in ("", "-same-images", "-corrected"))
        if plain is None or same is None:
            notes.append(f"{n} images: no half-life to compare.")
            continue
        after = f"{corrected:.2f} times with D corrected for its bias" if corrected is not None else REFUSED
        notes.append(
            f"The half-life at {n} images is {plain:.2f} times the one at {least}; {same:.2f} times when all networks are "
            f"measured on the same {least} images; {after}."
        )
    return notes
