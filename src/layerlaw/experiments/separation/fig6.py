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

from collections.abc import Sequence

from layerlaw.experiments.drawing import FLOOR_TITLE, both_modes, ends_table, grid_table, law_sheet
from layerlaw.experiments.numbers import LAW, Claim, at_least, at_most, best_of_seeds, grouped, ratios, row, rows
from layerlaw.experiments.setting import Setting, samples
from layerlaw.lab import Architecture, Recipe, Run, Schedule, Shape
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
    "mixed": (50, 100, 100, 200, 200, 100, 100),
}
CLAIMS = {  # of the final D of one network over that of another
    ("width-20", "width-100"): at_least(3.0, "much larger"),
    ("width-1000", "width-100"): Claim("about the same", lambda ratio: 0.5 <= ratio <= 2.0, "0.5 to 2"),
    ("wide-narrow", "narrow-wide"): at_most(0.9, "lower"),
}
Best = dict[str, list[Run]]


def run(setting: Setting) -> Outcome:
    """Train the six shapes, report what came out."""
    data = {"fashion_mnist": samples(setting, "fashion_mnist")}
    shapes: dict[Architecture, str] = {
        Shape(100, widths): name for name, widths in (QUICK if setting.quick else WIDTHS).items()
    }
    rates = (1e-3,) if setting.quick else RATES
    base = Recipe(data="fashion_mnist", epochs=setting.epochs(quick=6))
    recipes = base.grid(network=shapes, learning_rate=rates, seed=setting.seeds())
    runs = setting.train("grid", recipes, data, Schedule(test=True, permuted=True))
    names = [shapes[r.recipe.network] for r in runs]
    grid = grouped(runs, lambda r: shapes[r.recipe.network])
    best = {name: best_of_seeds(found) for name, found in grid.items()}
    ends = ("final-D", "final-D-permuted", "final-D-over-permuted", "test-accuracy", *LAW)
    found = [*_claims(best), *(r for name in best for r in rows(name, best[name], ends, choices=len(rates)))]
    tables = [
        ends_table("What comes out at the end of every network", runs, names=names),
        grid_table("The law in every network", runs, names=names),
    ]
    small = setting.note("Quick run: layers of at most 200 units instead of 1000 and 2500.")
    return Outcome("fig6", TITLE, found, _sheets(best, grid), tables, [*_notes(found), *small])


def _claims(best: Best) -> list[Row]:
    found = []
    for (first, second), claim in CLAIMS.items():
        name, pair = f"{first}-over-{second}", (best[first], best[second])
        found.append(row(f"{name}/final-D", ratios(*pair, "final-D"), claim))
        found += [row(f"{name}/{what}", ratios(*pair, what)) for what in ("final-D-eval", "final-D-over-permuted")]
    return found


def _sheets(best: Best, grid: Best) -> list[Sheet]:
    shown, behind = (
        {name.capitalize().replace("Width-", "Width "): runs for name, runs in d.items()} for d in (best, grid)
    )
    train, other = both_modes(shown, behind, share_y=True)
    return [train, law_sheet(FLOOR_TITLE, shown, floor=True, note="", share_y=True), other]


def _notes(found: Sequence[Row]) -> list[str]:
    known = {r.name: r for r in found}
    notes = []
    for first, second in CLAIMS:
        name = f"{first}-over-{second}/final-D"
        plain, floored, other = (known[f"{name}{end}"] for end in ("", "-over-permuted", "-eval"))
        if plain.ours is None or floored.ours is None or other.ours is None:
            notes.append(f"{first} and {second}: one of them gave no number.")
            continue
        notes.append(
            f"The final D of {first} is {plain.ours:.2g} times that of {second} (the paper: {plain.paper}); over the level "
            f"of permuted labels {floored.ours:.2g} times, in eval mode {other.ours:.2g} times."
        )
    return notes
