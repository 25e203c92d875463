"""Figures of one real model, SmolLM2-135M on wikitext-2, measured in many ways: a function per figure, named after it.

They want the model in LAYERLAW_DATA/smollm2 and the text in LAYERLAW_DATA/wikitext-2; with --quick a tiny GPT of our
own on a Markov chain stands in. SmolLM2 is not one of the authors' models, so what the paper says of theirs is a claim
on another model here. There is one model and one text and so no test over seeds: that the law holds is judged by
`LawFit.holds`. Numbers of this very model (4-bit weights, dequantized) from an earlier measurement of ours by other code
are self-checks. Their chance is the share of the other measurements of the same figure that would
pass.
"""

import math
from dataclasses import replace
from typing import Any

import torch

from layerlaw.experiments.next_token import language
from layerlaw.experiments.next_token.language import PR, curve, law, law_panel, law_rows, law_table, measured
from layerlaw.experiments.numbers import UNCLAIMED, Claim, between, holds, of_laws, row, within
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
RATIOS, QUICK_RATIOS = (7, 14, 28, 57, 87, 213), (7, 28, 87)  # tokens per feature
WAYS = {"first": "From the beginning of the text", "spread": "Spread over the text"}
BY_RATIO = {7: (-0.848, 0.05), 14: (-0.898, 0.05), 87: (-0.968, 0.01), 213: (-0.966, 0.01)}  # reference r
WORDS, QUICK_WORDS, SHOWN = ("game", "album", "war"), (5, 6, 7), 8
UNTRAINED = {  # r of untrained models
    "id": Claim("0.78 (earlier)", tolerance="not judged: other random weights"),
    "embedding": Claim("0.87 (earlier)", tolerance="not judged: other random weights"),
}
A_LAW = replace(holds(kind="other model"), tolerance="LawFit.holds, one model on one text")


def reference(value: float, by: float) -> Claim:
    """An earlier measurement of the same model and text by other code: a check of our own."""
    return within(value, by, paper=f"{value:g} (earlier)".replace("-", "−")).of("self-check")


def lm_law(setting: Setting) -> Outcome:
    """The law of next-token prediction on a real model: SmolLM2-135M on wikitext-2.

        layerlaw reproduce lm_law             122,640 predicted tokens, trained and untrained
        layerlaw reproduce lm_law --quick

    The authors find the law in every model of theirs, in-sample, with the token's id as target. Judged: `LawFit.holds`
    of that residual. Held out, without the last block and with the output embedding as target it stands beside.
    Self-checks: PR .902 at block 1, .823 at block 27, .838 at block 30, r −.966 and −.980 without the last block, ρ
    .9965 per block; embedding r −.970, ρ .9948. The untrained model, of which PR rises (earlier: r +.78 and +.87), is
    shown and not judged: it has no law, but neither has the trained one.
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
    found = [f"{name}: {law(*which).verdict}" for name, which in laws.items()]
    return Outcome("lm_law", TITLES["lm_law"], rows, sheets, tables, [*found, *record.notes])


def _law_rows(record: Record, known: dict[int, float]) -> list[Row]:
    blocks = language.values_of(record)
    ids, embeddings = ([law(record, f"{c}{end}") for end in ("", "_held_out")] for c in language.TARGETS.values())
    short = law(record, drop_last=1)
    untrained = {name: law(record, f"{column}_untrained") for name, column in language.TARGETS.items()}
    fits = [*ids, *embeddings, short, *untrained.values()]
    references = {
        "id/pearson": (ids[0], -0.966, 0.01),
        "id/pearson-without-last": (short, -0.980, 0.01),
        "id/pearson-held-out": (ids[1], -0.955, 0.01),
        "id/rho": (ids[0], 0.9965, 0.0005),
        "embedding/pearson": (embeddings[0], -0.970, 0.01),
        "embedding/rho": (embeddings[0], 0.9948, 0.0005),
    }
    rows = [
        *law_rows("id", [record], claim=A_LAW),
        *law_rows("embedding", [record], "residual_embedding"),
        *(
            row(f"id/block-{n}", [blocks[n - 1]], reference(value, 0.01 * value), among=_without(blocks, n - 1))
            for n, value in known.items()
        ),
    ]
    for name, (fit, value, by) in references.items():
        what = "rho" if name.endswith("rho") else "pearson"
        others = of_laws([other for other in fits if other is not fit], what)
        rows.append(row(f"{name}-as-reference", of_laws([fit], what), reference(value, by), among=others))
    for name, fit in untrained.items():
        rows += [
            row(f"{name}/holds-untrained", of_laws([fit], "holds")),
            row(f"{name}/pearson-untrained", [fit.pearson], UNTRAINED[name]),
        ]
    return rows


def _without(values: list[float], place: int) -> list[float]:
    return values[:place] + values[place + 1 :]


def lm_targets(setting: Setting) -> Outcome:
    """Does the law depend on the token's id? Embedding, one-hot, shuffled vocabularies, frequency rank, separation.

        layerlaw reproduce lm_targets
        layerlaw reproduce lm_targets --quick

    A token's id is an arbitrary number, so a law about it should hold for others. The one-hot target is sketched by 256
    random signs per token. Separation fuzziness takes the 100 most frequent next tokens as classes. Nothing of the
    paper is judged; self-checks are r: one-hot −.932, rank −.973, eight shuffled vocabularies −.868 to −.950,
    separation −.895.
    """
    record = measured(setting, targets="id,embedding,onehot,shuffled,rank", classes=CLASSES)
    columns = {name: column for name, (column, _) in OTHERS.items()}
    fits = {name: law(record, column) for name, column in (columns | SHUFFLED).items()}
    rows: list[Row] = []
    for name, (column, r) in OTHERS.items():
        others = of_laws([fit for other, fit in fits.items() if other != name], "pearson")
        rows += law_rows(name, [record], column)
        claim = reference(r, 0.02)
        if name in language.TARGETS:
            claim = Claim(claim.paper, tolerance="judged in lm_law: the same measurement")
        rows.append(row(f"{name}/pearson-as-reference", [fits[name].pearson], claim, among=others))
    shuffles, others = [fits[name] for name in SHUFFLED], of_laws([fits[name] for name in OTHERS], "pearson")
    span = between(LOW - 0.02, HIGH + 0.02, f"{LOW} to {HIGH} (earlier)".replace("-", "−")).of("self-check")
    rows.append(row("shuffled/holds", of_laws(shuffles, "holds")))
    rows.append(row("shuffled/pearson", of_laws(shuffles, "pearson"), span, among=others))
    shuffled = [curve(record, column, "", style="faint") for column in SHUFFLED.values()]
    panels = [
        *(law_panel(name, record, column) for name, column in columns.items() if name != "separation"),
        Panel("eight shuffled vocabularies", shuffled, xlabel="block", ylabel=PR, tight=True),
        Panel(f"separation of {CLASSES} frequent next tokens", [curve(record, "separation", "D")], xlabel="block"),
    ]
    table = law_table("Fits", {name: (record, column) for name, column in (columns | SHUFFLED).items()})
    held = [name for name, fit in fits.items() if fit.holds]
    found = f"The law holds for {len(held)} of {len(fits)} targets{': ' * bool(held)}{', '.join(held)}."
    notes = [found, *record.notes]
    return Outcome("lm_targets", TITLES["lm_targets"], rows, [Sheet("Targets", panels)], [table], notes)


def lm_normalization(setting: Setting) -> Outcome:
    """Normalization: a fresh norm of the model's kind, none, or standardized tokens.

        layerlaw reproduce lm_normalization
        layerlaw reproduce lm_normalization --quick

    Without a norm a few tokens (the first of each piece) are thousands of times larger than the rest and rule the fit.
    Nothing is judged.
    """
    records = {kind: measured(setting, normalize=kind, targets="id,embedding") for kind in NORMS}
    pairs = [
        (kind, record, name, column) for kind, record in records.items() for name, column in language.TARGETS.items()
    ]
    rows = [one for kind, record, name, column in pairs for one in law_rows(f"{kind}/{name}", [record], column)]
    sheets = [
        Sheet(title, [law_panel(NORMS[kind], record, column) for kind, record in records.items()])
        for title, column in language.TARGET_TITLES.items()
    ]
    table = law_table("Fits", {f"{kind}, {name}": (record, column) for kind, record, name, column in pairs})
    notes = [language.in_words(NORMS[kind].capitalize(), [record]) for kind, record in records.items()]
    return Outcome("lm_normalization", TITLES["lm_normalization"], rows, sheets, [table], notes)


def lm_flow(setting: Setting) -> Outcome:
    """Information flow: how well each block tells the previous token, the token itself, the next, and the one after.

        layerlaw reproduce lm_flow             trained and untrained
        layerlaw reproduce lm_flow --quick

    The authors measure the same four. That the law holds for the next token is judged in lm_law; what they say of the
    other three is not in the texts at hand, so nothing is judged here.
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
            row(f"{name}/change-of-PR", [last - first]),
            row(f"{name}/first-block", [first]),
            row(f"{name}/last-block", [last]),
            row(f"{name}/holds", of_laws([fit], "holds")),
            row(f"{name}/pearson", [fit.pearson]),
        ]
    table = law_table("Fits", {name: (record, column) for name, column in FLOW.items()})
    sheet = Sheet("Token id", panels, 2, share_y=True)
    notes = [f"{name.capitalize()} token: {law(record, column).verdict}" for name, column in FLOW.items()]
    return Outcome("lm_flow", TITLES["lm_flow"], rows, [sheet], [table], [*notes, *record.notes])


def lm_tokens(setting: Setting) -> Outcome:
    """How many tokens? PR and its correlation with depth against n/d, in-sample and held out.

        layerlaw reproduce lm_tokens             7 to 213 tokens per feature
        layerlaw reproduce lm_tokens --quick

    In-sample PR is too low when there are few tokens for d features: d coefficients fit noise. Self-checks are r
    (in-sample) on the first tokens of the text: −.848 at n/d = 7, −.898 at 14, −.968 at 87, −.966 at 213; the last two
    do not count where most other numbers of tokens would pass them. Few tokens from the beginning are also few
    subjects, so every number of tokens is taken twice: from the beginning, and in pieces spread over the text.
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
    axes: dict[str, Any] = {"xlabel": "tokens per feature", "log_x": True, "log_y": False}
    heads = ("n/d", "tokens", "r", "r held out", "PR last block", "PR last block, held out", "ρ", "evenness", "holds")
    names = ("pearson", "pearson-held-out", "last-block", "last-block-held-out")
    every = {(way, ratio): law(record).pearson for way, records in taken.items() for ratio, record in records.items()}
    for way, records in taken.items():
        lines, found = [], []
        for ratio, record in records.items():
            inside, held = law(record), law(record, "residual_held_out")
            numbers = (inside.pearson, held.pearson, inside.values[-1], held.values[-1])
            claim = reference(*BY_RATIO[ratio]) if way == "first" and ratio in BY_RATIO else UNCLAIMED
            others = [r for key, r in every.items() if key != (way, ratio)]
            for name, value in zip(names, numbers, strict=True):
                about = claim if name == "pearson" else UNCLAIMED
                rows.append(row(f"{way}/{ratio}-per-feature/{name}", [value], about, among=others))
            rows.append(row(f"{way}/{ratio}-per-feature/holds", of_laws([inside], "holds")))
            found.append(numbers)
            lines.append((ratio, record.counts[0], *numbers, inside.rho, inside.evenness, language.HOLDS[inside.holds]))
        curves = list(zip(*found, strict=True))
        r, last = (
            [Series(tuple(tokens), curve, label) for curve, label in zip(pair, ("in-sample", "held out"), strict=True)]
            for pair in (curves[:2], curves[2:])
        )
        panels = [
            Panel("correlation with depth", r, ylabel="r", **axes),
            Panel("PR at the last block", last, ylabel=PR, **axes),
        ]
        sheets.append(Sheet(WAYS[way], panels, 2))
        tables.append(Table(WAYS[way], heads, lines))
    return Outcome("lm_tokens", TITLES["lm_tokens"], rows, sheets, tables)


def lm_words(setting: Setting) -> Outcome:
    """Words along depth: the two main directions of some words' hidden states at every block.

        layerlaw reproduce lm_words             three words of wikitext-2
        layerlaw reproduce lm_words --quick     three tokens of a Markov chain

    The authors draw contextual embeddings of chosen words (patients, cells, disorder) and call them chaotic. There is
    no number to compare and nothing is judged; ours is the separation D of the words within the plane, lower where they
    lie further apart.
    """
    record = measured(setting, words=QUICK_WORDS if setting.quick else WORDS)
    labels = torch.tensor(record.plane_labels)
    rows, panels = [], []
    for i in range(0, len(record.sites), max(1, math.ceil(len(record.sites) / SHOWN))):
        plane = [(x, y) for x, y in record.sites[i].plane]
        D = float(separation_fuzziness(torch.tensor(plane), labels))
        rows.append(row(f"block-{i}/separation-in-the-plane", [D]))
        panels.append(PlanePanel(f"block {i}" if i else "embedded", plane, record.plane_labels, record.plane_names))
    about = "D of the words' tokens within the plane of their two main directions: lower where they lie further apart."
    return Outcome("lm_words", TITLES["lm_words"], rows, [Sheet("Words", panels, 4)], [], [about, *record.notes])
