"""Records in, sentences out: what holds, which layers are idle, what to do."""

from __future__ import annotations

from dataclasses import dataclass

from layerlaw.errors import InputError
from layerlaw.law import LawFit
from layerlaw.record import Record, SiteRow

IDLE_SHARE = 0.25  # a layer is idle when it does less than a quarter of an even share
NOISE_RATIO = 0.5  # a separation above half of what random labels give says little


@dataclass(frozen=True)
class Verdict:
    """A headline (does the law hold?), findings (what the numbers say) and advice (what to do about it)."""

    headline: str
    findings: tuple[str, ...]
    advice: tuple[str, ...]

    def __str__(self) -> str:
        return "\n".join([self.headline, *(f"· {line}" for line in (*self.findings, *self.advice))])


def judge(record: Record) -> Verdict:
    """Read a record and say what it shows, without overselling."""
    try:
        fit = record.law("separation")
    except InputError as error:
        return Verdict(f"No law can be fitted: {error}", tuple(record.notes), ())
    sites = [site for site in record.sites if site.in_fit]
    findings = [*_work(fit, sites), *_floor(sites), *_null(record), *_test(record), *_collapse(record, sites)]
    return Verdict(fit.verdict, tuple(findings), tuple(_advice(record, fit, sites)))


def idle_layers(fit: LawFit, sites: list[SiteRow]) -> list[str]:
    """Names of the sites whose separation is hardly better than at the site before."""
    if fit.shares is None:
        return []
    return [sites[i + 1].name for i, share in enumerate(fit.shares) if share < IDLE_SHARE / fit.layers]


def _work(fit: LawFit, sites: list[SiteRow]) -> list[str]:
    if fit.shares is None or fit.layers < 2:
        return []
    most = max(range(fit.layers), key=lambda i: fit.shares[i] if fit.shares else 0.0)
    sentence = (
        f"The largest share of the drop, {fit.shares[most]:.0%}, falls between '{sites[most].name}' and "
        f"'{sites[most + 1].name}'; an even share would be {1 / fit.layers:.0%}."
    )
    idle = idle_layers(fit, sites)
    if idle:
        sentence += f" Hardly anything (or a loss) happens on the way to {_listed(idle)}."
    return [sentence]


def _floor(sites: list[SiteRow]) -> list[str]:
    close = [
        site.name
        for site in sites
        if (floor := site.values.get("separation_permuted")) and (site.values["separation"] or 0) > NOISE_RATIO * floor
    ]
    if not close:
        return []
    return [
        f"At {_listed(close)} D is more than half of what permuted labels give: with this many features and samples, "
        "noise alone separates that well."
    ]


def _null(record: Record) -> list[str]:
    if "separation_untrained" not in record.columns:
        return []
    try:
        null = record.law("separation_untrained")
    except InputError:
        return []
    first, last = null.values[0], null.values[-1]
    change = "rises" if last > first else "falls"
    return [
        f"Untrained, the same network {change} from D = {first:.3g} to {last:.3g} (ρ = {null.rho:.3f}): the drop is learned."
        if last > record.law("separation").values[-1] * 2
        else f"Untrained, the same network reaches D = {last:.3g} already (ρ = {null.rho:.3f})."
    ]


def _test(record: Record) -> list[str]:
    if "test_separation" not in record.columns:
        return []
    last = next(site for site in reversed(record.sites) if site.in_fit)
    accuracy = f", accuracy {record.test_accuracy:.1%}" if record.test_accuracy is not None else ""
    value, test = last.values.get("separation"), last.values.get("test_separation")
    if value is None or test is None:
        return []
    return [f"On test data D ends at {test:.3g} (train {value:.3g}){accuracy}."]


def _collapse(record: Record, sites: list[SiteRow]) -> list[str]:
    out = []
    last = sites[-1].values
    if (one := last.get("nc1")) is not None:
        parts = [f"NC1 = {one:.3g}"]
        if last.get("nc3") is not None:
            parts.append(f"NC3 = {last['nc3']:.3g}")
        if last.get("ncc_mismatch") is not None:
            parts.append(f"the nearest class center disagrees with the network on {last['ncc_mismatch']:.1%}")
        out.append(f"At '{sites[-1].name}': {', '.join(parts)}.")
    span = len(record.classes) - 1
    short = [s.name for s in sites if (rank := s.values.get("rank")) is not None and rank < min(span, s.features)]
    if short:
        out.append(
            f"At {_listed(short)} the class means span fewer dimensions than they could (some coincide or are in line): "
            "D is discontinuous there, compare it with its neighbours with care."
        )
    return out


def _advice(record: Record, fit: LawFit, sites: list[SiteRow]) -> list[str]:
    out = []
    depth = record.effective_depth()
    if depth is not None and depth < len(record.sites) - 2:
        out.append(
            f"From '{record.sites[depth].name}' on (site {depth} of {len(record.sites) - 1}) the nearest class center is "
            "right on at least 99 % of the training data: a candidate for early exit, or for fewer layers."
        )
    idle = idle_layers(fit, sites)
    if fit.layers >= 4 and len(idle) > fit.layers / 3:
        out.append(f"{len(idle)} of {fit.layers} layers do little: a shallower network may do as well.")
    if fit.rho >= 1:
        out.append("D grows with depth, as in networks that are untrained or in which a layer destroys the signal.")
    return out


def _listed(names: list[str]) -> str:
    shown = [f"'{name}'" for name in names[:4]]
    return ", ".join(shown) + (f" and {len(names) - 4} more" if len(names) > 4 else "")
