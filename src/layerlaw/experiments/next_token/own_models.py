"""Figures of models of our own, trained on classic books and measured on held-out ones: a function per figure.

With --quick tiny models are trained on a Markov chain. A model that one figure has trained is found again by the others.
"""

from layerlaw.experiments.drawing import curve_mean, spread_series
from layerlaw.experiments.next_token import language
from layerlaw.experiments.next_token.language import PR, books, law, law_panel, law_table, own_records, pearson_rows
from layerlaw.experiments.numbers import Claim, at_least, at_most, minus, row
from layerlaw.experiments.setting import Setting
from layerlaw.outcome import Outcome, Row, Table
from layerlaw.record import Record
from layerlaw.sheet import Panel, Series, Sheet

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
A_LAW = at_most(-0.95, "law")


def embedding_row(name: str, records: list[Record]) -> Row:
    """r of the other target, the output embedding."""
    return row(f"{name}/embedding/pearson", [law(record, "residual_embedding").pearson for record in records])


def lm_training(setting: Setting) -> Outcome:
    """Training step: when does the law of next-token prediction emerge? A GPT of our own on classic books, step by step.

        layerlaw reproduce lm_training             GPT of 12 blocks, width 512, 1000 steps, three seeds (minutes on a GPU)
        layerlaw reproduce lm_training --quick

    The authors follow Pythia's checkpoints: no law at the start, and one that grows clearer with training. Judged: PR of the
    untrained model does not fall with depth (r ≥ 0), that of the trained one does, and its r is at most −0.95.
    """
    steps, size = (QUICK_STEPS, QUICK_SIZE) if setting.quick else (STEPS, SIZE)
    records = own_records(setting, books(setting), "gpt", *size, steps)
    claims = {0: at_least(0.0, "no law"), steps[-1]: A_LAW}
    rows: list[Row] = []
    curves, lines = [], []
    for step, found in records.items():
        name = f"step-{step}"
        rows += [*pearson_rows(name, found, claim=claims.get(step, Claim())), embedding_row(name, found)]
        mean = curve_mean([language.values_of(record) for record in found])
        curves.append(Series(range(1, len(mean) + 1), mean, f"step {step}"))
        for fit, other in [(law(record), law(record, "residual_embedding")) for record in found]:
            lines.append((step, fit.values[0], fit.values[-1], fit.pearson, fit.rho, other.pearson, other.rho))
    x = [max(step, 1) for step in records]
    rs = {
        title.lower(): [[law(r, column).pearson or 0.0 for r in found] for found in records.values()]
        for title, column in language.TARGET_TITLES.items()
    }
    series = [spread_series(title, x, values, several=True) for title, values in rs.items()]
    panels = [
        Panel("PR along depth", curves, xlabel="block", ylabel=PR, tight=True),
        Panel("correlation with depth", series, "step (0 drawn at 1)", "r", log_x=True, log_y=False),
        law_panel("at the end", records[steps[-1]][0]),
    ]
    heads = ("step", "PR, first block", "PR, last block", "r", "ρ", "r embedding", "ρ embedding")
    tables, sheet = [Table("Every network", heads, lines)], Sheet("During training", panels)
    return Outcome("lm_training", TITLES["lm_training"], rows, [sheet], tables)


def lm_sizes(setting: Setting) -> Outcome:
    """Model size: the law of next-token prediction in GPTs of our own, over depth and width.

        layerlaw reproduce lm_sizes             6, 12 and 24 blocks, widths 256 and 512, 1000 steps (minutes on a GPU)
        layerlaw reproduce lm_sizes --quick

    The authors find the law in models of every size. Judged for each size: r ≤ −0.95 in the mean over seeds.
    """
    corpus = books(setting)
    steps, sizes = (QUICK_LAST, QUICK_SIZES) if setting.quick else (LAST, SIZES)
    records = {
        f"{depth}-blocks-of-{width}": own_records(setting, corpus, "gpt", depth, width, (steps,))[steps]
        for depth, width in sizes
    }
    rows: list[Row] = []
    for name, found in records.items():
        rows += [*pearson_rows(name, found, claim=A_LAW), embedding_row(name, found)]
    panels = [law_panel(name.replace("-", " "), found[0]) for name, found in records.items()]
    laws = {f"{name}, {i + 1}": (r, "residual") for name, found in records.items() for i, r in enumerate(found)}
    table = law_table("Every network", laws)
    return Outcome("lm_sizes", TITLES["lm_sizes"], rows, [Sheet("Sizes", panels)], [table])


def lm_task(setting: Setting) -> Outcome:
    """The task and the architecture: next-token prediction against masked tokens, attention against a recurrence.

        layerlaw reproduce lm_task             12 blocks of width 512, 1000 steps, three seeds each (minutes on a GPU)
        layerlaw reproduce lm_task --quick

    Three models of one size on the same books: a GPT, its bidirectional twin trained on masked tokens (measured at the
    masked positions, where the token's own id is the target), and a causal recurrence without attention, trained like the
    GPT. The authors find the law in transformers and state-space models alike, and no law for masked tokens. Judged:
    r ≤ −0.95 for the GPT and the recurrence; for the masked twin an r above that of the GPT by at least 0.02.

    Found here: the law in the GPTs (−.981 to −.992), nearly in the recurrence (−.924 to −.977), and no difference worth the
    name for masked tokens: two of three seeds are as straight as the GPT (−.994, −.990), one is bent (−.854).
    """
    corpus = books(setting)
    steps, size = (QUICK_LAST, QUICK_SIZE) if setting.quick else (LAST, SIZE)
    records = {kind: own_records(setting, corpus, kind, *size, (steps,))[steps] for kind in KINDS}
    gaps = [minus(law(m).pearson, law(g).pearson) for m, g in zip(records["masked"], records["gpt"], strict=True)]
    rows = [
        *(r for kind in ("gpt", "recurrent") for r in pearson_rows(kind, records[kind], claim=A_LAW)),
        *pearson_rows("masked", records["masked"]),
        row("masked-minus-gpt/pearson", gaps, at_least(0.02, "no law")),
        *(embedding_row(kind, records[kind]) for kind in KINDS),
    ]
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
    return Outcome("lm_task", TITLES["lm_task"], rows, sheets, [law_table("Every network", laws)])
