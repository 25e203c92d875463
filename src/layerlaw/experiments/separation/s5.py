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

from collections.abc import Sequence

from layerlaw.experiments.drawing import both_modes, curves_panel, ends_table, floor_sheet, grid_table
from layerlaw.experiments.numbers import LAW_HOLDS, at_least, row
from layerlaw.experiments.runs import LAW, Runs, corrected_half_life, half_life_on
from layerlaw.experiments.setting import ADAM, Setting, samples
from layerlaw.lab import Recipe, Samples, Schedule, Shape
from layerlaw.outcome import Outcome, Row
from layerlaw.sheet import Sheet

TITLE = "Sample size: 1000, 2000 and 5000 images"
PER_CLASS = (100, 200, 500)
FLAT = "D does not fall with depth in one of the networks"
REFUSED = "the bias is too large to correct at some layer"


def run(setting: Setting) -> Outcome:
    """Train all sizes, report what came out."""
    sizes = [count // 2 for count in PER_CLASS] if setting.quick else PER_CLASS
    rates = (1e-3,) if setting.quick else ADAM
    data = {str(10 * count): samples(setting, "fashion_mnist", count) for count in sizes}
    base = Recipe(network=Shape.even(8), epochs=setting.epochs(quick=8))
    recipes = base.grid(data=data, learning_rate=rates, seed=setting.seeds())
    runs = setting.train("grid", recipes, data, Schedule(test=True, permuted=True))
    grid = runs.by(lambda r: int(r.recipe.data))
    best = {n: some.best() for n, some in grid.items()}
    names, law = (*LAW, "final-D-over-permuted"), {"pearson": LAW_HOLDS}
    found = [r for n in best for r in best[n].rows(f"{n}-images", names, law, choices=len(rates))]
    found += _growth(best, data)
    labels = [f"{r.recipe.data} images" for r in runs]
    tables = [
        grid_table("Every network of the grid", runs, names=labels, label="sample"),
        ends_table("What comes out at the end", runs, names=labels, label="sample"),
    ]
    shown, behind = ({f"{n} images": runs for n, runs in some.items()} for some in (best, grid))
    sheets = [
        *both_modes(shown, behind, share_y=True),
        floor_sheet(shown, share_y=True),
        Sheet("The three sizes together", [curves_panel("", shown)], 1),
    ]
    notes = [*_notes(found, list(best)), *setting.note("Quick run: half as many images.")]
    return Outcome("s5", TITLE, found, sheets, tables, notes)


def _growth(best: dict[int, Runs], data: dict[str, Samples]) -> list[Row]:
    least, *larger = best
    every = [r for runs in best.values() for r in runs]
    same = {id(r): half_life_on(r, data[str(least)]) for r in every}
    corrected = {id(r): corrected_half_life(r, data[r.recipe.data]) for r in every}
    found = []
    for n, runs in best.items():
        found.append(runs.row(f"{n}-images/half-life", "half-life", reason=FLAT))
        found.append(runs.row(f"{n}-images/half-life-corrected", lambda r: corrected[id(r)], reason=REFUSED))
    for n in larger:
        name, ours, other = f"{n}-over-{least}-images/half-life", best[n], best[least]
        found += [
            row(name, ours.over(other, "half-life"), at_least(1.05, "larger"), reason=FLAT),
            row(f"{name}-eval", ours.over(other, "half-life-eval"), reason=FLAT),
            row(f"{name}-same-images", ours.over(other, lambda r: same[id(r)]), reason=FLAT),
            row(f"{name}-corrected", ours.over(other, lambda r: corrected[id(r)]), reason=REFUSED),
        ]
    return found


def _notes(found: Sequence[Row], sizes: Sequence[int]) -> list[str]:
    known = {r.name: r.ours for r in found}
    least, *larger = sizes
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
