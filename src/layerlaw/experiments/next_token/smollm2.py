"""Figures of one real model, SmolLM2-135M on three texts, measured in many ways: a function per figure, named after it.

They want the model in LAYERLAW_DATA/smollm2 and the texts in LAYERLAW_DATA/wikitext-2 (its validation and its test part)
and LAYERLAW_DATA/classic_books.txt.gz; with --quick a tiny GPT of our own on three draws of a Markov chain stands in. Rows
are means over the texts with their range. SmolLM2 is not one of the authors' models, so what the paper says of theirs is a
claim on another model here. There is one model, and three texts are no three models: that the law holds is judged by
`LawFit.holds` in more than half of the texts, and chance is that of one. Numbers of this very model (4-bit weights,
dequantized) on wikitext-2 from an earlier measurement of ours by other code are self-checks, compared with the mean of its
two parts. Their chance is the share of the other measurements of the same figure that would pass.
"""

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch

from layerlaw.experiments.next_token import language
from layerlaw.experiments.next_token.language import (
    PR,
    TEXTS,
    WIKITEXT,
    Records,
    curve,
    each,
    law,
    law_panel,
    law_rows,
    law_table,
    laws,
    of_wikitext,
    on_all_texts,
    residual_panel,
    stand_in,
    told,
)
from layerlaw.experiments.numbers import Claim, between, holds, of_laws, row, within
from layerlaw.experiments.setting import Setting
from layerlaw.law import CHANCE
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
LABELS = ("in-sample", "held out")
WAYS = {"first": "From the beginning of the text", "spread": "Spread over the text"}
BY_RATIO = {7: (-0.848, 0.05), 14: (-0.898, 0.05), 87: (-0.968, 0.01), 213: (-0.966, 0.01)}  # reference r
WORDS, QUICK_WORDS, SHOWN = ("night", "water", "death"), (5, 6, 7), 8  # words that come in all three texts
UNTRAINED = {  # r of untrained models
    "id": Claim("0.78 (earlier)", tolerance="not judged: weights drawn with another deviation"),
    "embedding": Claim("0.87 (earlier)", tolerance="not judged: weights drawn with another deviation"),
}
A_LAW = replace(holds(kind="other model"), tolerance="> half of the texts, one model", chance=CHANCE)


def reference(value: float, by: float) -> Claim:
    """An earlier measurement of the same model and text by other code: a check of our own."""
    return within(value, by, paper=f"{value:g} (earlier)".replace("-", "−")).of("self-check")


def lm_law(setting: Setting) -> Outcome:
    """The law of next-token prediction on a real model: SmolLM2-135M on three texts.

        layerlaw reproduce lm_law             122,640 predicted tokens of each text, trained and untrained
        layerlaw reproduce lm_law --quick

    The authors find the law in every model of theirs, in-sample, with the token's id as target. Judged: `LawFit.holds`
    of that residual. Held out, without the last block and with the output embedding as target it stands beside.
    Self-checks on wikitext-2: PR .902 at block 1, .823 at block 27, .838 at block 30, r −.966 and −.980 without the last
    block, ρ .9965 per block; embedding r −.970, ρ .9948. The untrained model, of which PR rises (earlier, with weights of
    deviation 0.02: r +.78 and +.87), has weights of deviation 1/24 as SmolLM2 had; it is shown and not judged: it has no
    law, but neither has the trained one.
    """
    records = on_all_texts(setting, targets="id,embedding", null=True)
    sheets = []
    for title, column in language.TARGET_TITLES.items():
        fitted = [law_panel(name, record, column, null=True) for name, record in records.items()]
        left = [residual_panel(f"what the line leaves: {name}", record, column) for name, record in records.items()]
        sheets.append(Sheet(title, [*fitted, *left], len(TEXTS)))
    kinds = {"": "", ", held out": "_held_out", ", untrained": "_untrained"}
    columns = {f"{name}{kind}": f"{c}{end}" for name, c in language.TARGETS.items() for kind, end in kinds.items()}
    fits = each(records, columns)
    tables = [law_table("Fits", fits)]
    for name, record in records.items():
        blocks = [(site.name, *(site.values.get(column) for column in COLUMNS.values())) for site in record.sites]
        tables.append(Table(f"Every block: {name}", ("site", *COLUMNS), blocks))
    rows = _law_rows(records, {} if setting.quick else BLOCKS)
    found = [f"{name}: {law(*which).verdict}" for name, which in fits.items()]
    return Outcome("lm_law", TITLES["lm_law"], rows, sheets, tables, [*found, *told(setting, records)])


def _law_rows(records: Records, known: dict[int, float]) -> list[Row]:
    everywhere, wikitext = list(records.values()), of_wikitext(records)
    blocks = [language.values_of(record) for record in wikitext]
    c, e = language.TARGETS.values()
    short = [law(record, drop_last=1) for record in wikitext]
    measures = {
        "id": [law(record, c) for record in wikitext],
        "id held out": [law(record, f"{c}_held_out") for record in wikitext],
        "embedding": [law(record, e) for record in wikitext],
        "embedding held out": [law(record, f"{e}_held_out") for record in wikitext],
        "short": short,
        **{
            f"{name} untrained": [law(record, f"{column}_untrained") for record in wikitext]
            for name, column in language.TARGETS.items()
        },
    }
    references = {
        "id/pearson": ("id", -0.966, 0.01),
        "id/pearson-without-last": ("short", -0.980, 0.01),
        "id/pearson-held-out": ("id held out", -0.955, 0.01),
        "id/rho": ("id", 0.9965, 0.0005),
        "embedding/pearson": ("embedding", -0.970, 0.01),
        "embedding/rho": ("embedding", 0.9948, 0.0005),
    }
    rows = [
        *law_rows("id", everywhere, claim=A_LAW),
        *law_rows("embedding", everywhere, "residual_embedding"),
        *(
            row(
                f"id/block-{n}-of-wikitext",
                [values[n - 1] for values in blocks],
                reference(value, 0.01 * value),
                among=[other for values in blocks for other in _without(values, n - 1)],
            )
            for n, value in known.items()
        ),
    ]
    for name, (which, value, by) in references.items():
        what = "rho" if name.endswith("rho") else "pearson"
        others = of_laws([fit for other, fits in measures.items() if other != which for fit in fits], what)
        found = of_laws(measures[which], what)
        rows.append(row(f"{name}-as-reference", found, reference(value, by), among=others))
    for name, column in language.TARGETS.items():
        fits = laws(records, f"{column}_untrained")
        held = laws(records, f"{column}_held_out_untrained")
        ends = [value for fit in held for value in fit.values]
        rows += [
            row(f"{name}/holds-untrained", of_laws(fits, "holds")),
            row(f"{name}/pearson-untrained", of_laws(fits, "pearson"), UNTRAINED[name]),
            row(f"{name}/held-out-untrained-lowest", [min(ends)]),
            row(f"{name}/held-out-untrained-highest", [max(ends)]),
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
    paper is judged; self-checks on wikitext-2 are r: one-hot −.932, rank −.973, eight shuffled vocabularies −.868 to
    −.950, separation −.895.
    """
    records = on_all_texts(setting, targets="id,embedding,onehot,shuffled,rank", classes=CLASSES)
    columns = {name: column for name, (column, _) in OTHERS.items()}
    fits = {name: laws(records, column) for name, column in (columns | SHUFFLED).items()}
    wikitext = {
        name: of_laws([law(record, column) for record in of_wikitext(records)], "pearson")
        for name, column in (columns | SHUFFLED).items()
    }
    rows: list[Row] = []
    for name, (column, r) in OTHERS.items():
        others = [value for other, found in wikitext.items() if other != name for value in found]
        rows += law_rows(name, list(records.values()), column)
        claim = reference(r, 0.02)
        if name in language.TARGETS:
            claim = Claim(claim.paper, tolerance="judged in lm_law: the same measurement")
        rows.append(row(f"{name}/pearson-as-reference", wikitext[name], claim, among=others))
    shuffles = [fit for name in SHUFFLED for fit in fits[name]]
    among, found = ([value for name in names for value in wikitext[name]] for names in (OTHERS, SHUFFLED))
    span = between(LOW - 0.02, HIGH + 0.02, f"{LOW} to {HIGH} (earlier)".replace("-", "−")).of("self-check")
    rows.append(row("shuffled/holds", of_laws(shuffles, "holds")))
    rows.append(row("shuffled/pearson", of_laws(shuffles, "pearson")))
    rows.append(row("shuffled/pearson-as-reference", found, span, among=among))
    sheets = []
    for text, record in records.items():
        shuffled = [curve(record, column, "", style="faint") for column in SHUFFLED.values()]
        panels = [
            *(law_panel(name, record, column) for name, column in columns.items() if name != "separation"),
            Panel("eight shuffled vocabularies", shuffled, xlabel="block", ylabel=PR, tight=True),
            Panel(f"separation of {CLASSES} frequent next tokens", [curve(record, "separation", "D")], xlabel="block"),
        ]
        sheets.append(Sheet(f"Targets: {text}", panels))
    table = law_table("Fits", each(records, columns | SHUFFLED))
    held = [
        f"{name} ({sum(f.holds is True for f in found)})" for name, found in fits.items() if any(f.holds for f in found)
    ]
    words = f"The law holds on some text for {len(held)} of {len(fits)} targets"
    words += f" (on how many of the {len(records)} texts): {', '.join(held)}." if held else "."
    return Outcome("lm_targets", TITLES["lm_targets"], rows, sheets, [table], [words, *told(setting, records)])


def lm_normalization(setting: Setting) -> Outcome:
    """Normalization: a fresh norm of the model's kind, none, or standardized tokens.

        layerlaw reproduce lm_normalization
        layerlaw reproduce lm_normalization --quick

    Without a norm a few tokens (the first of each piece) are thousands of times larger than the rest and rule the fit.
    Nothing is judged.
    """
    found = {kind: on_all_texts(setting, normalize=kind, targets="id,embedding") for kind in NORMS}
    rows = [
        one
        for kind, records in found.items()
        for name, column in language.TARGETS.items()
        for one in law_rows(f"{kind}/{name}", list(records.values()), column)
    ]
    sheets = [
        Sheet(f"{title}: {text}", [law_panel(NORMS[kind], records[text], column) for kind, records in found.items()])
        for title, column in language.TARGET_TITLES.items()
        for text in TEXTS
    ]
    fits: dict[str, tuple[Record, str]] = {}
    for kind, records in found.items():
        fits |= each(records, {f"{kind}, {name}": column for name, column in language.TARGETS.items()})
    notes = [language.in_words(NORMS[kind].capitalize(), list(r.values()), "texts") for kind, r in found.items()]
    notes += stand_in(setting)
    return Outcome("lm_normalization", TITLES["lm_normalization"], rows, sheets, [law_table("Fits", fits)], notes)


def lm_flow(setting: Setting) -> Outcome:
    """Information flow: how well each block tells the previous token, the token itself, the next, and the one after.

        layerlaw reproduce lm_flow             trained and untrained
        layerlaw reproduce lm_flow --quick

    The authors measure the same four. That the law holds for the next token is judged in lm_law; what they say of the
    other three is not in the texts at hand, so nothing is judged here.
    """
    records = on_all_texts(setting, targets="id,previous,current,next2", null=True)
    sheets = []
    for text, record in records.items():
        panels = []
        for title, kind in (("trained", ""), ("untrained", "_untrained")):
            series = [curve(record, f"{column}{kind}", name) for name, column in FLOW.items()]
            panels.append(Panel(title, series, xlabel="block", ylabel=PR, log_y=False))
        sheets.append(Sheet(f"Token id: {text}", panels, 2, share_y=True))
    rows, notes = [], []
    for name, column in FLOW.items():
        fits = laws(records, column)
        firsts, lasts = ([fit.values[i] for fit in fits] for i in (0, -1))
        rows += [
            row(f"{name}/change-of-PR", [last - first for first, last in zip(firsts, lasts, strict=True)]),
            row(f"{name}/first-block", firsts),
            row(f"{name}/last-block", lasts),
            row(f"{name}/holds", of_laws(fits, "holds")),
            row(f"{name}/pearson", of_laws(fits, "pearson")),
        ]
        notes += [f"{name.capitalize()} token, {text}: {fit.verdict}" for text, fit in zip(records, fits, strict=True)]
    table = law_table("Fits", each(records, FLOW))
    return Outcome("lm_flow", TITLES["lm_flow"], rows, sheets, [table], [*notes, *told(setting, records)])


def lm_tokens(setting: Setting) -> Outcome:
    """How many tokens? PR and its correlation with depth against n/d, in-sample and held out.

        layerlaw reproduce lm_tokens             7 to 213 tokens per feature
        layerlaw reproduce lm_tokens --quick

    In-sample PR is too low when there are few tokens for d features: d coefficients fit noise. Self-checks are r
    (in-sample) on the first tokens of wikitext-2, which are those of its validation part: −.848 at n/d = 7, −.898 at 14,
    −.968 at 87, −.966 at 213; the last two do not count where most other numbers of tokens would pass them. Few tokens
    from the beginning are also few subjects, so every number of tokens is taken twice: from the beginning, and in pieces
    spread over the text.
    """
    width = 32 if setting.quick else 576
    ratios = QUICK_RATIOS if setting.quick else RATIOS
    tokens = {ratio: round(ratio * width * 512 / 511) for ratio in ratios}  # the last token of a piece has no next
    taken = {
        way: {ratio: on_all_texts(setting, **{given: n}) for ratio, n in tokens.items()}
        for way, given in (("first", "first"), ("spread", "tokens"))
    }
    rows: list[Row] = []
    sheets, tables = [], []
    axes: dict[str, Any] = {"xlabel": "tokens per feature", "log_x": True, "log_y": False}
    heads = ("r", "r held out", "PR last block", "PR last block, held out", "ρ", "evenness", "holds")
    names = ("pearson", "pearson-held-out", "last-block", "last-block-held-out")
    valid = WIKITEXT[0]
    every = {(way, n): law(found[valid]).pearson for way, some in taken.items() for n, found in some.items()}
    for way, by_ratio in taken.items():
        lines: list[tuple[Any, ...]] = []
        means: dict[str, list[float | None]] = {name: [] for name in names}
        for ratio, records in by_ratio.items():
            inside, held = laws(records), laws(records, "residual_held_out")
            numbers: dict[str, Sequence[float | None]] = {
                "pearson": of_laws(inside, "pearson"),
                "pearson-held-out": of_laws(held, "pearson"),
                "last-block": [fit.values[-1] for fit in inside],
                "last-block-held-out": [fit.values[-1] for fit in held],
            }
            for name, values in numbers.items():
                rows.append(one := row(f"{way}/{ratio}-per-feature/{name}", values))
                means[name].append(one.ours)
            rows.append(row(f"{way}/{ratio}-per-feature/holds", of_laws(inside, "holds")))
            if way == "first" and ratio in BY_RATIO:
                others = [r for key, r in every.items() if key != (way, ratio)]
                claim, name = reference(*BY_RATIO[ratio]), f"{way}/{ratio}-per-feature/pearson-as-reference"
                rows.append(row(name, [every[way, ratio]], claim, among=others))
            for i, (text, fit) in enumerate(zip(records, inside, strict=True)):
                found = [values[i] for values in numbers.values()]
                lines.append(
                    (text, ratio, records[text].counts[0], *found, fit.rho, fit.evenness, language.HOLDS[fit.holds])
                )
        r, last = (
            [Series(tuple(tokens), means[name], label) for name, label in zip(pair, LABELS, strict=True)]
            for pair in (names[:2], names[2:])
        )
        panels = [
            Panel("correlation with depth", r, ylabel="r", **axes),
            Panel("PR at the last block", last, ylabel=PR, **axes),
        ]
        sheets.append(Sheet(f"{WAYS[way]}, mean over the texts", panels, 2))
        tables.append(Table(WAYS[way], ("text", "n/d", "tokens", *heads), lines))
    return Outcome("lm_tokens", TITLES["lm_tokens"], rows, sheets, tables, stand_in(setting))


def lm_words(setting: Setting) -> Outcome:
    """Words along depth: the two main directions of some words' hidden states at every block.

        layerlaw reproduce lm_words             three words that come in all three texts
        layerlaw reproduce lm_words --quick     three tokens of a Markov chain

    The authors draw contextual embeddings of chosen words (patients, cells, disorder) and call them chaotic. There is
    no number to compare and nothing is judged; ours is the separation D of the words within the plane, lower where they
    lie further apart.
    """
    records = on_all_texts(setting, words=QUICK_WORDS if setting.quick else WORDS)
    sites = len(next(iter(records.values())).sites)
    shown = range(0, sites, max(1, math.ceil(sites / SHOWN)))
    found: dict[int, list[float | None]] = {i: [] for i in shown}
    sheets = []
    for text, record in records.items():
        labels, panels = torch.tensor(record.plane_labels), []
        for i in shown:
            plane = [(x, y) for x, y in record.sites[i].plane]
            several = len(set(record.plane_labels)) > 1
            found[i].append(float(separation_fuzziness(torch.tensor(plane), labels)) if several else None)
            panels.append(PlanePanel(f"block {i}" if i else "embedded", plane, record.plane_labels, record.plane_names))
        sheets.append(Sheet(f"Words: {text}", panels, 4))
    rows = [row(f"block-{i}/separation-in-the-plane", values) for i, values in found.items()]
    about = "D of the words' tokens within the plane of their two main directions: lower where they lie further apart."
    return Outcome("lm_words", TITLES["lm_words"], rows, sheets, [], [about, *told(setting, records)])
