"""Figure S11: ten layers of a trained 20-layer network fixed, five new ones trained on top; against 15 from scratch.

    layerlaw reproduce s11             three kinds × five learning rates: 15 networks per seed
    layerlaw reproduce s11 --quick     one learning rate, 15 epochs

Fashion-MNIST, 1000 images, in all three networks of a seed the same. "Additional 5 layers" is read as four hidden
layers and the classifier, so that the network has 15 linear layers like the one it is compared with. The learning rate
of the 20 and the 15 layers is the one with the best law, chosen anew for every seed among the trained networks; the
fixed layers are those of the 20-layer network so chosen. The new layers have initial values of their own (another
seed). Their rate is the one with the best law over them alone: from the last fixed layer to the last hidden one, 5
points.

The paper says in words that the law "also emerges in the additional 5 layers", judged by `LawFit.holds` over these 5
points in every seed, the choice among the rates repeated in its test; and that the whole is "quite different" from 15
layers from scratch, read as: the factor ρ per new layer differs from that of 15 layers from scratch, by a two-sided t
test of the log ratio over seeds. The 20 layers are those of Fig. 1 and, like the 15 from scratch, of which the paper
says nothing more, are not judged again. Other protocols are asked twice: at the rates chosen in the authors' protocol,
and with the rates of the 15 layers chosen anew in each (the ten fixed layers stay those of the network chosen first).
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from statistics import fmean

from layerlaw.experiments.drawing import EVAL_TITLE, across_table, curves_panel, fit_note, grid_table, law_panel
from layerlaw.experiments.numbers import Claim, holds, law_along, of_laws, over, row, standard_error
from layerlaw.experiments.runs import (
    ANEW,
    ENDS,
    LAW,
    MODES,
    NO_RUN,
    PROTOCOL_WORDS,
    PROTOCOLS,
    Runs,
    number,
    protocol_table,
)
from layerlaw.experiments.setting import ADAM, Setting, samples
from layerlaw.lab import Recipe, Run, Shape
from layerlaw.lab.schedule import BatchNormMode
from layerlaw.law import CHANCE, LawFit, fit_law, t_quantile
from layerlaw.outcome import Outcome, Row
from layerlaw.sheet import Panel, Series, Sheet

TITLE = "Pretraining: the law in five new layers on ten fixed ones"
FIXED, DEPTH, SOURCE = 10, 15, 20
OTHER = 1000  # added to the seed for the new layers: with the same seed they would begin as the source's layers began
KINDS = {"source": "20 layers", "scratch": "15 layers from scratch", "pretrained": "10 fixed and 5 new layers"}
Kinds = dict[str, Runs]


def _differs(ratios: Sequence[float]) -> bool:
    logs = list(map(math.log, ratios))
    error = standard_error(logs)
    return error is not None and abs(fmean(logs)) > t_quantile(len(logs) - 1) * error


DIFFERENT = Claim(
    "quite different", _differs, "≠ 1 (two-sided t test over seeds, 5 %)", "direction", CHANCE, single=False
)


def run(setting: Setting) -> Outcome:
    """Train the three kinds, report what came out."""
    rates = (1e-3,) if setting.quick else ADAM
    kinds, best = _train(setting, rates)
    found = _rows(best, len(rates))
    every, names = zip(*((r, KINDS[kind]) for kind, runs in kinds.items() for r in runs), strict=True)
    law, other = "Fig. S11: the law holds in the new layers", "Fig. S11: a new layer is not one of 15 from scratch"
    survives: dict[str, Callable[[BatchNormMode], bool | None]] = {
        law: lambda mode: _mostly(best["pretrained"], len(rates), mode),
        other: lambda mode: different(best, mode).reproduced,
    }
    if len(rates) > 1:
        survives |= {
            f"{law}, {ANEW}": lambda mode: _mostly(chosen_in(kinds, mode)["pretrained"], len(rates), mode),
            f"{other}, {ANEW}": lambda mode: different(chosen_in(kinds, mode), mode).reproduced,
        }
    tables = [
        across_table("Over seeds and images", {name: best[kind] for kind, name in KINDS.items()}),
        protocol_table(survives),
        grid_table("Every network", every, names=names),
    ]
    return Outcome("s11", TITLE, found, _sheets(kinds, best), tables, _notes(found, best, len(rates)))


def _train(setting: Setting, rates: Sequence[float]) -> tuple[Kinds, Kinds]:
    """Every network of the three kinds, and those chosen."""
    images = samples(setting, "fashion_mnist")
    base = Recipe(data="fashion_mnist", epochs=setting.epochs(quick=15))
    trained = not setting.quick
    source, scratch = Shape.even(SOURCE), Shape.even(DEPTH)
    recipes = base.grid(network=(source, scratch), learning_rate=rates, seed=setting.seeds())
    runs = setting.train("whole", recipes, {"fashion_mnist": images}, PROTOCOLS)
    kinds = {"source": runs.at(network=source), "scratch": runs.at(network=scratch)}
    best = {kind: some.best(trained=trained) for kind, some in kinds.items()}
    states = {r.recipe.seed: r.state for r in best["source"] if r.state is not None}
    new = replace(base, network=scratch, layers=(FIXED, DEPTH))
    recipes = new.grid(learning_rate=rates, seed=[seed + OTHER for seed in states])
    start = [states[recipe.seed - OTHER] for recipe in recipes]
    own = {"fashion_mnist": lambda seed: images(seed - OTHER)}  # what the fixed layers were trained on
    kinds["pretrained"] = setting.train("new", recipes, own, PROTOCOLS, start=start, copied=(0, FIXED))
    best["pretrained"] = kinds["pretrained"].best(new_law, trained=trained)
    return kinds, best


def chosen_in(kinds: Kinds, batchnorm: BatchNormMode) -> Kinds:
    """The networks of 15 layers chosen by their law in this protocol."""
    new = kinds["pretrained"].best(partial(new_law, batchnorm=batchnorm))
    return {"scratch": kinds["scratch"].best(batchnorm=batchnorm), "pretrained": new}


def new_law(run: Run, choices: int = 1, *, batchnorm: BatchNormMode = "batch") -> LawFit | None:
    """The law from the last fixed layer on."""
    return None if run.diverged is not None else law_along(_separation(run, batchnorm)[FIXED:], choices)


def fixed_law(run: Run, *, batchnorm: BatchNormMode = "batch") -> LawFit | None:
    """The law up to the last fixed layer."""
    return None if run.diverged is not None else law_along(_separation(run, batchnorm)[: FIXED + 1])


def _separation(run: Run, batchnorm: BatchNormMode) -> tuple[float | None, ...]:
    return run.measurement(batchnorm=batchnorm).separation


def _mostly(runs: Runs, choices: int, batchnorm: BatchNormMode) -> bool:
    laws = [new_law(r, choices, batchnorm=batchnorm) for r in runs]
    return 2 * sum(law is not None and law.holds is True for law in laws) > len(laws)


def different(best: Kinds, batchnorm: BatchNormMode = "batch", name: str = "", claim: Claim = DIFFERENT) -> Row:
    """ρ of a new layer over that of a layer of 15 from scratch, trained on the same images."""
    end, runs = ENDS[batchnorm], best["pretrained"]
    scratch = {r.recipe.seed + OTHER: number(r, f"rho{end}") for r in best["scratch"]}
    rhos = of_laws([new_law(r, batchnorm=batchnorm) for r in runs], "rho")
    ratios = [over(rho, scratch.get(r.recipe.seed)) for rho, r in zip(rhos, runs, strict=True)]
    return row(name, ratios, claim, reason=runs.trouble() or NO_RUN)


def _rows(best: Kinds, choices: int) -> list[Row]:
    runs = best["pretrained"]
    why = runs.trouble() or NO_RUN
    laws = {end: [new_law(r, choices, batchnorm=mode) for r in runs] for mode, end in ENDS.items()}
    fixed = [fixed_law(r) for r in runs]
    breaks = [over(a, b) for a, b in zip(of_laws(laws[""], "rho"), of_laws(fixed, "rho"), strict=True)]
    found = [one for k in ("source", "scratch") for one in best[k].rows(k, LAW, choices=choices)]
    for end, some in laws.items():
        for what in LAW[:7] if not end else ("holds", "pearson", "rho", "evenness"):
            claim = holds() if what + end == "holds" else Claim()
            found.append(row(f"new-layers/{what}{end}", of_laws(some, what), claim, reason=why))
    name = "new-layers-over-scratch/rho"
    return [
        *found,
        *(row(f"fixed-layers/{what}", of_laws(fixed, what), reason=why) for what in ("holds", "pearson", "rho")),
        *runs.rows("pretrained", LAW),  # not chosen by this r
        *(different(best, mode, f"{name}{end}", Claim() if end else DIFFERENT) for mode, end in ENDS.items()),
        row("new-layers-over-fixed-layers/rho", breaks, reason=why),
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
    return replace(panel, series=(*lines, *rest), note=f"new layers: {fit_note(laws)}", marked=FIXED)


def _notes(found: Sequence[Row], best: Kinds, choices: int) -> list[str]:
    known = {r.name: r.ours for r in found}
    new, fixed, scratch = (known[f"{name}/rho"] for name in ("new-layers", "fixed-layers", "scratch"))
    if new is None or fixed is None or scratch is None:
        return ["The new layers have no law to speak of."]
    runs = best["pretrained"]
    laws = [[new_law(r, choices, batchnorm=mode) for r in runs] for mode in ENDS]
    held = [sum(map(bool, of_laws(some, "holds"))) for some in laws]
    words = ", ".join(f"{n} ({PROTOCOL_WORDS[mode]})" for mode, n in zip(ENDS, held, strict=True))
    return [
        f"Over the new layers (5 points, best of {choices} rates, which the test allows for) the law holds in so many of "
        f"{len(runs)} seeds: {words}.",
        f"A new layer multiplies D by {new:.2f}, a fixed one by {fixed:.2f}, a layer of 15 from scratch by {scratch:.2f}.",
    ]
