"""The verdict on a classifier or a regression: separation along depth, its nulls, the test data, collapse, balance."""

from __future__ import annotations

import math

from layerlaw.errors import InputError
from layerlaw.law import FEWEST_POINTS, LawFit
from layerlaw.law.words import fit_numbers, law_claim, line_numbers, rises_counted
from layerlaw.measures.collapse import rare_classes
from layerlaw.measures.columns import describe
from layerlaw.record import Record, SiteRow
from layerlaw.verdict.levels import module_sentence
from layerlaw.verdict.parts import linear_floor_words, made_of
from layerlaw.verdict.sentences import Verdict, hardly_decides, listed
from layerlaw.verdict.steps import (
    NOISE_RATIO,
    idle_steps,
    largest_step,
    noise_ratios,
    rises_named,
    samples_needed,
    step_places,
)
from layerlaw.wording import counted

CLOSER = 0.2  # a mean cosine of rare classes' rows so much above the frequent ones' is no accident of similar classes
RIGHT, AS_GOOD = 0.99, 0.01  # of the samples, by the nearest class center; on test data, below the last site
READABLE = 0.5  # of the targets: a regression that leaves less reads them well
FEWEST_BLOCKS = 3  # so many give points enough for a law, with the input
UNREAD = 0.9  # a residual above this share of the first one has hardly fallen


def judge_classifier(record: Record) -> Verdict:
    """Does D fall by equal factors, and what do the other measures say?"""
    sites = record.points()
    dead = [site.name for site in sites if site.values.get("rank") == 0.0]
    try:
        if dead:
            raise InputError(f"the class means coincide at {listed(dead)} (a dead layer?).")
        fit = record.law()
    except InputError as error:
        return Verdict(f"No law can be fitted: {error}", tuple(record.notes), tuple(_better_sites(record)))
    findings = [*_along_depth(record, fit, sites), *_collapse(record, sites), *_balance(record)]
    return Verdict(_headline(record, fit), tuple(findings), tuple(_advice(record, fit, sites)))


def _headline(record: Record, fit: LawFit) -> str:
    """Whether the law holds, and in brackets the numbers that say so."""
    rises, clear = rises_counted(fit), not fit.rises_within_errors
    claim = law_claim(fit, fit.quantity, rises=rises, clear=clear, places=step_places(record))
    if (enough := samples_needed(record)) is not None:  # so its evenness says nothing either
        return f"{_cannot_tell(record, fit, enough)} ({', '.join(line_numbers(fit))})."
    return f"{claim} ({', '.join(fit_numbers(fit))})."


def _cannot_tell(record: Record, fit: LawFit, enough: float) -> str:
    """Where D is that of noise, neither law nor rises can be seen."""
    ratios = noise_ratios(record)
    low, high = min(ratios), max(ratios)
    span = f"{low:.0%}" if round(low, 2) == round(high, 2) else f"{100 * low:.0f} to {high:.0%}"
    labels = "labels" if record.kind.of_classes else "targets"
    do = "many more are needed" if enough == math.inf else f"about {float(f'{enough:.2g}'):,.0f} would do"
    given = f"with {sum(record.counts):,} samples it cannot be told whether the law holds"
    return f"{given[:1].upper()}{given[1:]}: {fit.quantity} is {span} of what permuted {labels} give; {do}"


def judge_regression(record: Record) -> Verdict:
    """Does D_reg fall by equal factors, and what do a held-out regression and the network's own output say?"""
    sites = record.points()
    dead = [site.name for site in sites if site.values.get("rank") == 0.0]
    try:
        if dead:
            raise InputError(f"nothing goes with the targets at {listed(dead)} (a dead layer?).")
        fit = record.law()
    except InputError as error:
        return Verdict(f"No law can be fitted: {error}", tuple(record.notes), tuple(_better_sites(record)))
    findings = [*_along_depth(record, fit, sites), *_held_out(fit, sites), *_own_output(record, sites)]
    advice = [*_better_sites(record), *_idle(record, fit)]
    grows = "D_reg grows with depth, as in networks that are untrained or in which a layer destroys the signal."
    return Verdict(_headline(record, fit), tuple(findings), (*advice, *[grows] * (fit.rho >= 1)))


def _along_depth(record: Record, fit: LawFit, sites: list[SiteRow]) -> list[str]:
    """What is said of any separation, of classes or targets."""
    return [
        *largest_step(record, fit),
        *rises_named(record, fit),
        *_set_aside(record),
        *module_sentence(record),
        *_floor(record, sites),
        *_null(record, fit),
        *made_of(record),
        *linear_floor_words(record),
        *_test(record, sites[-1]),
    ]


def _held_out(fit: LawFit, sites: list[SiteRow]) -> list[str]:
    """The share of the targets that a regression on the features leaves, of samples it was not fitted to."""
    known = _known("residual_held_out", sites)
    if len(known) < 2:
        return []
    falls = fit.rho < 1 and fit.shares is not None and not fit.little
    unread = falls and known[-1][1] > UNREAD * known[0][1]
    tail = ": D_reg falls, but the targets become hardly easier to read." if unread else "."
    out = [f"Held out, a linear regression on the features leaves 1 − R² of the targets {_ends(known)}{tail}"]
    worse = [name for name, value in known if value >= 1]
    if worse:
        out.append(f"At {listed(worse)} that is 1 or more: left-out samples are predicted no better than by the mean.")
    if len(tests := _known("test_residual", sites)) > 1:
        lost = falls and not unread and tests[-1][1] > UNREAD * tests[0][1]
        tail = ": what the layers do for the training data does not carry over." if lost else "."
        out.append(f"On test data the regression of the training data leaves {_ends(tests)}{tail}")
    return out


def _known(column: str, sites: list[SiteRow]) -> list[tuple[str, float]]:
    return [(site.name, value) for site in sites if (value := site.values.get(column)) is not None]


def _ends(known: list[tuple[str, float]]) -> str:
    """From where to where a residual goes, and where it is lowest."""
    (where, low), (first, begin), (last, end) = min(known, key=lambda pair: pair[1]), known[0], known[-1]
    lowest = f" (lowest {low:.3f} at '{where}')" if where not in (first, last) else ""
    return f"from {begin:.3f} at '{first}' to {end:.3f} at '{last}'{lowest}"


def _own_output(record: Record, sites: list[SiteRow]) -> list[str]:
    """R² of the network itself, or how many labels it has right."""
    what, values = ("R²", (record.r_squared, record.test_r_squared))
    base = ""
    if record.several_labels:
        what, values = "the share of labels it has right", (record.accuracy, record.test_accuracy)
        known = record.settings.get("most_frequent_accuracy")
        base = f" ({known:.1%} by always giving each label's more frequent answer)" if isinstance(known, float) else ""
    if values[0] is None:
        return []
    written = [f"{value:.1%}" if record.several_labels else f"{value:.3f}" for value in values if value is not None]
    test = f", on test data {written[1]}" if len(written) > 1 else ""
    said = f"Of the network's own output {what} is {written[0]}{base}{test}".replace("-", "−")
    left = _known("residual_held_out", sites)[-1:]
    if record.several_labels or values[0] >= 0 or not left or left[0][1] > READABLE:
        return [f"{said}."]
    (name, residual), below = left[0], "it is worse than the mean of the targets"
    fit = f"while a linear regression on the features at '{name}' leaves only {residual:.3f}"
    return [f"{said}: {below}, {fit}. Other units? The targets may have been scaled in training."]


def _set_aside(record: Record) -> list[str]:
    rows: dict[str, list[str]] = {}
    for site in record.sites:
        if site.aside and not record.beside(site):
            rows.setdefault(site.aside, []).append(site.name)
    said = [
        f"{listed(names)} {'is no point' if len(names) == 1 else 'are no points'}: {why}" for why, names in rows.items()
    ]
    return [f"Left out of the law: {'; '.join(said)}."] if said else []


def _floor(record: Record, sites: list[SiteRow]) -> list[str]:
    lead, symbol = record.leading, describe(record.leading).symbol
    pairs = [(site.name, site.values[lead] or 0, site.values.get(f"{lead}_permuted")) for site in sites]
    close = [name for name, value, floor in pairs if floor and value > NOISE_RATIO * floor]
    labels, tells = ("labels", "separates") if record.kind.of_classes else ("targets", "goes with them")
    sentence = (
        f"At {listed(close)} {symbol} is more than half of what permuted {labels} give: with this many features and "
        f"samples, noise alone {tells} that well."
    )
    return [sentence] * bool(close)


def _null(record: Record, fit: LawFit) -> list[str]:
    try:
        null = record.law(f"{record.leading}_untrained")
    except InputError:
        return []
    first, last, trained = null.values[0], null.values[-1], fit.values[-1]
    change = "rises" if last > first else "falls"
    learned = ": the drop is learned." if last > 2 * trained and trained < first else "."
    facts = f"from {first:.3g} to {last:.3g} (ρ = {null.rho:.3f})"
    return [f"Untrained, {fit.quantity} {change} {facts}; trained it is {trained:.3g} at {last_named(record)}{learned}"]


def _test(record: Record, last: SiteRow) -> list[str]:
    lead, symbol = record.leading, describe(record.leading).symbol
    value, test = last.values.get(lead), last.values.get(f"test_{lead}")
    if value is None or test is None:
        return []
    told = record.test_accuracy is not None and record.kind.of_classes
    accuracy = f"; accuracy {record.test_accuracy:.1%}" if told else ""
    named = record.settings.get("data_name") or "train"
    sentence = f"On test data {symbol} is {test:.3g} at {last_named(record)} ({named} {value:.3g}){accuracy}."
    n, m = sum(record.counts), sum(record.test_counts)
    if n and m and max(n, m) > 1.5 * min(n, m):
        corrected = [last.values.get(name) for name in (f"test_{lead}_corrected", f"{lead}_corrected")]
        sentence += f" {symbol} depends on the number of samples ({m} against {n})"
        if None not in corrected:
            sentence += f"; corrected for it, {corrected[0]:.3g} against {corrected[1]:.3g}"
        sentence += "."
    return [sentence]


def last_named(record: Record) -> str:
    """Where the law ends: a row behind it that is set aside is not meant."""
    return f"'{record.points()[-1].name}', the last point of the law"


def _collapse(record: Record, sites: list[SiteRow]) -> list[str]:
    reads = next((site for site in record.sites if site.aside and site.values.get("nc3") is not None), sites[-1])
    out, last = [], reads.values
    if last.get("nc1") is not None:
        words = {
            "nc1": "NC1 = {:.3g}",
            "nc3": "NC3 = {:.3g}",
            "ncc_mismatch": "the nearest class center disagrees with the network on {:.1%}",
        }
        parts = [text.format(last[name]) for name, text in words.items() if last.get(name) is not None]
        out.append(f"At '{reads.name}': {', '.join(parts)}.")
    span = len(record.classes) - 1
    known = [
        s for s in sites if s.values.get("separation") is not None or s.values.get("rank") == 0
    ]  # no doubt about D
    short = [s.name for s in known if (rank := s.values.get("rank")) is not None and rank < min(span, s.features)]
    if short:
        out.append(
            f"At {listed(short)} the class means span fewer dimensions than they could (some coincide or are in line): "
            "D is discontinuous there, compare it with its neighbors with care."
        )
    return out


def _balance(record: Record) -> list[str]:
    if not record.counts or rare_classes(record.counts) is None:
        return []
    weighs = "by their size" if record.settings.get("weighting", "samples") == "samples" else "equally"
    return [
        f"The classes have {min(record.counts)} to {max(record.counts)} samples; D weighs them {weighs} "
        "(weighting='samples' or 'classes').",
        *_rare_rows(record),
    ]


def _rare_rows(record: Record) -> list[str]:
    """Are the classifier's rows of rare classes clearly closer to each other than those of frequent ones?"""
    names = ("cosine_minority", "cosine_majority", "norm_minority", "norm_majority")
    for site in record.sites:
        rare, frequent, small, large = (site.values.get(f"classifier_{name}") for name in names)
        if rare is None or frequent is None or rare < frequent + CLOSER:
            continue
        norms = "" if small is None or large is None else f"; mean norm {small:.2f} against {large:.2f}"
        return [
            f"The classifier's rows of the rare classes lie closer together than those of the frequent ones (mean cosine "
            f"{rare:.2f} against {frequent:.2f}{norms}): the way to minority collapse. `layerlaw imbalance` says how far."
        ]
    return []


def _advice(record: Record, fit: LawFit, sites: list[SiteRow]) -> list[str]:
    worse = _worse_than_input(record)
    out = [*worse, *_better_sites(record), *_early_exit(record, sites), *_idle(record, fit)]
    falls = fit.values[-1] < fit.values[0] / 2
    if record.accuracy is not None and len(record.classes) > 1 and falls:
        out += hardly_decides(
            record.accuracy, len(record.classes), "the classes separate with depth", cure="scores=None"
        )
    if fit.rho >= 1:
        chance = 1 / max(1, len(record.classes))
        if not worse and record.accuracy is not None and record.accuracy > chance + (1 - chance) / 2:
            out.append(
                "D grows with depth although the network decides well: D is dominated by the weakest directions between "
                "the class means; look at the nearest-center accuracy and at the classes one by one."
            )
        else:
            out.append(
                "D grows with depth, as in networks that are untrained, in which a layer destroys the signal, or whose "
                "inputs are scaled otherwise than in training."
            )
    return out


def _by_blocks(record: Record) -> list[str]:
    """Layers of transformers and mixers lie on residual branches, or read what a norm has made of the stream."""
    blocks = record.settings.get("blocks") or ()
    inside = [site for site in record.sites if any(site.name.startswith(f"{block}.") for block in blocks)]
    tokens = sum(len(site.shape) == 2 for site in inside)
    if record.settings.get("sites") != "layers" or len(blocks) < FEWEST_BLOCKS or 2 * tokens <= len(inside):
        return []
    return [
        "In networks of blocks on tokens the blocks are what papers draw: sites='blocks' measures behind each of the "
        f"{len(blocks)}."
    ]


def _the(record: Record) -> str:
    """The data in a sentence."""
    return record.data_name if record.settings.get("data_name") else f"the {record.data_name}"


def _idle(record: Record, fit: LawFit) -> list[str]:
    idle = idle_steps(fit)
    many = fit.layers >= 4 and len(idle) > fit.layers / 3
    return [f"{len(idle)} of {fit.layers} {record.step_name}s do little: a shallower network may do as well."] * many


def _better_sites(record: Record) -> list[str]:
    """Where else to measure, if that would tell more."""
    return [*_more_points(record), *_by_blocks(record)]


def _more_points(record: Record) -> list[str]:
    """What would give more points, where there are too few for a law."""
    have = len(record.points())
    if have >= FEWEST_POINTS:
        return []
    few = f"{counted(have, 'point')} of a law {'is' if have == 1 else 'are'} too few, it takes {FEWEST_POINTS}"
    if record.by_blocks:
        return [f"{few}: sites='layers' (--sites layers) measures at every weight layer instead of at blocks."]
    if len(record.points(branches=True)) > have:
        return [f"{few}: record.law(branches=True) takes in the rows of side branches."]
    if record.settings.get("sites") == "chosen":
        return [f"{few}: name more sites, or leave the choice out."]
    return []


def _worse_than_input(record: Record) -> list[str]:
    """A network that decides worse than the nearest class center of what enters it, by more than two standard errors."""
    first = record.sites[0]
    pairs = {
        " on test data": (record.test_accuracy, first.values.get("test_ncc_accuracy"), sum(record.test_counts)),
        "": (record.accuracy, first.values.get("ncc_accuracy"), sum(record.counts)),
    }
    for where, (own, center, n) in pairs.items():
        if own is None or center is None or not n or first.at != "input":
            continue
        if center - own > 2 * math.sqrt((own * (1 - own) + center * (1 - center)) / n):
            same = "" if where else ", with the class means of these same samples, which flatters it"
            return [
                f"The network is worse than its own input: it is right on {own:.1%}{where}, the nearest class center of "
                f"what enters it ('{first.name}') on {center:.1%}{same}. "
                "Look at its training and at how its inputs are scaled."
            ]
        return []  # test data decide where there are some
    return []


def _early_exit(record: Record, sites: list[SiteRow]) -> list[str]:
    """From which site after the input on the nearest center stays right, and whether test data agree, where it is known.

    Test data agree where its accuracy on them is within a point of that at the last site.
    """
    accuracies = [site.values.get("ncc_accuracy") for site in sites]
    if (record.accuracy or 0.0) < 0.9 or not record.counts or min(record.counts) < 20 or None in accuracies:
        return []
    right = [a is not None and a >= RIGHT for a in accuracies]
    first = next((i for i in range(len(sites)) if all(right[i:])), None)
    if first is None or right[0] or first >= len(sites) - 2:
        return []
    tests = [site.values.get("test_ncc_accuracy") for site in sites]
    known = [test for test in tests[first:] if test is not None]
    tested = len(known) == len(tests[first:])
    worse = [i for i, test in enumerate(known, first + 1) if tested and test < known[-1] - AS_GOOD]
    depth, right_on = (
        max(worse, default=first),
        f"the nearest class center is right on at least {RIGHT:.0%} of {_the(record)}",
    )
    here, exits = _site_counted(record, sites[first]), "a candidate for early exit, or for fewer layers"
    if depth == first:
        also = f", and on test data within {100 * AS_GOOD:.0f} point of that at '{sites[-1].name}'" * tested
        return [f"From '{sites[first].name}' on ({here}) {right_on}{also}: {exits}."]
    falls = f"on test data it is right on {known[0]:.1%} there and on {known[-1]:.1%} at '{sites[-1].name}'"
    if depth >= len(sites) - 2:
        return [f"From '{sites[first].name}' on ({here}) {right_on}, but {falls}: no candidate for early exit."]
    near = f"Within {100 * AS_GOOD:.0f} point of that it is only from '{sites[depth].name}' on"
    there = _site_counted(record, sites[depth])
    return [f"From '{sites[first].name}' on ({here}) {right_on}; {falls}. {near} ({there}): {exits}."]


def _site_counted(record: Record, site: SiteRow) -> str:
    """Which of all rows it is, counted as in the table and by `record.effective_depth`."""
    return f"site {record.sites.index(site)} of {len(record.sites) - 1}"
