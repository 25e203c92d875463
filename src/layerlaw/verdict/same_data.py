"""Whether records were measured on the same data, by the fingerprints that they keep."""

from __future__ import annotations

from collections.abc import Sequence

from layerlaw.record import Record

FINGERPRINTS = (
    "data_sha256",  # of language models and of older records
    "data_fingerprint",
    "test_fingerprint",
)


def other_data(records: Sequence[Record]) -> str:
    """What is to be said of the data of several records, as "were measured on different data"; "" where all are the same.

    Records without a fingerprint say nothing.

    >>> a, b = (Record(name=name, sites=[], classes=[], provenance={"data_fingerprint": name}) for name in "ab")
    >>> other_data([a, b]), other_data([a, a])
    ('were measured on different data', '')
    """
    of_kind = ({record.provenance.get(kind) for record in records} - {None} for kind in FINGERPRINTS)
    if not any(len(known) > 1 for known in of_kind):
        return ""
    texts = {(record.provenance.get("text") or {}).get("sha256") for record in records}
    if len(texts) == 1 and None not in texts:
        return "are of one text, cut into other tokens or pieces"
    mixed = any("shuffled" in str(record.settings.get("order")) for record in records)
    return "may be of the same data: one was shuffled by its loader" if mixed else "were measured on different data"
