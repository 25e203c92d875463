"""Figure 6: 8-layer networks of three widths and three shapes on Fashion-MNIST.

    layerlaw reproduce fig6            six networks × five learning rates: 30 networks per seed (a minute or two on a GPU,
                                       hours on two cores: the widest has 10 million parameters)
    layerlaw reproduce fig6 --quick    one learning rate, 6 epochs; layers of at most 200 units instead of 1000 and 2500

The learning rate is the one with the best law, chosen anew for every seed. What the paper says of D after the last hidden
layer, and when ours agrees (means of the ratios over seeds): width 20 does not separate the data well (at least 3 times
the D of width 100); beyond 100 it is saturated (width 1000: between half and twice the D of width 100); wide layers at
the bottom are better than wide ones at the top (wide-narrow: at most 0.9 times the D of narrow-wide). The paper gives no r.

Controls of ours. D is not comparable between widths as it stands: with n images, noise alone gives n(K − 1)/d_eff, 9 at
1000 images and 1000 independent units. So every D has the D of permuted labels beside it, and the ratios above are given
again for D over that floor; and the accuracy on the test images, and eval mode.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from layerlaw.experiments.drawing import caption, ends_table, grid_table, law_panel
from layerlaw.experiments.images import samples
from layerlaw.experiments.numbers import (
    Compare,
    above_floor,
    at_least,
    at_most,
    best_of_seeds,
    final_separation,
    law_rows,
    row,
)
from layerlaw.experiments.pairs import ratios
from layerlaw.experiments.setting import Setting
from layerlaw.lab import Recipe, Run, Schedule, Shape
from layerlaw.outcome import Outcome, Row
from layerlaw.sheet import Sheet

TITLE = "Width and shape of 8-layer networks"
RATES = (3e-5, 1e-4, 3e-4, 1e-3, 3e-3)
WIDTHS = {
    "width-20": (20,) * 7,
    "width-100": (100,) * 7,
    "width-1000": (1000,) * 7,
    "narrow-wide": (100,) * 4 + (1000,) * 3,
    "wide-narrow": (1000,) * 4 + (100,) * 3,
    "mixed": (100, 500, 500, 2500, 2500, 500, 500),
}
QUICK = {
    **WIDTHS,
    "width-1000": (200,) * 7,
    "narrow-wide": (50,) * 4 + (200,) * 3,
    "wide-narrow": (200,) * 4 + (50,) * 3,
}
QUICK["mixed"] = (50, 100, 100, 200, 200, 100, 100)
Best = dict[str, list[Run]]


def run(setting: Setting) -> Outcome:
    """Train the six shapes, tell what came out."""
    data = {"fashion_mnist": samples(setting, "fashion_mnist")}
    shapes = {name: Shape(100, widths) for name, widths in (QUICK if setting.quick else WIDTHS).items()}
    rates = (1e-3,) if setting.quick else RATES
    base = Recipe(data="fashion_mnist", epochs=setting.epochs(quick=6))
    recipes = base.grid(network=shapes.values(), learning_rate=rates, seed=setting.seeds())
    runs = setting.train("grid", recipes, data, Schedule(test=True, permuted=True))
    grid = {name: [r for r in runs if r.recipe.network == shape] for name, shape in shapes.items()}
    best = {name: best_of_seeds(found) for name, found in grid.items()}
    rows = [*_claims(best), *(r for name in best for r in _rows(name, best[name], len(rates)))]
    names = [next(name for name, shape in shapes.items() if shape == r.recipe.network) for r in runs]
    tables = [
        ends_table("What comes out at the end of every network", runs, names=names),
        grid_table("The law in every network", runs, names=names),
    ]
    return Outcome("fig6", TITLE, rows, _sheets(best, grid), tables, [*_notes(rows), *_quick_notes(setting)])


def _eval(run: Run) -> float | None:
    return final_separation(run, batchnorm="running")


def _test_accuracy(run: Run) -> float | None:
    return run.measurement(batchnorm="running", split="test").accuracy


def _claims(best: Best) -> list[Row]:
    rows = []
    half, double = 0.5, 2.0
    claims: tuple[tuple[str, str, str, tuple[Compare, str]], ...] = (
        ("width-20", "width-100", "much larger", at_least(3.0)),
        ("width-1000", "width-100", "about the same", ((lambda q: half <= q <= double), f"{half:g} to {double:g}")),
        ("wide-narrow", "narrow-wide", "lower", at_most(0.9)),
    )
    for above, below, words, (holds, tolerance) in claims:
        name, pair = f"{above}-over-{below}", (best[above], best[below])
        values = ratios(*pair, final_separation)
        rows.append(row(f"{name}/final-D", values, paper=words, holds=holds, tolerance=tolerance))
        rows.append(row(f"{name}/final-D-eval", ratios(*pair, _eval)))
        rows.append(row(f"{name}/final-D-over-permuted", ratios(*pair, above_floor)))
    return rows


def _rows(name: str, runs: Sequence[Run], choices: int) -> list[Row]:
    return [
        row(f"{name}/final-D", [final_separation(r) for r in runs]),
        row(f"{name}/final-D-permuted", [final_separation(r, split="permuted") for r in runs]),
        row(f"{name}/final-D-over-permuted", [above_floor(r) for r in runs]),
        row(f"{name}/test-accuracy", [_test_accuracy(r) for r in runs]),
        *law_rows(name, runs, choices=choices),
    ]


def _sheets(best: Best, grid: Mapping[str, Sequence[Run]]) -> list[Sheet]:
    titles = {name: name.capitalize().replace("Width-", "Width ") for name in best}
    train = [law_panel(titles[name], runs, faint=grid[name]) for name, runs in best.items()]
    floor = [law_panel(titles[name], runs, floor=True, note="") for name, runs in best.items()]
    other = [law_panel(titles[name], runs, batchnorm="running") for name, runs in best.items()]
    return [
        Sheet("D along depth", train, caption=caption(train), share_y=True),
        Sheet("D beside the level of noise alone (permuted labels)", floor, share_y=True),
        Sheet("The same networks in eval mode", other, share_y=True),
    ]


def _notes(rows: Sequence[Row]) -> list[str]:
    known = {r.name: r for r in rows}
    notes = []
    for pair in ("width-20-over-width-100", "width-1000-over-width-100", "wide-narrow-over-narrow-wide"):
        plain, floored, other = (known[f"{pair}/final-D{end}"] for end in ("", "-over-permuted", "-eval"))
        first, second = pair.split("-over-")
        if plain.ours is None or floored.ours is None or other.ours is None:
            notes.append(f"{first} and {second}: one of them gave no number.")
            continue
        notes.append(
            f"The final D of {first} is {plain.ours:.2g} times that of {second} (the paper: {plain.paper}); over the level "
            f"of permuted labels {floored.ours:.2g} times, in eval mode {other.ours:.2g} times."
        )
    return notes


def _quick_notes(setting: Setting) -> list[str]:
    return ["Quick run: layers of at most 200 units instead of 1000 and 2500."] if setting.quick else []
