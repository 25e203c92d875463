"""Figure 6: 8-layer networks of three widths and three shapes on Fashion-MNIST.

    layerlaw reproduce fig6            six networks × five learning rates × at least 10 seeds: 300 networks (on a GPU; the
                                       widest has 10 million parameters)
    layerlaw reproduce fig6 --quick    one learning rate, 6 epochs; layers of at most 200 units instead of 1000 and 2500

The learning rate is the one with the best law, chosen anew for every seed among the trained networks. What the paper
says of D after the last hidden layer, judged by the ratio of two networks of a seed and t tests of logs over seeds: at
width 20 "the network does not separate the data well" (D above that of width 100, each at its chosen rate); "it is
better to start with relatively wide layers at the bottom layers followed by narrow top layers" (wide-narrow below
narrow-wide). The rates chosen for these two shapes differ, so the second is judged at **equal** rates, as Fig. 9 is:
geometric mean per seed over the rates at which both are trained; the ratios at the chosen rates and at each single rate
stand beside. All ratios are geometric means over seeds. That
widths 100 and 1000 have "about the same final value of separation fuzziness" is in the paper's first version only (the
PNAS text: "may be saturated"); how much is the same it does not say, so the ratio is shown and not judged. The paper
gives no r and does not say which of the six have a law; how many seeds do stands beside.

Controls of ours. The other two ratios are given again at equal rates. D is not comparable between widths as it stands: with
n images, noise alone gives n(K − 1)/d_eff, 9 at 1000 images and 1000 independent units. So every D has the D of
permuted labels beside it, and the ratios are given again for D over that floor; and the accuracy on the test images,
and the other protocols.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from statistics import geometric_mean

from layerlaw.experiments.drawing import across_table, both_modes, ends_table, floor_sheet, grid_table
from layerlaw.experiments.numbers import UNCLAIMED, Claim, Values, above, below, row
from layerlaw.experiments.runs import ENDS, LAW, NO_RUN, PROTOCOLS, Runs, protocol_table
from layerlaw.experiments.setting import ADAM, Setting, samples
from layerlaw.lab import Architecture, Recipe, Shape
from layerlaw.lab.schedule import BatchNormMode
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
    ("width-20", "width-100"): above(1.0, "larger", ratio=True),
    ("width-1000", "width-100"): Claim("about the same (first version)"),
    ("wide-narrow", "narrow-wide"): below(1.0, "lower", ratio=True),
}
MATCHED = ("wide-narrow", "narrow-wide")  # judged at equal learning rates
UNMATCHED = "no rate at which both networks are trained"
Cells = Mapping[str, Runs]


def run(setting: Setting) -> Outcome:
    """Train the six shapes, report what came out."""
    data = {"fashion_mnist": samples(setting, "fashion_mnist")}
    widths = QUICK if setting.quick else WIDTHS
    shapes: dict[Architecture, str] = {Shape(100, some): name for name, some in widths.items()}
    rates = (1e-3,) if setting.quick else ADAM
    base = Recipe(data="fashion_mnist", epochs=setting.epochs(quick=6))
    recipes = base.grid(network=shapes, learning_rate=rates, seed=setting.seeds(least=10))
    runs = setting.train("grid", recipes, data, PROTOCOLS)
    names = [shapes[r.recipe.network] for r in runs]
    grid = runs.by(lambda r: shapes[r.recipe.network])
    best = {name: some.best(trained=not setting.quick) for name, some in grid.items()}
    found = [one for pair in CLAIMS for one in _ratios(pair, best, grid)]
    ends = ("final-D", "final-D-permuted", "final-D-over-permuted", "test-accuracy", *LAW)
    found += [r for name in best for r in best[name].rows(name, ends, choices=len(rates))]
    survives = {
        f"Fig. 6: final D of {a} {claim.paper} than that of {b}{', at equal rates' * ((a, b) == MATCHED)}": (
            lambda mode, pair=(a, b): ratio(pair, best, grid, mode).reproduced
        )
        for (a, b), claim in CLAIMS.items()
        if claim.agrees is not None
    }
    titles = {name: name.capitalize().replace("Width-", "Width ") for name in best}
    shown, behind = ({titles[name]: runs for name, runs in some.items()} for some in (best, grid))
    tables = [
        across_table("Over seeds and images", shown),
        protocol_table(survives),
        ends_table("What comes out at the end of every network", runs, names=names),
        grid_table("The law in every network", runs, names=names),
    ]
    train, other = both_modes(shown, behind, share_y=True)
    small = setting.note("Quick run: layers of at most 200 units instead of 1000 and 2500.")
    sheets = [train, floor_sheet(shown, share_y=True), other]
    return Outcome("fig6", TITLE, found, sheets, tables, [*_notes(found), *small])


def ratio_row(name: str, values: Values, claim: Claim = UNCLAIMED, *, reason: str = "") -> Row:
    """A ratio seed by seed, which is tested in logs: the geometric mean stands for it."""
    found = row(name, values, claim, reason=reason)
    return found if found.ours is None else replace(found, ours=geometric_mean(v for v in values if v))


def ratio(pair: tuple[str, str], best: Cells, grid: Cells, batchnorm: BatchNormMode = "batch", name: str = "") -> Row:
    """The final D of one network over that of another, seed by seed; judged by what the paper says of it."""
    (a, b), claim = pair, CLAIMS[pair]
    what = f"final-D{ENDS[batchnorm]}"
    if pair != MATCHED:
        return ratio_row(name, best[a].over(best[b], what), claim, reason=NO_RUN)
    values = grid[a].over_at_same_rates(grid[b], what)
    return ratio_row(name, values, claim if any(values) else Claim(claim.paper), reason=UNMATCHED)


def _ratios(pair: tuple[str, str], best: Cells, grid: Cells) -> list[Row]:
    a, b = pair
    name = f"{a}-over-{b}/final-D"
    chosen = {end: best[a].over(best[b], f"final-D{end}") for end in ENDS.values()}
    same = {end: grid[a].over_at_same_rates(grid[b], f"final-D{end}") for end in ENDS.values()}
    judged = ratio(pair, best, grid, name=f"{name}-same-rates" if pair == MATCHED else name)
    rates = sorted({r.recipe.learning_rate for r in grid[a]})
    single = {rate: grid[a].at(learning_rate=rate).over(grid[b].at(learning_rate=rate), "final-D") for rate in rates}
    found = [
        *(ratio_row(f"{name}{end}", values, reason=NO_RUN) for end, values in chosen.items()),
        ratio_row(f"{name}-over-permuted", best[a].over(best[b], "final-D-over-permuted"), reason=NO_RUN),
        *(ratio_row(f"{name}-same-rates{end}", values, reason=UNMATCHED) for end, values in same.items()),
        *(ratio_row(f"{name}-at-lr-{rate:g}", values, reason=NO_RUN) for rate, values in single.items()),
    ]
    return [judged, *(one for one in found if one.name != judged.name)]


def _notes(found: Sequence[Row]) -> list[str]:
    known = {r.name: r for r in found}
    controls = {
        "": "at the rates with the best law",
        "-same-rates": "at equal learning rates",
        "-over-permuted": "over the level of permuted labels",
        "-eval": "with running statistics",
    }
    notes = []
    for first, second in CLAIMS:
        name = f"{first}-over-{second}/final-D"
        judged = next(r for r in found if r.name in (name, f"{name}-same-rates"))
        ratios = [
            f"{v:.2g} {words}" for end, words in controls.items() if (v := known[f"{name}{end}"].ours) is not None
        ]
        if not ratios:
            notes.append(f"{first} and {second}: one of them gave no number.")
            continue
        verdict = {True: "yes", False: "no", None: "not judged"}[judged.reproduced]
        notes.append(
            f"The final D of {first} over that of {second} (the paper: {judged.paper}; by our test: {verdict}): "
            f"{', '.join(ratios)}."
        )
    return notes
