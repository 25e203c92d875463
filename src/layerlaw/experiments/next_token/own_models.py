"""Figures of models of our own, trained on classic books and measured on held-out ones: a function per figure.

With --quick tiny models are trained on a Markov chain. A model that one figure has trained is found again by the
others: GPTs of 12 blocks and width 512 are the same networks in all three figures and are judged in lm_training alone.
None of these is a model of the authors, so their statements are claims on another model here. That the law holds is
judged by `LawFit.holds` of the residual in-sample with the token's id as target, as the authors measure it, in every
seed; held out and with the output embedding as target it stands beside.
"""

from dataclasses import replace

from layerlaw.experiments.drawing import curve_mean, laws_table
from layerlaw.experiments.next_token import language
from layerlaw.experiments.next_token.language import (
    PR,
    books,
    embedding_rows,
    in_words,
    law,
    law_panel,
    law_rows,
    law_table,
    own_records,
)
from layerlaw.experiments.numbers import UNCLAIMED, Claim, below, holds, of_laws, row
from layerlaw.experiments.setting import Setting
from layerlaw.outcome import Outcome, Row, Table
from layerlaw.record import Record
from layerlaw.sheet import Panel, Series, Sheet, spread_series
from layerlaw.wording import counted

TITLES = {
    "lm_training": "The law of next-token prediction emerges during training",
    "lm_sizes": "The law of next-token prediction over model sizes",
    "lm_task": "The pre-training task matters: next token, masked tokens, and a recurrence",
}
STEPS, QUICK_STEPS = (0, 20, 50, 100, 200, 400, 700, 1000), (0, 20, 60)  # at which lm_training measures
LAST, QUICK_LAST = 1000, 40  # steps of the others
SIZE, QUICK_SIZE = (12, 512), (5, 32)  # blocks, width
SIZES, QUICK_SIZES = ((6, 256), (12, 256), (24, 256), (6, 512), (12, 512), (24, 512)), ((4, 32), (6, 32))
KINDS = {"gpt": "GPT, next token", "masked": "twin, masked tokens", "recurrent": "recurrence, next token"}
A_LAW = holds(kind="other model")
RECURRENCE = Claim("law", tolerance="not judged: the law does not hold in the GPT either")
TASK = Claim("no law for masked tokens", tolerance="not judged: the law does not hold in the GPT either")
JUDGED = Claim("law", tolerance="judged in lm_training: the same networks")


def across(title: str, records: dict[str, list[Record]]) -> Table:
    """The laws of every kind of network over its seeds, for both targets."""
    cells = {
        f"{name}, {target}": [law(record, column) for record in found]
        for name, found in records.items()
        for target, column in language.TARGETS.items()
    }
    return laws_table(title, cells, "PR")


def lm_training(setting: Setting) -> Outcome:
    """Training step: when does the law of next-token prediction emerge? A GPT of our own on classic books, step by step.

        layerlaw reproduce lm_training             GPT of 12 blocks, width 512, 1000 steps, three seeds
        layerlaw reproduce lm_training --quick

    The authors follow Pythia's checkpoints. Judged: the law holds in the trained model. The untrained one is shown and
    not judged: it would pass for having no law as well as many a trained one.
    """
    steps, size = (QUICK_STEPS, QUICK_SIZE) if setting.quick else (STEPS, SIZE)
    records = own_records(setting, books(setting), "gpt", *size, steps)
    claims = {steps[-1]: A_LAW}
    rows: list[Row] = []
    curves, lines = [], []
    for step, found in records.items():
        name = f"step-{step}"
        rows += [*law_rows(name, found, claim=claims.get(step, UNCLAIMED)), *embedding_rows(name, found)]
        rows.append(row(f"{name}/loss", losses := [record.settings.get("loss") for record in found]))
        mean = curve_mean([language.values_of(record) for record in found])
        curves.append(Series(range(1, len(mean) + 1), mean, f"step {step}"))
        for loss, record in zip(losses, found, strict=True):
            fit, other = law(record), law(record, "residual_embedding")
            ends, held = (fit.values[0], fit.values[-1]), (language.HOLDS[fit.holds], language.HOLDS[other.holds])
            ours, theirs = (fit.pearson, fit.rho, fit.evenness, held[0]), (other.pearson, other.rho, held[1])
            lines.append((step, loss, *ends, *ours, *theirs))
    x = [max(step, 1) for step in records]

    def course(title: str, what: str) -> Panel:
        series = []
        for target, column in language.TARGET_TITLES.items():
            values = [of_laws([law(record, column) for record in found], what) for found in records.values()]
            series.append(spread_series(target.lower(), x, values, several=True))
        return Panel(title, series, xlabel="step (0 drawn at 1)", ylabel=what, log_x=True, log_y=False)

    panels = [
        Panel("PR along depth", curves, xlabel="block", ylabel=PR, tight=True),
        course("correlation with depth", "pearson"),
        course("evenness (none where PR does not fall)", "evenness"),
        law_panel("at the end", records[steps[-1]][0]),
    ]
    heads = ("step", "loss", "PR, first block", "PR, last block", "r", "ρ", "evenness", "holds")
    tables = [
        across("Over seeds", {f"step {step}": found for step, found in records.items()}),
        Table("Every network", (*heads, "r embedding", "ρ embedding", "holds, embedding"), lines),
    ]
    notes = [in_words(f"Step {step}", found) for step, found in records.items()]
    return Outcome("lm_training", TITLES["lm_training"], rows, [Sheet("During training", panels, 2)], tables, notes)


def lm_sizes(setting: Setting) -> Outcome:
    """Model size: the law of next-token prediction in GPTs of our own, over depth and width.

        layerlaw reproduce lm_sizes             6, 12 and 24 blocks, widths 256 and 512, 1000 steps, three seeds
        layerlaw reproduce lm_sizes --quick

    The authors find the law in models of every size. Judged for each size, where there are several seeds: the law holds.
    12 blocks of width 512 are the networks of lm_training, judged there.
    """
    corpus = books(setting)
    steps, sizes = (QUICK_LAST, QUICK_SIZES) if setting.quick else (LAST, SIZES)
    shapes = {f"{depth}-blocks-of-{width}": (depth, width) for depth, width in sizes}
    records = {name: own_records(setting, corpus, "gpt", *shape, (steps,))[steps] for name, shape in shapes.items()}
    rows: list[Row] = []
    for name, found in records.items():
        claim = JUDGED if shapes[name] == SIZE else replace(A_LAW, single=False)
        rows += [*law_rows(name, found, claim=claim), *embedding_rows(name, found)]
    titles = {name.replace("-", " "): found for name, found in records.items()}
    panels = [law_panel(title, found[0]) for title, found in titles.items()]
    laws = {f"{name}, {i + 1}": (r, "residual") for name, found in titles.items() for i, r in enumerate(found)}
    tables = [across("Over seeds", titles), law_table("Every network", laws)]
    notes = [in_words(title, found) for title, found in titles.items()]
    return Outcome("lm_sizes", TITLES["lm_sizes"], rows, [Sheet("Sizes", panels)], tables, notes)


def lm_task(setting: Setting) -> Outcome:
    """The task and the architecture: next-token prediction against masked tokens, attention against a recurrence.

        layerlaw reproduce lm_task             12 blocks of width 512, 1000 steps, three seeds each
        layerlaw reproduce lm_task --quick

    Three models of one size on the same books: a GPT, its bidirectional twin trained on masked tokens (measured at the
    masked positions, where the token's own id is the target), and a causal recurrence without attention, trained like
    the GPT. The authors find the law in transformers and state-space models alike, and no law for masked tokens.
    Nothing is judged: that the law does not hold in the twin, or in the recurrence, says nothing of task or architecture
    where it does not hold in the GPT either, after so few steps. How much less evenly the twin shares the drop than the
    GPT of the same seed stands beside it (evenness, 0 where PR does not fall).
    """
    corpus = books(setting)
    steps, size = (QUICK_LAST, QUICK_SIZE) if setting.quick else (LAST, SIZE)
    records = {kind: own_records(setting, corpus, kind, *size, (steps,))[steps] for kind in KINDS}
    claims = {"gpt": JUDGED, "masked": replace(TASK, paper="no law"), "recurrent": RECURRENCE}
    masked, gpt = ([law(record).evenness or 0.0 for record in records[kind]] for kind in ("masked", "gpt"))
    gaps = [m - g for m, g in zip(masked, gpt, strict=True)]
    task = row("masked-minus-gpt/evenness", gaps, TASK)
    lower = row("", gaps, below(0.0)).reproduced
    rows = [one for kind in KINDS for one in law_rows(kind, records[kind], claim=claims[kind])]
    rows += [task, *(one for kind in KINDS for one in embedding_rows(kind, records[kind]))]
    firsts = {name: records[kind][0] for kind, name in KINDS.items()}
    sheets = [
        Sheet(title, [law_panel(name, record, column) for name, record in firsts.items()])
        for title, column in language.TARGET_TITLES.items()
    ]
    sheets.append(
        Sheet("What the line leaves", [language.residual_panel(name, record) for name, record in firsts.items()])
    )
    laws = {
        f"{kind}, {i + 1}, {what}": (r, column)
        for kind in KINDS
        for i, r in enumerate(records[kind])
        for what, column in language.TARGETS.items()
    }
    named = {name: records[kind] for kind, name in KINDS.items()}
    tables = [across("Over seeds", named), law_table("Every network", laws)]
    notes = [in_words(name, found) for name, found in named.items()]
    if lower is not None:
        seen = "lower by a t test over seeds" if lower else f"not decided by {counted(len(gaps), 'seed')}"
        notes.append(
            f"Evenness of the masked twin minus that of the GPT is {task.ours:.2f} in the mean ({task.low:.2f} to "
            f"{task.high:.2f}): {seen}."
        )
    return Outcome("lm_task", TITLES["lm_task"], rows, sheets, tables, notes)
