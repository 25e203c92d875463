"""Advice in the terminal (rich): the choice among candidates, the forecast for rare classes, which module obeys the law,
where to leave early."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.table import Table

from layerlaw.pages.terminal import fitting, new_table, plain, point
from layerlaw.verdict import ModuleFinding
from layerlaw.wording import ABSENT, correlation, minus, number, percent, with_error

OVER_FLOOR = "D over its noise floor"
LEFT = ("", "shape", "classes", "by", "phase")  # headings of columns of words
NAMES = ("site", "first site", "data set", "label", "prediction", "decided at")  # the same, beside exits and their like
# Narrow screens lose columns, the highest first; those that are not here stay.
GOES = {"rate": 2, "range over seeds": 3, "ρ": 4, "r": 4, "effective layers": 5, "parameters": 6}


def print_choice(choice: Mapping[str, Any], screen: Console) -> None:
    """Headline, how it was run, one row per candidate, caveats, the last number; of `Choice.to_dict()`."""
    about, how, seconds = (choice["provenance"][part] for part in ("data", "settings", "seconds"))
    runs = len(choice["candidates"]) * len(how["rates"]) * len(how["seeds"])
    headline, *caveats, last = choice["sentences"]
    screen.print(plain(headline, style="bold"))
    samples = f"{about['name']}: {about['train']} training + {about['validation']} validation samples"
    facts = [f"{samples} · {runs} networks, {how['optimizer']}, {how['epochs']} epochs · {seconds:.0f} s"]
    low, high = min(about["per_class"]), max(about["per_class"])
    if low < high:
        facts.append(f"Classes have {low} to {high} images, all of them used; --per-class {low} balances them.")
    screen.print(plain("\n".join(facts), style="dim"), end="\n\n")
    screen.print(_choice_table(choice, screen.width))
    screen.print(plain(_choice_caption(choice), style="dim"), end="\n\n")
    for caveat in caveats:
        screen.print(point(" ·", caveat))
    screen.print(plain(last))


def print_modules(finding: ModuleFinding, screen: Console) -> None:
    """The answer, then a row per level."""
    screen.print(plain(finding.sentence, style="bold"), end="\n\n")
    heads, *rows = finding.rows
    cells = {head: [row[i] for row in rows] for i, head in enumerate(heads)}
    shown = fitting(
        cells, screen.width, {"median p": 1 if len(finding.networks) > 1 else 4, "law holds": 2, "evenness": 3}
    )
    table = new_table(shown, ("level",))
    for i, row in enumerate(rows):
        table.add_row(*(cells[head][i] for head in shown), style="bold" if row[0] == finding.level else None)
    screen.print(table)


def print_exits(
    sentence: str, findings: Sequence[str], rows: Sequence[Sequence[str]], notes: Sequence[str], screen: Console
) -> None:
    """The answer, the rivals, a row per site, caveats."""
    screen.print(plain(sentence, style="bold"))
    for line in findings:
        screen.print(point(" ·", line))
    heads, *body = rows
    cells = {head: [row[i] for row in body] for i, head in enumerate(heads)}
    goes = {"agreement": 3, "layers": 2, "time": 1}  # accuracy and time are the question: time goes last
    yields = {head: goes.get(head.partition(",")[0], 0) for head in heads}
    shown = fitting(cells, screen.width, yields)
    table = new_table(shown, NAMES)
    for i in range(len(body)):
        table.add_row(*(cells[head][i] for head in shown))
    screen.print()
    screen.print(table)
    for note in notes:
        screen.print(point(" ·", note, "dim"))


def _choice_table(choice: Mapping[str, Any], width: int) -> Table:
    """One row per candidate at its chosen learning rate: → recommended, ↓ lowest D."""
    candidates = choice["candidates"]
    rows = [_choice_cells(row, choice["kind"]) for row in candidates]
    absent = [OVER_FLOOR] * (not _over_floor(choice)) + ["failed"] * (not any(row["diverged"] for row in candidates))
    cells = {head: [row[head] for row in rows] for head in rows[0] if head not in absent}
    shown = fitting(cells, width - 3, GOES)
    table = new_table(["", *shown], LEFT)
    for i, row in enumerate(candidates):
        mark = "→" if row["label"] == choice["recommended"] else "↓" if row["label"] == choice["best"] else ""
        comparable = not any(t["diverged"] for t in row["trials"] if t["rate"] == row["rate"])
        style = "bold" if mark == "→" else None if comparable else "dim"
        table.add_row(mark, *(cells[head][i] for head in shown), style=style)
    return table


def _choice_cells(row: Mapping[str, Any], kind: str) -> dict[str, str]:
    low, high = (number(row[f"separation_{end}"]) for end in ("low", "high"))
    finals = next(t["finals"] for t in row["trials"] if t["rate"] == row["rate"])
    effective = row["effective_layers"]
    return {
        kind: row["label"].removeprefix(f"{kind} "),
        "rate": f"{row['rate']:g}",
        "final D": number(row["separation"]),
        "range over seeds": f"{low} … {high}" if len(finals) > 1 else ABSENT,
        OVER_FLOOR: number(row["separation_over_permuted"]),
        "ρ": number(row["rho"]),
        "r": correlation(row["pearson"]),
        "effective layers": ABSENT if effective is None else f"{effective:.1f} of {row['depth'] - 1}",
        "val. accuracy": with_error(row["accuracy"], row["accuracy_error"]),
        "parameters": f"{row['parameters']:,}",
        "failed": str(row["diverged"] or ""),
    }


def _over_floor(choice: Mapping[str, Any]) -> bool:
    return bool(choice["compared_by"] == "separation_over_permuted")


def _choice_caption(choice: Mapping[str, Any]) -> str:
    norm = choice["provenance"]["settings"]["norm"]
    what = "D with running statistics (eval mode)" if norm else "D (eval mode, no BatchNorm)"
    lowest = OVER_FLOOR if _over_floor(choice) else "D"
    arrows = [] if choice["recommended"] is None else [f"→ recommended by {lowest}"]
    arrows += [] if choice["recommended"] == choice["best"] else [f"↓ lowest {lowest}"]
    floor = "; noise floor: D with shuffled labels" if _over_floor(choice) else ""
    return f"{what}, training data; {', '.join(arrows)}{floor}"


def print_forecast(found: Mapping[str, Any], screen: Console) -> None:
    """Headline, one row per group, findings, caveats; of `Forecast.to_dict()`."""
    headline, *lines = found["sentences"]
    right = "" if found["accuracy"] is None else "; right: share of these data"
    screen.print(plain(headline, style="bold"), end="\n\n")
    screen.print(_forecast_table(found))
    screen.print(plain(f"margin: own logit minus the best other, lost at 0 and below{right}", style="dim"), end="\n\n")
    for line in lines:
        screen.print(point(" ·", line, "dim" if line in found["caveats"] else ""))


def _forecast_table(found: Mapping[str, Any]) -> Table:
    """Per group one row as predicted by the norms, one by the norm in use, one as measured; fits into 80 columns."""
    outlooks = {"norms": found["by_norms"], "in use": found["by_use"]}
    known = {name: at for name, at in outlooks.items() if at is not None}
    measured, accuracy = found["measured"], found["accuracy"]
    seen = measured is not None or accuracy is not None
    several = len(known) > 1 or seen
    table = new_table(["classes", *["by"] * several, "phase", "margin", "cosine", "norm", "repeat"], LEFT)
    for i, group in enumerate(found["groups"]):
        rows = [[name, *_outlook_cells(at, i, group["number"])] for name, at in known.items()]
        if seen:
            cosine = "" if measured is None else _decimals(measured[i]["mean_cosine"])
            norm = "" if measured is None else number(measured[i]["mean_row_norm"])
            right = "" if accuracy is None else f"{percent(accuracy[i], 0)} right"
            rows.append(["measured", right, "", cosine, norm, ""])
        for j, cells in enumerate(rows):
            table.add_row("" if j else group["words"], *(cells if several else cells[1:]))
    return table


def _outlook_cells(at: Mapping[str, Any], i: int, classes: int) -> list[str]:
    """The worst phase in a group and how many classes are lost where not all are, margin, cosine, norm, copies."""
    some = f" {at['lost'][i]:,}/{classes:,}" if 0 < at["lost"][i] < classes else ""
    norm = number(at["predicted_row_norms"][i])
    return [f"{at['phases'][i]}{some}", _decimals(at["margins"][i]), _decimals(at["cosines"][i]), norm, _repeat(at, i)]


def _repeat(at: Mapping[str, Any], i: int) -> str:
    """How often to show the samples of a group: whole copies, as a range where its sizes differ; else a factor."""
    copies = [size["copies"] for size in at["sizes"] if size["group"] == i and size["copies"] is not None]
    if copies and not at["binned"]:
        low, high = min(copies), max(copies)
        return ABSENT if high == 1 else f"{high:,}×" if low == high else f"{low:,}–{high:,}×"
    return f"{'≈' if at['binned'] else ''}{number(at['factors'][i])}×" if at["factors"][i] > 1 else ABSENT


def _decimals(value: float | None) -> str:
    return ABSENT if value is None else minus(f"{value:.2f}")
