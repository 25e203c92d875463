"""Whether records were measured on the same data, by the fingerprints that they keep."""

from __future__ import annotations

from collections.abc import Sequence

from layerlaw.record import Record

FINGERPRINTS = {  # and beside them what is the same in every order of the samples
    "data_sha256": "",  # of language models and of older records
    "data_fingerprint": "data_samples",
    "test_fingerprint": "test_samples",
}


def other_data(records: Sequence[Record]) -> str:
    """What is to be said of the data of several records, as "were measured on different data"; "" where all are the same.

    Records without a fingerprint say nothing. The same samples in another order, or dealt to other numbers of processes, are
    the same data; records from before that was written down are compared by their order alone.

    >>> a, b = (Record(name=name, sites=[], classes=[], provenance={"data_fingerprint": name}) for name in "ab")
    >>> other_data([a, b]), other_data([a, a])
    ('were measured on different data', '')
    """
    if not any(_differ(records, *kind) for kind in FINGERPRINTS.items()):
        return ""
    texts = {(record.provenance.get("text") or {}).get("sha256") for record in records}
    if len(texts) == 1 and None not in texts:
        return "are of one text, cut into other tokens or pieces"
    known = all(record.provenance.get("data_samples") is not None for record in records)
    mixed = not known and any("shuffled" in str(record.settings.get("order")) for record in records)
    return "may be of the same data: one was shuffled by its loader" if mixed else "were measured on different data"


def _differ(records: Sequence[Record], ordered: str, any_order: str) -> bool:
    """Whether fingerprints of one kind are of different samples."""
    known = [record for record in records if record.provenance.get(ordered) is not None]
    samples = {record.provenance.get(any_order) for record in known}
    return len({record.provenance[ordered] for record in known}) > 1 and (None in samples or len(samples) > 1)
