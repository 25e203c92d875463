"""What the file of a record may hold: a rule for every field, for every column, and how their lengths belong together."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

from layerlaw.measures.columns import REGISTRY, describe
from layerlaw.plain import (
    Rule,
    anything,
    check_number,
    check_truth,
    coordinate,
    either,
    fields,
    misfit,
    named,
    nothing_or,
    number_from,
    one_of,
    several,
    text_of,
    whole_from,
)

# A small file must not keep verdicts and pages busy for minutes: far more than any network has, and no more.
MOST_SITES, MOST_PARTS = 5_000, 20_000
MOST_CLASSES = 1_000_000
MOST_NOTES = 1_000
MOST_GROUPS = 1_000  # numbers of a column with one group left out
MOST_POINTS = 5_000  # of a site's plane
MOST_VIEWED = 1_000  # samples in three dimensions
MOST_IN_ALL = 1_000_000  # numbers left out, or points of planes, of all sites together
LONGEST_NAME, LONGEST_NOTE = 1_000, 10_000  # characters
NOT_NEGATIVE = ("separation", "target_separation", "nc1", "cdnv", "compression")  # and what is made from these
PART_KINDS = ("map", "normalization", "nonlinearity", "branches", "other")


def column_rule(name: str) -> Rule:
    """What a column may hold: shares from 0 to 1, ranks that are whole, errors and fuzziness that are not negative."""
    return _column_rule(name, name in REGISTRY)  # a measure may be registered for a while


@cache
def _column_rule(name: str, registered: bool) -> Rule:
    column, bare = describe(name), name.removeprefix("test_")
    if name.endswith("_log_se"):
        return nothing_or(number_from(0))
    if column.format == "percent":
        return nothing_or(number_from(0, 1))
    if column.kind is bool:
        return nothing_or(number_from(0, 1, slack=0))
    if column.kind is int:
        return nothing_or(number_from(0, 2**53))  # as far as floats count
    if bare.startswith(NOT_NEGATIVE):
        return nothing_or(number_from(0))
    return nothing_or(check_number)


def class_rule(name: str) -> Rule:
    """The same of a column that has a number per class or target."""
    return several(column_rule(name))


def group_rule(name: str) -> Rule:
    """The same of a column that has a number per group left out."""
    return several(column_rule(name), 0, MOST_GROUPS)


VALUES = named(column_rule, by_name=True, plain=True)
LISTS = named(class_rule, by_name=True, plain=True)
GROUPS = named(group_rule, by_name=True, plain=True)
SHARE, SCORE = nothing_or(number_from(0, 1)), nothing_or(number_from(-float("inf"), 1))
POINT = several(nothing_or(coordinate), 2, 2)
PLACE = several(coordinate, 3, 3)
NAME, NOTE = text_of(LONGEST_NAME), text_of(LONGEST_NOTE)
NAMES = several(NAME)
SCALING = nothing_or(either(several(anything, 2, 2), NOTE))  # of pixels or features: a name, or mean and deviation

SITE = fields(
    {"name": NAME, "type": NAME, "shape": several(whole_from(0), 0, 64), "features": whole_from(0)},
    {
        "in_fit": check_truth, "at": NAME, "values": VALUES, "by_class": LISTS, "plane": several(POINT, 0, MOST_POINTS),
        "left_out": GROUPS, "branch": check_truth, "aside": NOTE,
    },
)  # fmt: skip
PART = fields(
    {"layer": NAME, "kind": one_of(*PART_KINDS), "module": NAME, "type": NAME},
    {"before": VALUES, "values": VALUES, "branch": check_truth},
)
COLLAPSE_VIEW = fields({}, {  # three classes in three dimensions
    "classes": several(whole_from(0), 3, 3), "labels": several(whole_from(0, 2), 0, MOST_VIEWED),
    "features": several(PLACE, 0, MOST_VIEWED), "means": several(PLACE, 3, 3), "rows": several(PLACE, 0, 3),
})  # fmt: skip
# Settings and provenance are free but for what verdicts and pages read.
SETTINGS = fields({}, {
    "data_name": NOTE, "sites": either(NAMES, NOTE), "reduce": nothing_or(NOTE), "head": check_truth,
    "blocks": nothing_or(either(NAMES, NOTE)), "in_front": named(NAMES), "task": NOTE,
    "embedded": check_truth, "weighting": NOTE, "targets": either(named(anything), NOTE), "most_frequent_accuracy": SHARE,
    "classes": either(whole_from(0), several(anything)), "tokens": whole_from(0), "documents": whole_from(0),
    "length": nothing_or(whole_from(0)), "tokens_per_feature": number_from(0), "loss": nothing_or(check_number),
    "null_std": nothing_or(number_from(0)), "mode": nothing_or(NOTE), "batchnorm": nothing_or(NOTE),
    "normalise": SCALING, "normalize": SCALING,
})  # fmt: skip
PROVENANCE = fields({}, {
    "parameters_sha256": nothing_or(NOTE), "data_sha256": nothing_or(NOTE),
    "data_fingerprint": nothing_or(NOTE), "data_samples": nothing_or(NOTE), "model": nothing_or(NOTE),
    "text": nothing_or(fields({}, {"name": nothing_or(NOTE), "sha256": nothing_or(NOTE)})),
    "recipe": nothing_or(named(anything)),
})  # fmt: skip
RECORD = fields(
    {"name": NAME, "sites": several(SITE, 0, MOST_SITES), "classes": several(NAME, 0, MOST_CLASSES)},
    {
        "kind": NAME, "counts": several(whole_from(0)), "test_counts": several(whole_from(0)), "accuracy": SHARE,
        "test_accuracy": SHARE, "r_squared": SCORE, "test_r_squared": SCORE,
        "plane_labels": several(whole_from(0), 0, MOST_POINTS), "collapse_view": COLLAPSE_VIEW,
        "words": several(NAME, 0, MOST_CLASSES), "settings": SETTINGS, "provenance": PROVENANCE,
        "notes": several(NOTE, 0, MOST_NOTES), "parts": several(PART, 0, MOST_PARTS), "version": whole_from(1),
    },
)  # fmt: skip


def check_record(data: Mapping[str, Any]) -> None:
    """Raise unless plain data are a whole record: every field by its rule, and lengths that belong together."""
    RECORD(data, "")
    classes, words = data["classes"], data.get("words") or ()
    of_classes = data.get("kind", "classifier") == "classifier"
    for name in ("counts", "test_counts"):
        if of_classes and data.get(name) and len(data[name]) != len(classes):
            raise misfit(name, f"a count for each of the {len(classes)} classes", data[name])
    labels, known = data.get("plane_labels", ()), len(words or classes)
    if labels and max(labels) >= max(known, 1):
        raise misfit("plane_labels", f"labels below {max(known, 1)}, the number of names for them", max(labels))
    check_view(data.get("collapse_view") or {}, len(classes))
    check_totals(data["sites"])
    seen: set[tuple[str, str]] = set()
    groups: dict[str, int] = {}
    for i, site in enumerate(data["sites"]):
        where, place = f"sites[{i}]", (site["name"], site.get("at", ""))
        if place in seen:
            raise misfit(f"{where}.name", "every site once", site["name"])
        seen.add(place)
        if labels and len(site.get("plane") or ()) > len(labels):  # of wide features fewer samples are kept
            raise misfit(f"{where}.plane", f"at most a point for each of the {len(labels)} plane_labels", site["plane"])
        for name, values in site.get("by_class", {}).items():
            if len(values) != len(classes):
                raise misfit(f"{where}.by_class.{name}", f"a number for each of the {len(classes)} classes", values)
        for name, values in site.get("left_out", {}).items():
            if values and len(values) != groups.setdefault(name, len(values)):
                raise misfit(f"{where}.left_out.{name}", f"{groups[name]} numbers, as at other sites", values)


def check_view(view: Mapping[str, Any], classes: int) -> None:
    """Raise where the view of three classes is not whole: its fields, its classes, a label for each sample."""
    where = "collapse_view"
    for name in ("classes", "labels", "features", "means", "rows") if view else ():
        if name not in view:
            raise misfit(f"{where}.{name}", "this field, which is missing")
    if view and max(view["classes"]) >= classes:
        raise misfit(f"{where}.classes", f"numbers below {classes}, the number of classes", view["classes"])
    if view and len(view["labels"]) != len(view["features"]):
        raise misfit(f"{where}.labels", f"a label for each of the {len(view['features'])} features", view["labels"])
    if view and len(view["rows"]) not in (0, 3):
        raise misfit(f"{where}.rows", "a row for each of the three classes, or none", view["rows"])


def check_totals(sites: Sequence[Mapping[str, Any]]) -> None:
    """Raise where sites that each keep to their limits hold too much together."""
    points = sum(len(site.get("plane", ())) for site in sites)
    numbers = sum(len(values) for site in sites for values in site.get("left_out", {}).values())
    for what, total in (("plane", points), ("left_out", numbers)):
        if total > MOST_IN_ALL:
            raise misfit(f"sites.{what}", f"at most {MOST_IN_ALL:,} entries of all sites together", total)
