"""Figure S5: 8-layer networks on 1000, 2000 and 5000 images of Fashion-MNIST.

    layerlaw reproduce s5              3 sizes × 5 learning rates: 15 networks per seed
    layerlaw reproduce s5 --quick      half as many images, one learning rate, 8 epochs

The learning rate is the one with the best law among the trained networks, chosen anew for every seed. The paper: the
law "emerges in neural networks trained with different number of training examples, though the half-life can be larger
for larger datasets". Judged: the law at 2000 and 5000 images by `LawFit.holds` in every seed, the choice among five
rates repeated in its test (the networks on 1000 images are those of Fig. 1 and are judged there); and the half-life at
2000 and at 5000 images over that at 1000, above 1 by a t test of logs over seeds. Ratios are geometric means over
seeds. Other protocols are asked twice: at the rate chosen in the authors' protocol, as the paper chose, and with the
rate chosen anew in each.

Controls of ours. The chosen rates may differ between sizes, so the ratio is given again at equal rates. D is biased by
the number of images: the half-life is given again for D corrected for that (jackknife), and with all networks measured
on the same 1000 images, which are among the training images of each; D after the last hidden layer also over the level
that permuted labels give. At 600 epochs 5000 images also mean five times as many steps.
"""

from collections.abc import Callable, Sequence
from functools import partial

from layerlaw.experiments.drawing import across_table, both_modes, curves_panel, ends_table, floor_sheet, grid_table
from layerlaw.experiments.numbers import Claim, above, holds, row
from layerlaw.experiments.runs import (
    ANEW,
    ENDS,
    LAW,
    PROTOCOLS,
    Runs,
    corrected_half_life,
    half_life_on,
    protocol_table,
    protocol_words,
)
from layerlaw.experiments.separation.fig6 import ratio_row
from layerlaw.experiments.setting import ADAM, Images, Setting, samples
from layerlaw.lab import Recipe, Shape
from layerlaw.lab.schedule import BatchNormMode
from layerlaw.outcome import Outcome, Row
from layerlaw.sheet import Sheet

TITLE = "Sample size: 1000, 2000 and 5000 images"
PER_CLASS = (100, 200, 500)
FLAT = "D does not fall with depth in one of the networks"
UNMATCHED = "no rate at which both networks are trained"
LARGER = above(1.0, "can be larger", ratio=True)
JUDGED = Claim("law", tolerance="judged in fig1: the same networks")
REFUSED = "the bias is too large to correct at some layer"
Claims = dict[str, Callable[[BatchNormMode], bool | None]]


def run(setting: Setting) -> Outcome:
    """Train all sizes, report what came out."""
    sizes = [count // 2 for count in PER_CLASS] if setting.quick else PER_CLASS
    rates = (1e-3,) if setting.quick else ADAM
    data = {str(10 * count): samples(setting, "fashion_mnist", count) for count in sizes}
    base = Recipe(network=Shape.even(8), epochs=setting.epochs(quick=8))
    recipes = base.grid(data=data, learning_rate=rates, seed=setting.seeds())
    runs = setting.train("grid", recipes, data, PROTOCOLS)
    grid = runs.by(lambda r: int(r.recipe.data))
    best = {n: some.best(trained=not setting.quick) for n, some in grid.items()}
    names = (*LAW, "final-D-over-permuted", "test-accuracy")
    least, *larger = best
    found = []
    for n, some in best.items():
        found += some.rows(f"{n}-images", names, {"holds": JUDGED if n == least else holds()}, choices=len(rates))
    found += _growth(best, grid, data)
    labels = [f"{r.recipe.data} images" for r in runs]
    shown, behind = ({f"{n} images": runs for n, runs in some.items()} for some in (best, grid))
    laws: Claims = {
        f"Fig. S5: the law holds, {n} images": partial(best[n].mostly_hold, choices=len(rates)) for n in larger
    }
    anew: Claims = {f"Fig. S5: the law holds, {n} images, {ANEW}": grid[n].holds_anew for n in larger}
    growth = {n: f"Fig. S5: half-life larger, {n} over {least} images" for n in larger}
    longer: Claims = {
        growth[n]: lambda mode, n=n: longer_half_life(best[n], best[least], mode)  # type: ignore[misc]
        for n in larger
    }
    longer_anew: Claims = {
        f"{growth[n]}, {ANEW}": lambda mode, n=n: longer_half_life(  # type: ignore[misc]
            grid[n].best(batchnorm=mode), grid[least].best(batchnorm=mode), mode
        )
        for n in larger
    }
    several = len(rates) > 1
    survives = laws | anew | longer | longer_anew if several else laws | longer
    tables = [
        across_table("Over seeds and images", shown),
        protocol_table(survives),
        grid_table("Every network of the grid", runs, names=labels, label="sample"),
        ends_table("What comes out at the end", runs, names=labels, label="sample"),
    ]
    sheets = [
        *both_modes(shown, behind, share_y=True),
        floor_sheet(shown, share_y=True),
        Sheet("The three sizes together", [curves_panel("", shown)], 1),
    ]
    first = [f"Sizes above {least} at which the law holds in most seeds, {protocol_words(laws)}."]
    first += [f"The same with the rate chosen anew in each protocol, {protocol_words(anew)}."] * several
    notes = [*first, *_notes(found, list(best)), *setting.note("Quick run: half as many images.")]
    return Outcome("s5", TITLE, found, sheets, tables, notes)


def longer_half_life(ours: Runs, others: Runs, batchnorm: BatchNormMode) -> bool | None:
    """Whether the half-life is larger than that of the others, by the t test; `None` for one seed."""
    return row("", ours.over(others, f"half-life{ENDS[batchnorm]}"), LARGER).reproduced


def _growth(best: dict[int, Runs], grid: dict[int, Runs], data: dict[str, Images]) -> list[Row]:
    least, *larger = best
    every = [r for runs in best.values() for r in runs]
    same = {id(r): half_life_on(r, data[str(least)](r.recipe.seed)) for r in every}
    corrected = {id(r): corrected_half_life(r, data[r.recipe.data](r.recipe.seed)) for r in every}
    found = []
    for n, runs in best.items():
        found.append(runs.row(f"{n}-images/half-life", "half-life", reason=FLAT))
        found.append(runs.row(f"{n}-images/half-life-corrected", lambda r: corrected[id(r)], reason=REFUSED))
    for n in larger:
        name, ours, other = f"{n}-over-{least}-images/half-life", best[n], best[least]
        matched = grid[n].over_at_same_rates(grid[least], "half-life")
        found += [
            *(
                ratio_row(f"{name}{end}", ours.over(other, f"half-life{end}"), Claim() if end else LARGER, reason=FLAT)
                for end in ENDS.values()
            ),
            ratio_row(f"{name}-same-rates", matched, reason=UNMATCHED),
            ratio_row(f"{name}-same-images", ours.over(other, lambda r: same[id(r)]), reason=FLAT),
            ratio_row(f"{name}-corrected", ours.over(other, lambda r: corrected[id(r)]), reason=REFUSED),
        ]
    return found


def _notes(found: Sequence[Row], sizes: Sequence[int]) -> list[str]:
    known = {r.name: r for r in found}
    least, *larger = sizes
    controls = {
        "same-rates": "at equal learning rates",
        "same-images": f"with all networks measured on the same {least} images",
        "corrected": "with D corrected for its bias",
        "eval": "with running statistics",
    }
    notes = []
    for n in larger:
        name = f"{n}-over-{least}-images/half-life"
        if (plain := known[name]).ours is None:
            notes.append(f"{n} images: no half-life to compare.")
            continue
        verdicts = {True: "larger by the t test", False: "not larger by the t test", None: "not judged"}
        verdict = verdicts[plain.reproduced]
        rest = [
            f"{words} "
            + (known[f"{name}-{end}"].reason if (ratio := known[f"{name}-{end}"].ours) is None else f"{ratio:.2f}")
            for end, words in controls.items()
        ]
        notes.append(
            f"The half-life at {n} images is {plain.ours:.2f} times that at {least} ({verdict}); {'; '.join(rest)}."
        )
    return notes
