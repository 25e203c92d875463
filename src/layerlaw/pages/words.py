"""The written sections of a page: verdict, key numbers, how it was measured."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from layerlaw.pages.html.escaping import escaped
from layerlaw.pages.record_view import RecordView
from layerlaw.wording import ABSENT, clean, correlation, counted, number, p_value, percent, sentence

MOST_LISTED = 12
LONGEST_VALUE = 400

FORMULAS = (
    ("Separation fuzziness", "D = Tr(SS<sub>w</sub> SS<sub>b</sub><sup>+</sup>)",
     "SS<sub>w</sub> and SS<sub>b</sub> are the within- and between-class scatter of the features, <sup>+</sup> the "
     "pseudo-inverse. Lower is better separated."),
    ("The law", "D<sub>l</sub> ≐ ρ<sup>l</sup> D<sub>0</sub>",
     "ρ is the exponential of the least-squares slope of ln D<sub>l</sub> on l; the half-life is ln 2 / ln(1/ρ) layers."),
    ("Share of the work", "p<sub>l</sub> = (ln D<sub>l−1</sub> − ln D<sub>l</sub>) / (ln D<sub>0</sub> − ln D<sub>m</sub>)",
     "Effective layers are 1 / Σ p<sub>l</sub><sup>2</sup>; Greenwood’s p is the chance that a random split of the same "
     "drop is at least as even."),
    ("Nearest class center", "argmin<sub>c</sub> ‖x − μ<sub>c</sub>‖",
     "μ<sub>c</sub> are class means of the training data. Error: it is wrong. Mismatch: it disagrees with the network."),
    ("Neural collapse", "NC1 = Tr(Σ<sub>W</sub> Σ<sub>B</sub><sup>+</sup>) / K",
     "Classes weighted equally. NC2: equal norms and angles of the class means; NC3: classifier and class means align. "
     "CDNV: (Var<sub>c</sub> + Var<sub>c′</sub>) / 2‖μ<sub>c</sub> − μ<sub>c′</sub>‖², averaged over pairs. "
     "Compression: Tr SS<sub>w</sub> / Tr SS<sub>b</sub>."),
)  # fmt: skip

CITATIONS = (
    "H. He and W. J. Su, A law of data separation in deep learning, PNAS 120 (36), e2221704120, 2023.",
    "V. Papyan, X. Y. Han and D. L. Donoho, Prevalence of neural collapse during the terminal phase of deep learning "
    "training, PNAS 117, 24652–24663, 2020.",
    "I. Ben-Shaul and S. Dekel, Nearest class-center simplification through intermediate layers, Topological, Algebraic "
    "and Geometric Learning Workshops (PMLR), 37–47, 2022.",
    "T. Galanti, A. György and M. Hutter, On the role of neural collapse in transfer learning, ICLR 2022.",
    "T. Galanti, On the implicit bias towards minimal depth of deep neural networks, arXiv:2202.09028, 2022.",
)


def facts(view: RecordView) -> list[str]:
    """Samples, classes, sites and accuracies, as far as they are known."""
    record = view.record
    if view.language_model:
        return _lm_facts(view)
    parts = [counted(sum(record.counts), "training sample")] if record.counts else []
    if record.test_counts:
        parts.append(counted(sum(record.test_counts), "test sample"))
    if record.classes:
        parts.append(counted(len(record.classes), "class", "classes"))
    parts.append(counted(len(record.sites), "site"))
    if record.accuracy is not None:
        parts.append(f"train accuracy {percent(record.accuracy)}")
    if record.test_accuracy is not None:
        parts.append(f"test accuracy {percent(record.test_accuracy)}")
    return parts


def _lm_facts(view: RecordView) -> list[str]:
    """Tokens, blocks, task: as far as they are known."""
    record, known = view.record, view.record.settings
    parts = [counted(sum(record.counts), "token")] if record.counts else []
    each = known.get("tokens_per_feature")
    if parts and isinstance(each, (int, float)):
        parts[0] += f" ({each:.0f} per feature)"
    parts.append(counted(len(view.fit_positions), "block"))
    documents = known.get("documents")
    if isinstance(documents, int):
        parts.append(counted(documents, "document"))
    task, loss = task_name(view), known.get("loss")
    parts += [f"task: {task}"] if task else []
    return [*parts, f"its loss {loss:.2f} nats per token"] if isinstance(loss, (int, float)) else parts


def task_name(view: RecordView) -> str:
    """What a language model was to tell, in words; nothing where that is not known."""
    names = {"next": "next token", "masked": "masked tokens", "span": "masked spans"}
    return names.get(str(view.record.settings.get("task")), "")


def subtitle(view: RecordView) -> str:
    """The facts in one line, which breaks only between them."""
    return " · ".join(f'<span class="fact">{part}</span>' for part in facts(view))


def verdict_html(view: RecordView) -> str:
    """The headline large, its numbers below; findings, advice, and the record's notes in gray."""
    headline, numbers = split_headline(view)
    verdict = view.verdict
    notes = [note for note in view.record.notes if note not in verdict.findings]
    out = [f'<p class="headline">{escaped(sentence(headline))}</p>']
    if numbers:
        out.append(f'<p class="facts">{_unbroken(numbers)}</p>')
    out.append(_list(verdict.findings, "findings"))
    if verdict.advice:
        out.append(f"<h3>What to do</h3>{_list(verdict.advice, 'advice')}")
    out.append(_list(notes, "notes"))
    return "".join(out)


def split_headline(view: RecordView) -> tuple[str, str]:
    """The sentence, and the numbers it carries in brackets."""
    headline = view.verdict.headline
    if view.fit is not None and headline.endswith(").") and " (" in headline:
        head, numbers = headline[:-2].split(" (", 1)
        return head.rstrip(".") + ".", numbers
    return headline, ""


def law_cards(view: RecordView) -> str:
    """The key numbers of the fit."""
    fit = view.fit
    if fit is None:
        return '<p class="empty">No law could be fitted, for the reason given above.</p>'
    even = "" if fit.effective_layers is None else f" of {fit.layers}"
    return cards(
        [
            ("ρ", number(fit.rho), "factor per layer"),
            ("half-life", number(fit.half_life), "layers to halve D"),
            ("r", correlation(fit.pearson), "Pearson, of ln D and depth"),
            ("effective layers", number(fit.effective_layers, 2) + even, "doing even work"),
            ("Greenwood p", p_value(fit.greenwood_p), "a random split is as even"),
            ("chord deviation", percent(fit.chord_deviation), "of the drop, at most"),
            ("inefficiency", number(fit.inefficiency, 4), "1 when all ratios are equal"),
            ("final D", number(fit.values[-1]), f"from {number(fit.values[0])}"),
        ]
    )


def collapse_cards(view: RecordView) -> str:
    """Numbers that exist only at the classifier."""
    wanted = (
        ("NC2 norms", "nc2_norms_classifier", "of the classifier’s rows"),
        ("NC2 angles", "nc2_angles_classifier", "of the classifier’s rows"),
        ("NC3", "nc3", "classifier against class means"),
        ("NC4", "nc4", "nearest center against network"),
        ("cosine", "classifier_cosine", "mean, between the classifier’s rows"),
        ("rare cosine", "classifier_cosine_minority", "mean, between rows of rare classes"),
        ("rare norm", "classifier_norm_minority", "mean, of rows of rare classes"),
        ("frequent norm", "classifier_norm_majority", "mean, of rows of frequent classes"),
    )
    known = [(head, number(value), tail) for head, column, tail in wanted if (value := view.last(column)) is not None]
    return cards(known) if known else ""


def cards(items: Iterable[tuple[str, str, str]]) -> str:
    """A strip of numbers: (what, number, in other words); what has no number is left out."""
    inner = "".join(
        f"<div><dt>{what}</dt><dd>{escaped(value)}</dd><dd class='tail'>{tail}</dd></div>"
        for what, value, tail in items
        if value != ABSENT
    )
    return f'<dl class="cards">{inner}</dl>'


def method_html(view: RecordView) -> str:
    """Settings and provenance of one record."""
    parts = [
        f"<h3>{head}</h3>{_definitions(values)}"
        for head, values in (("Settings", view.record.settings), ("Provenance", view.record.provenance))
        if values
    ]
    return "".join(parts) or '<p class="empty">The record holds no settings and no provenance.</p>'


def formulas_html() -> str:
    """Definitions and citations of classifiers, once per page."""
    return definitions_html(FORMULAS, CITATIONS)


def definitions_html(formulas: Iterable[tuple[str, str, str]], citations: Iterable[str]) -> str:
    """What each symbol is, and who said so."""
    rows = "".join(f"<dt>{what}</dt><dd><span class='formula'>{how}</span>{why}</dd>" for what, how, why in formulas)
    papers = "".join(f"<li>{escaped(line)}</li>" for line in citations)
    return f"<dl class='formulas'>{rows}</dl><h3>Sources</h3><ul class='papers'>{papers}</ul>"


def written_value(value: Any) -> str:
    """A setting as words: lists joined and cut, dictionaries as pairs.

    >>> written_value([1, 2.5, None]), written_value({"lr": 1e-3}), written_value(True)
    ('1, 2.50, –', 'lr: 0.00100', 'yes')
    """
    if isinstance(value, bool):
        return "yes" if value else "no"
    if value is None or isinstance(value, float):
        return number(value)
    if isinstance(value, dict):
        return _joined([f"{key}: {written_value(v)}" for key, v in value.items()])
    if isinstance(value, (list, tuple)):
        return _joined([written_value(v) for v in value])
    text = clean(str(value))
    return text if len(text) <= LONGEST_VALUE else f"{text[:LONGEST_VALUE]}…"


def _joined(items: list[str]) -> str:
    if len(items) <= MOST_LISTED:
        return ", ".join(items)
    return f"{', '.join(items[: MOST_LISTED - 1])}, …, {items[-1]} ({len(items)} in all)"


def _definitions(values: dict[str, Any]) -> str:
    rows = "".join(
        f"<dt>{escaped(str(key).replace('_', ' '))}</dt><dd>{escaped(written_value(value))}</dd>"
        for key, value in values.items()
    )
    return f'<dl class="settings">{rows}</dl>'


def _unbroken(text: str) -> str:
    """A sentence in which no line ends at an equals sign."""
    return escaped(sentence(text)).replace(" = ", "&nbsp;=&nbsp;")


def _list(lines: Iterable[str], kind: str) -> str:
    items = "".join(f"<li>{_unbroken(line)}</li>" for line in lines)
    return f'<ul class="{kind}">{items}</ul>' if items else ""
