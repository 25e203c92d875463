"""Figures of one real model, SmolLM2-135M on wikitext-2, measured in many ways: a function per figure, named after it.

All of them take seconds on a GPU and want the model in LAYERLAW_DATA/smollm2 and the text in LAYERLAW_DATA/wikitext-2; with
--quick a tiny GPT of our own on a Markov chain stands in. "Reference" numbers of this very model (4-bit weights,
dequantized) come from an earlier, independent measurement of ours.
"""

import math
from typing import Any

import torch

from layerlaw.experiments.next_token import language
from layerlaw.experiments.next_token.language import PR, curve, law, law_panel, law_table, measured, pearson_rows
from layerlaw.experiments.numbers import Claim, at_least, at_most, row, within
from layerlaw.experiments.setting import Setting
from layerlaw.lm.tasks import SHUFFLES
from layerlaw.measures import separation_fuzziness
from layerlaw.outcome import Outcome, Row, Table
from layerlaw.record import Record
from layerlaw.sheet import Panel, PlanePanel, Series, Sheet

TITLES = {
    "lm_law": "The law of next-token prediction on SmolLM2-135M",
    "lm_targets": "The law for other targets than the token's id",
    "lm_normalization": "The law under three normalizations",
    "lm_flow": "Information flow: previous, current, next and next-but-one token",
    "lm_tokens": "How many tokens the measurement needs",
    "lm_words": "Contextual embeddings of chosen words, block by block",
}
BLOCKS = {1: 0.902, 27: 0.823, 30: 0.838}  # reference PR of lm_law
COLUMNS = {
    "PR": "residual",
    "PR held out": "residual_held_out",
    "± ln": "residual_held_out_log_se",
    "PR untrained": "residual_untrained",
    "PR embedding": "residual_embedding",
    "PR embedding held out": "residual_embedding_held_out",
}
CLASSES = 100  # frequent next tokens, of which lm_targets measures the separation
OTHERS = {  # targets: their columns, and their reference r
    "id": ("residual", -0.966),
    "embedding": ("residual_embedding", -0.970),
    "one-hot": ("residual_onehot", -0.932),
    "rank": ("residual_rank", -0.973),
    "separation": ("separation", -0.895),
}
SHUFFLED = {f"shuffled {i + 1}": f"residual_shuffled_{i + 1}" for i in range(SHUFFLES)}
LOW, HIGH = -0.950, -0.868  # their reference r
NORMS = {"fresh": "a fresh norm", "none": "none", "standardized": "standardized"}
FLOW = {
    "previous": "residual_previous",
    "current": "residual_current",
    "next": "residual",
    "next-but-one": "residual_next2",
}
CHANGES = {"next": at_most(0.0, "falls"), "current": at_least(0.0, "rises")}
RATIOS, QUICK_RATIOS = (7, 14, 28, 57, 87, 213), (7, 28, 87)  # tokens per feature
WAYS = {"first": "From the beginning of the text", "spread": "Spread over the text"}
BY_RATIO = {7: (-0.848, 0.05), 14: (-0.898, 0.05), 87: (-0.968, 0.01), 213: (-0.966, 0.01)}  # reference r
WORDS, QUICK_WORDS, SHOWN = ("game", "album", "war"), (5, 6, 7), 8


def reference(value: float, by: float) -> Claim:
    """An earlier measurement of the same model and text by other code."""
    return within(value, by, paper=f"{value:g} (reference)".replace("-", "−"))


def lm_law(setting: Setting) -> Outcome:
    """The law of next-token prediction on a real model: SmolLM2-135M on wikitext-2.

        layerlaw reproduce lm_law             122,640 predicted tokens, trained and untrained (half an hour on two cores)
        layerlaw reproduce lm_law --quick

    The authors report r between about −0.983 and −0.997 on models of 100 million to 14 billion parameters, in-sample, with
    the token's id as target. Reference: PR .902 at block 1, .823 at block 27, .838 at block 30, r −.966 and −.980 without
    the last block, ρ .9965 per block; embedding r −.970 and −.985, ρ .9948; untrained r +.78 (id) and +.87 (embedding).
    """
    record = measured(setting, targets="id,embedding", null=True)
    sheets = []
    for title, column in language.TARGET_TITLES.items():
        left = language.residual_panel("what the line leaves", record, column)
        sheets.append(Sheet(title, [law_panel("trained", record, column, null=True), left], 2))
    kinds = {"": "", ", held out": "_held_out", ", untrained": "_untrained"}
    laws = {
        f"{name}{kind}": (record, f"{c}{end}") for name, c in language.TARGETS.items() for kind, end in kinds.items()
    }
    blocks = [(site.name, *(site.values.get(column) for column in COLUMNS.values())) for site in record.sites]
    tables = [law_table("Fits", laws), Table("Every block", ("site", *COLUMNS), blocks)]
    rows = _law_rows(record, {} if setting.quick else BLOCKS)
    return Outcome("lm_law", TITLES["lm_law"], rows, sheets, tables, record.notes)


def _law_rows(record: Record, known: dict[int, float]) -> list[Row]:
    blocks = [site.values["residual"] for site in record.sites if site.in_fit]
    fit, embedding = law(record), law(record, "residual_embedding")
    references = {
        "id/pearson-as-reference": (fit.pearson, -0.966, 0.01),
        "id/pearson-without-last-as-reference": (law(record, drop_last=1).pearson, -0.980, 0.01),
        "id/pearson-held-out-as-reference": (law(record, "residual_held_out").pearson, -0.955, 0.01),
        "id/rho-as-reference": (fit.rho, 0.9965, 0.0005),
        "embedding/pearson-as-reference": (embedding.pearson, -0.970, 0.01),
        "embedding/rho-as-reference": (embedding.rho, 0.9948, 0.0005),
    }
    untrained = {name: law(record, f"{column}_untrained").pearson for name, column in language.TARGETS.items()}
    return [
        *pearson_rows("id", [record], claim=at_most(-0.983, "−0.983 to −0.997 (other models)")),
        *(row(f"id/block-{n}", [blocks[n - 1]], reference(value, 0.01 * value)) for n, value in known.items()),
        *pearson_rows("embedding", [record], "residual_embedding"),
        *(row(name, [ours], reference(value, by)) for name, (ours, value, by) in references.items()),
        *(row(f"{k}/pearson-untrained", [r], at_least(0.0, "rises (reference)")) for k, r in untrained.items()),
    ]


def lm_targets(setting: Setting) -> Outcome:
    """Does the law depend on the token's id? Embedding, one-hot, shuffled vocabularies, frequency rank, separation.

        layerlaw reproduce lm_targets
        layerlaw reproduce lm_targets --quick

    A token's id is an arbitrary number, so the law must hold for others. The one-hot target is sketched by 256 random signs
    per token. Separation fuzziness takes the 100 most frequent next tokens as classes. Reference r: one-hot −.932, rank
    −.973, eight shuffled vocabularies −.868 to −.950, separation −.895.
    """
    record = measured(setting, targets="id,embedding,onehot,shuffled,rank", classes=CLASSES)
    columns = {name: column for name, (column, _) in OTHERS.items()}
    rows = []
    for name, (column, r) in OTHERS.items():
        found = pearson_rows(name, [record], column, reference(r, 0.02))
        rows += found[:1] if name == "separation" else found
    paper = f"{LOW} to {HIGH} (reference)".replace("-", "−")
    agrees = Claim(paper, lambda r: LOW - 0.02 <= r <= HIGH + 0.02, "mean within the range, ± 0.02")
    rows.append(row("shuffled/pearson", [law(record, column).pearson for column in SHUFFLED.values()], agrees))
    shuffled = [curve(record, column, "", style="faint") for column in SHUFFLED.values()]
    panels = [
        *(law_panel(name, record, column) for name, column in columns.items() if name != "separation"),
        Panel("eight shuffled vocabularies", shuffled, xlabel="block", ylabel=PR, tight=True),
        Panel(f"separation of {CLASSES} frequent next tokens", [curve(record, "separation", "D")], xlabel="block"),
    ]
    table = law_table("Fits", {name: (record, column) for name, column in (columns | SHUFFLED).items()})
    return Outcome("lm_targets", TITLES["lm_targets"], rows, [Sheet("Targets", panels)], [table], record.notes)


def lm_normalization(setting: Setting) -> Outcome:
    """Normalization: a fresh norm of the model's kind, none, or standardized tokens.

        layerlaw reproduce lm_normalization
        layerlaw reproduce lm_normalization --quick

    Without a norm a few tokens (the first of each piece) are thousands of times larger than the rest and rule the fit.
    """
    records = {kind: measured(setting, normalize=kind, targets="id,embedding") for kind in NORMS}
    pairs = [
        (kind, record, name, column) for kind, record in records.items() for name, column in language.TARGETS.items()
    ]
    rows = [one for kind, record, name, column in pairs for one in pearson_rows(f"{kind}/{name}", [record], column)]
    sheets = [
        Sheet(title, [law_panel(NORMS[kind], record, column) for kind, record in records.items()])
        for title, column in language.TARGET_TITLES.items()
    ]
    table = law_table("Fits", {f"{kind}, {name}": (record, column) for kind, record, name, column in pairs})
    return Outcome("lm_normalization", TITLES["lm_normalization"], rows, sheets, [table])


def lm_flow(setting: Setting) -> Outcome:
    """Information flow: how well each block tells the previous token, the token itself, the next, and the one after.

        layerlaw reproduce lm_flow             trained and untrained
        layerlaw reproduce lm_flow --quick

    The authors find the law for the next token; what a block knows of the token itself and of those before it fades with
    depth. Judged: PR of the next token falls from the first block to the last, that of the token itself rises.
    """
    record = measured(setting, targets="id,previous,current,next2", null=True)
    panels = []
    for title, kind in (("trained", ""), ("untrained", "_untrained")):
        series = [curve(record, f"{column}{kind}", name) for name, column in FLOW.items()]
        panels.append(Panel(title, series, xlabel="block", ylabel=PR, log_y=False))
    rows = []
    for name, column in FLOW.items():
        fit = law(record, column)
        first, *_, last = fit.values
        rows += [
            row(f"{name}/change-of-PR", [last - first], CHANGES.get(name, Claim())),
            row(f"{name}/first-block", [first]),
            row(f"{name}/last-block", [last]),
            row(f"{name}/pearson", [fit.pearson]),
        ]
    table = law_table("Fits", {name: (record, column) for name, column in FLOW.items()})
    sheet = Sheet("Token id", panels, 2, share_y=True)
    return Outcome("lm_flow", TITLES["lm_flow"], rows, [sheet], [table], record.notes)


def lm_tokens(setting: Setting) -> Outcome:
    """How many tokens? PR and its correlation with depth against n/d, in-sample and held out.

        layerlaw reproduce lm_tokens             7 to 213 tokens per feature (a minute on a GPU)
        layerlaw reproduce lm_tokens --quick

    In-sample PR is too low when there are few tokens for d features: d coefficients fit noise. Reference r (in-sample), on
    the first tokens of the text: −.848 at n/d = 7, −.898 at 14, −.968 at 87, −.966 at 213. Few tokens from the beginning are
    also few subjects, so every number of tokens is taken twice: from the beginning, and in pieces spread over the text.
    """
    width = 32 if setting.quick else 576
    ratios = QUICK_RATIOS if setting.quick else RATIOS
    tokens = {ratio: round(ratio * width * 512 / 511) for ratio in ratios}  # the last token of a piece has no next
    taken = {
        "first": {ratio: measured(setting, first=n) for ratio, n in tokens.items()},
        "spread": {ratio: measured(setting, tokens=n) for ratio, n in tokens.items()},
    }
    rows: list[Row] = []
    sheets, tables = [], []
    about: dict[str, Any] = {"xlabel": "tokens per feature", "log_x": True, "log_y": False}
    heads = ("n/d", "tokens", "r", "r held out", "PR last block", "PR last block, held out", "ρ")
    names = ("pearson", "pearson-held-out", "last-block", "last-block-held-out")
    for way, records in taken.items():
        lines = []
        for ratio, record in records.items():
            inside, held = law(record), law(record, "residual_held_out")
            numbers = (inside.pearson, held.pearson, inside.values[-1], held.values[-1])
            claim = reference(*BY_RATIO[ratio]) if way == "first" and ratio in BY_RATIO else Claim()
            for name, value in zip(names, numbers, strict=True):
                rows.append(row(f"{way}/{ratio}-per-feature/{name}", [value], claim if name == "pearson" else Claim()))
            lines.append((ratio, record.counts[0], *numbers, inside.rho))
        curves = [[line[column] for line in lines] for column in range(2, 6)]
        r, last = (
            [Series(tuple(tokens), curve, label) for curve, label in zip(pair, ("in-sample", "held out"), strict=True)]
            for pair in (curves[:2], curves[2:])
        )
        panels = [
            Panel("correlation with depth", r, ylabel="r", **about),
            Panel("PR at the last block", last, ylabel=PR, **about),
        ]
        sheets.append(Sheet(WAYS[way], panels, 2))
        tables.append(Table(WAYS[way], heads, lines))
    return Outcome("lm_tokens", TITLES["lm_tokens"], rows, sheets, tables)


def lm_words(setting: Setting) -> Outcome:
    """Words along depth: the two main directions of some words' hidden states at every block.

        layerlaw reproduce lm_words             three words of wikitext-2 (a minute on a GPU)
        layerlaw reproduce lm_words --quick     three tokens of a Markov chain

    The authors draw contextual embeddings of chosen words (patients, cells, disorder) and call the pictures chaotic: nothing
    in them shows the law that the residuals follow. There is no number to compare; ours is the separation D of the words
    within the plane, lower where they lie further apart.
    """
    record = measured(setting, words=QUICK_WORDS if setting.quick else WORDS)
    labels = torch.tensor(record.plane_labels)
    rows, panels = [], []
    for i in range(0, len(record.sites), max(1, math.ceil(len(record.sites) / SHOWN))):
        plane = [(x, y) for x, y in record.sites[i].plane]
        D = float(separation_fuzziness(torch.tensor(plane), labels))
        rows.append(row(f"block-{i}/separation-in-the-plane", [D]))
        panels.append(PlanePanel(f"block {i}" if i else "embedded", plane, record.plane_labels, record.plane_names))
    return Outcome("lm_words", TITLES["lm_words"], rows, [Sheet("Words", panels, 4)], [], record.notes)
