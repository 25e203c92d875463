"""Figure S11: ten layers of a trained 20-layer network fixed, five new ones trained on top; against 15 from scratch.

    layerlaw reproduce s11             three kinds × five learning rates: 15 networks per seed (half a minute on a GPU, a
                                       quarter of an hour on two cores)
    layerlaw reproduce s11 --quick     one learning rate, 15 epochs

Fashion-MNIST, 1000 images. "Additional 5 layers" is read as four hidden layers and the classifier, so that the network has
15 linear layers like the one it is compared with. The learning rate of the 20 and the 15 layers is the one with the best
law, chosen anew for every seed; the fixed layers are those of the 20-layer network so chosen. The new layers have initial
values of their own (another seed). Their rate is the one with the best law over them alone: from the last fixed layer to
the last hidden one, 5 points.

The paper says in words that the law "also emerges in the additional 5 layers" and that the whole is "quite different" from
15 layers from scratch. The law holds when the mean r over seeds is at most −0.990; over 5 points that is easily had (a
random split of the same drop gives −0.96 in the median), so look at p. The whole is different when the factor ρ per new
layer is less than 0.9 or more than 1.1 times that of 15 layers from scratch.
"""

from collections.abc import Sequence
from dataclasses import replace

from layerlaw.experiments.drawing import EVAL_TITLE, curves_panel, grid_table, law_panel, r_and_rho
from layerlaw.experiments.numbers import LAW_HOLDS, Claim, of_laws, over, row
from layerlaw.experiments.runs import LAW, MODES, Runs, law_of, number
from layerlaw.experiments.setting import ADAM, Setting, samples
from layerlaw.lab import Recipe, Run, Schedule, Shape
from layerlaw.lab.schedule import BatchNormMode
from layerlaw.law import CHANCE, LawFit, fit_law
from layerlaw.outcome import Outcome, Row
from layerlaw.sheet import Panel, Series, Sheet
from layerlaw.wording import p_value

TITLE = "Pretraining: the law in five new layers on ten fixed ones"
FIXED, DEPTH, SOURCE = 10, 15, 20
OTHER = 1000  # added to the seed for the new layers: with the same seed they would begin as the source's layers began
KINDS = {"source": "20 layers", "scratch": "15 layers from scratch", "pretrained": "10 fixed and 5 new layers"}
DIFFERENT = Claim("quite different", lambda ratio: not 0.9 <= ratio <= 1.1, "below 0.9 or above 1.1")
Kinds = dict[str, Runs]


def run(setting: Setting) -> Outcome:
    """Train the three kinds, report what came out."""
    rates = (1e-3,) if setting.quick else ADAM
    kinds, best = _train(setting, rates)
    found = _rows(best, len(rates))
    every, names = zip(*((r, KINDS[kind]) for kind, runs in kinds.items() for r in runs), strict=True)
    table = grid_table("Every network", every, names=names)
    return Outcome("s11", TITLE, found, _sheets(kinds, best), [table], _notes(found))


def _train(setting: Setting, rates: Sequence[float]) -> tuple[Kinds, Kinds]:
    """Every network of the three kinds, and those chosen."""
    data = {"fashion_mnist": samples(setting, "fashion_mnist")}
    base = Recipe(data="fashion_mnist", epochs=setting.epochs(quick=15))
    schedule = Schedule(test=True)
    source, scratch = Shape.even(SOURCE), Shape.even(DEPTH)
    recipes = base.grid(network=(source, scratch), learning_rate=rates, seed=setting.seeds())
    runs = setting.train("whole", recipes, data, schedule)
    kinds = {"source": runs.at(network=source), "scratch": runs.at(network=scratch)}
    best = {kind: some.best() for kind, some in kinds.items()}
    states = {r.recipe.seed: r.state for r in best["source"] if r.state is not None}
    new = replace(base, network=scratch, layers=(FIXED, DEPTH))
    recipes = new.grid(learning_rate=rates, seed=[seed + OTHER for seed in states])
    start = [states[recipe.seed - OTHER] for recipe in recipes]
    kinds["pretrained"] = setting.train("new", recipes, data, schedule, start=start, copied=(0, FIXED))
    best["pretrained"] = kinds["pretrained"].best(new_law)
    return kinds, best


def new_law(run: Run, *, batchnorm: BatchNormMode = "batch") -> LawFit | None:
    """The law from the last fixed layer on."""
    law = law_of(run, batchnorm=batchnorm)
    return fit_law(law.values[FIXED:]) if law else None


def fixed_law(run: Run) -> LawFit | None:
    """The law up to the last fixed layer."""
    law = law_of(run)
    return fit_law(law.values[: FIXED + 1]) if law else None


def _rows(best: Kinds, choices: int) -> list[Row]:
    runs = best["pretrained"]
    laws, evals = ([new_law(r, batchnorm=mode) for r in runs] for mode in MODES)
    fixed = [fixed_law(r) for r in runs]
    scratch = {r.recipe.seed + OTHER: number(r, "rho") for r in best["scratch"]}
    rhos = of_laws(laws, "rho")
    differs = [over(rho, scratch.get(r.recipe.seed)) for rho, r in zip(rhos, runs, strict=True)]
    breaks = [over(rho, other) for rho, other in zip(rhos, of_laws(fixed, "rho"), strict=True)]
    claims = {"pearson": LAW_HOLDS}
    return [
        *(one for k in ("source", "scratch") for one in best[k].rows(k, LAW, claims, choices=choices)),
        *(row(f"new-layers/{what}", of_laws(laws, what, choices), claims.get(what, Claim())) for what in LAW[:4]),
        *(row(f"new-layers/{what}-eval", of_laws(evals, what)) for what in ("pearson", "rho")),
        *(row(f"fixed-layers/{what}", of_laws(fixed, what)) for what in ("pearson", "rho")),
        *runs.rows("pretrained", LAW),  # not chosen by this r
        row("new-layers-over-scratch/rho", differs, DIFFERENT),
        row("new-layers-over-fixed-layers/rho", breaks),
        *(one for kind in KINDS for one in best[kind].rows(kind, ["test-accuracy"])),
    ]


def _sheets(kinds: Kinds, best: Kinds) -> list[Sheet]:
    sheets = []
    for batchnorm, title in zip(MODES, ("D along depth", EVAL_TITLE), strict=True):
        faint = kinds if batchnorm == "batch" else dict.fromkeys(kinds, Runs())
        panels = [law_panel(name, best[kind], faint=faint[kind], batchnorm=batchnorm) for kind, name in KINDS.items()]
        panels[-1] = _two_lines(panels[-1], best["pretrained"], batchnorm)
        sheets.append(Sheet(title, panels, caption="The line marks the last fixed layer.", share_y=True))
    together = curves_panel("", {name: best[kind] for kind, name in KINDS.items()})
    return [*sheets, Sheet("The three kinds together", [replace(together, marked=FIXED)], 1)]


def _two_lines(panel: Panel, runs: Runs, batchnorm: BatchNormMode) -> Panel:
    """The new layers have a line of their own."""
    laws = [law for r in runs if (law := new_law(r, batchnorm=batchnorm))]
    rest = [series for series in panel.series if series.style != "fit"]
    curve = next((series.y for series in rest if series.label == "D"), None)
    if not laws or curve is None:
        return panel
    known = [value for value in curve if value is not None]
    parts = ((0, known[: FIXED + 1]), (FIXED, known[FIXED:]))
    lines = [Series(range(at, at + len(v)), fit_law(v).line, "line", style="fit") for at, v in parts]
    return replace(panel, series=(*lines, *rest), note=f"new layers: {r_and_rho(laws)}", marked=FIXED)


def _notes(found: Sequence[Row]) -> list[str]:
    known = {r.name: r.ours for r in found}
    r, p = known["new-layers/pearson"], known["new-layers/greenwood-p"]
    new, fixed, scratch = (known[f"{name}/rho"] for name in ("new-layers", "fixed-layers", "scratch"))
    if r is None or p is None or new is None or fixed is None or scratch is None:
        return ["The new layers have no law to speak of."]
    even = "more evenly than by chance" if p < CHANCE else "no more evenly than by chance"
    return [
        f"The new layers share their work {even} (r = {r:.3f} over 5 points, p {p_value(p, relation=True)} with the choice "
        "of the learning rate in it).",
        f"A new layer multiplies D by {new:.2f}, a fixed one by {fixed:.2f}, a layer of 15 from scratch by {scratch:.2f}.",
    ]
