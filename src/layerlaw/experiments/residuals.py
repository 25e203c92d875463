"""From records of language models to rows, panels and tables: the prediction residual along depth."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from layerlaw.experiments.drawing import curve_mean
from layerlaw.experiments.numbers import Compare, row
from layerlaw.law import LawFit, fit_law
from layerlaw.outcome import Row, Table
from layerlaw.record import Record
from layerlaw.sheet import Panel, Series

PR = "prediction residual"


def values_of(record: Record, column: str = "residual") -> list[float]:
    """The column at every block."""
    return [value for site in record.sites if site.in_fit and (value := site.values.get(column)) is not None]


def law(record: Record, column: str = "residual", *, drop_last: int = 0) -> LawFit:
    """The law of a column over the blocks, the last so many left out."""
    values = values_of(record, column)
    return fit_law(values[: len(values) - drop_last], quantity="PR")


def pearson_rows(
    name: str,
    records: Sequence[Record],
    column: str = "residual",
    *,
    paper: float | str | None = None,
    holds: Compare | None = None,
    tolerance: str = "",
) -> list[Row]:
    """r over all blocks beside the paper's, then r without the last block and held out, ρ, effective blocks and p."""
    fits = [law(record, column) for record in records]
    short = [law(record, column, drop_last=1) for record in records]
    rows = [
        row(f"{name}/pearson", [f.pearson for f in fits], paper=paper, holds=holds, tolerance=tolerance),
        row(f"{name}/pearson-without-last-block", [f.pearson for f in short]),
        row(f"{name}/rho", [f.rho for f in fits]),
        row(f"{name}/effective-blocks", [f.effective_layers for f in fits], reason="PR does not fall with depth"),
        row(f"{name}/greenwood-p", [f.greenwood_p for f in fits], reason="PR does not fall with depth"),
    ]
    held = f"{column}_held_out"
    if all(held in record.columns for record in records):
        rows.insert(2, row(f"{name}/pearson-held-out", [law(record, held).pearson for record in records]))
    return rows


def curve(record: Record, column: str, label: str, *, style: str = "points", color: int | None = None) -> Series:
    """A column against the number of the block."""
    values = values_of(record, column)
    return Series(range(1, len(values) + 1), values, label, style=style, color=color)  # type: ignore[arg-type]


def law_panel(title: str, record: Record, column: str = "residual", *, null: bool = False) -> Panel:
    """A column with its line, held-out values beside it, the untrained model where it was measured."""
    fit = law(record, column)
    x = range(1, fit.points + 1)
    series = [Series(x, fit.line, "line", style="fit"), curve(record, column, "in-sample")]
    if f"{column}_held_out" in record.columns:
        series.append(curve(record, f"{column}_held_out", "held out"))
    if null and f"{column}_untrained" in record.columns:
        series.append(curve(record, f"{column}_untrained", "untrained", style="null"))
    return Panel(title, series, xlabel="block", ylabel=PR, note=note(fit), tight=True)


def curves_panel(
    title: str, curves: Mapping[str, Sequence[float]], *, log_y: bool = True, xlabel: str = "block"
) -> Panel:
    """Several curves along depth."""
    series = [Series(range(1, len(values) + 1), values, label) for label, values in curves.items()]
    return Panel(title, series, xlabel=xlabel, ylabel=PR, log_y=log_y, tight=True)


def residual_panel(title: str, record: Record, column: str = "residual") -> Panel:
    """What the line leaves of ln PR: a curve where the law is only nearly one."""
    fit = law(record, column)
    x = range(1, fit.points + 1)
    zero = Series(x, [0.0] * fit.points, style="fit")
    return Panel(title, [zero, Series(x, fit.residuals)], xlabel="block", ylabel="ln PR minus the line", log_y=False)


def mean_curve(records: Sequence[Record], column: str = "residual") -> list[float]:
    """Geometric mean over seeds, block by block."""
    return list(curve_mean([values_of(record, column) for record in records]))


def note(fit: LawFit) -> str:
    """What stands inside a panel."""
    r = "–" if fit.pearson is None else f"{fit.pearson:.3f}"
    return f"r = {r}, ρ = {fit.rho:.4f}".replace("-", "−")


def block_table(title: str, record: Record, columns: Mapping[str, str]) -> Table:
    """Every block with the named columns."""
    rows = [(site.name, *(site.values.get(column) for column in columns.values())) for site in record.sites]
    return Table(title, ("site", *columns), tuple(rows))


def law_table(title: str, laws: Mapping[str, tuple[Record, str]]) -> Table:
    """One line of fit per record and column."""
    rows = []
    for name, (record, column) in laws.items():
        fit, short = law(record, column), law(record, column, drop_last=1)
        rows.append(
            (
                name,
                fit.values[0],
                fit.values[-1],
                fit.pearson,
                short.pearson,
                fit.rho,
                fit.effective_layers,
                fit.greenwood_p,
            )
        )
    heads = ("what", "PR, first block", "PR, last block", "r", "r without last", "ρ", "effective blocks", "p")
    return Table(title, heads, tuple(rows))
