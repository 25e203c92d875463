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

from collections.abc import Sequence

from layerlaw.experiments.drawing import both_modes, ends_table, floor_sheet, grid_table
from layerlaw.experiments.numbers import Claim, at_least, at_most, between, row
from layerlaw.experiments.runs import LAW
from layerlaw.experiments.setting import ADAM, Setting, samples
from layerlaw.lab import Architecture, Recipe, Schedule, Shape
from layerlaw.outcome import Outcome, Row

TITLE = "Width and shape of 8-layer networks"
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
    ("width-1000", "width-100"): between(0.5, 2.0, "about the same"),
    ("wide-narrow", "narrow-wide"): at_most(0.9, "lower"),
}
COMPARED = ("final-D", "final-D-eval", "final-D-over-permuted")


def run(setting: Setting) -> Outcome:
    """Train the six shapes, report what came out."""
    data = {"fashion_mnist": samples(setting, "fashion_mnist")}
    widths = QUICK if setting.quick else WIDTHS
    shapes: dict[Architecture, str] = {Shape(100, some): name for name, some in widths.items()}
    rates = (1e-3,) if setting.quick else ADAM
    base = Recipe(data="fashion_mnist", epochs=setting.epochs(quick=6))
    recipes = base.grid(network=shapes, learning_rate=rates, seed=setting.seeds())
    runs = setting.train("grid", recipes, data, Schedule(test=True, permuted=True))
    names = [shapes[r.recipe.network] for r in runs]
    grid = runs.by(lambda r: shapes[r.recipe.network])
    best = {name: some.best() for name, some in grid.items()}
    found = [
        row(f"{a}-over-{b}/{what}", best[a].over(best[b], what), claim if what == "final-D" else Claim())
        for (a, b), claim in CLAIMS.items()
        for what in COMPARED
    ]
    ends = ("final-D", "final-D-permuted", "final-D-over-permuted", "test-accuracy", *LAW)
    found += [r for name in best for r in best[name].rows(name, ends, choices=len(rates))]
    tables = [
        ends_table("What comes out at the end of every network", runs, names=names),
        grid_table("The law in every network", runs, names=names),
    ]
    titles = {name: name.capitalize().replace("Width-", "Width ") for name in best}
    shown, behind = ({titles[name]: runs for name, runs in some.items()} for some in (best, grid))
    train, other = both_modes(shown, behind, share_y=True)
    small = setting.note("Quick run: layers of at most 200 units instead of 1000 and 2500.")
    sheets = [train, floor_sheet(shown, share_y=True), other]
    return Outcome("fig6", TITLE, found, sheets, tables, [*_notes(found), *small])


def _notes(found: Sequence[Row]) -> list[str]:
    known = {r.name: r for r in found}
    notes = []
    for first, second in CLAIMS:
        plain, other, floored = (known[f"{first}-over-{second}/{what}"] for what in COMPARED)
        if plain.ours is None or floored.ours is None or other.ours is None:
            notes.append(f"{first} and {second}: one of them gave no number.")
            continue
        notes.append(
            f"The final D of {first} is {plain.ours:.2g} times that of {second} (the paper: {plain.paper}); over the level "
            f"of permuted labels {floored.ours:.2g} times, in eval mode {other.ours:.2g} times."
        )
    return notes
