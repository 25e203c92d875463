"""Count the ledger again from its records, and compare with what README and docs say: `python scripts/tallies.py`.

Nothing of layerlaw is used: rows are read from the JSON files, and the rule is written out here once more. A row counts
when it was judged and chance would pass its limit at most once in five.
"""

import json
import sys
from collections import Counter
from functools import cache
from pathlib import Path
from statistics import median

import numpy as np

ROOT = Path(__file__).resolve().parents[1]
WORDS = {
    "number": ("number", "numbers"),
    "direction": ("direction", "directions"),
    "other model": ("claim on another model", "claims on another model"),
    "remark": ("test of a remark", "tests of remarks"),
    "self-check": ("self-check", "self-checks"),
}
EASY = 0.2
TWICE = {("s3", "VGG11"), ("fig10", "2-layer blocks")}  # networks of other figures, shown beside


def tally(rows: list[dict]) -> str:
    """The sentence that README and the index have."""
    judged, right, easy = Counter(), Counter(), 0
    for row in rows:
        if row["reproduced"] is None:
            continue
        if (row.get("chance") or 0) > EASY:
            easy += 1
            continue
        judged[row.get("kind")] += 1
        right[row.get("kind")] += row["reproduced"]
    parts = [
        f"{right[kind]} of {judged[kind]} {several if judged[kind] != 1 else one}"
        for kind, (one, several) in WORDS.items()
        if judged[kind]
    ]
    words = f"{', '.join(parts[:-1])} and {parts[-1]}" if len(parts) > 1 else "".join(parts)
    return (
        f"{words} reproduced ({easy} row{'s' * (easy != 1)} not counted: chance passes {'them' if easy != 1 else 'it'})"
    )


def survivals(records: dict[str, dict]) -> list[str]:
    """What docs/findings.md says of the protocols: as drawn, and with running statistics."""
    rows = [
        row
        for record in records.values()
        for table in record["tables"]
        if table["title"] == "Which claim survives in which protocol"
        for row in table["rows"]
        if not row[0].startswith("Ours: ") and set(row[1:]) != {"–"}
    ]
    laws = [row for row in rows if ": the law holds" in row[0]]
    shown, anew = (
        [row for row in laws if ("rate chosen in each protocol" in row[0]) is chosen] for chosen in (False, True)
    )
    again = {row[0].removesuffix(", rate chosen in each protocol") for row in anew}
    chosen = [row for row in shown if row[0].split(", lr ")[0] in again]
    others = [row for row in rows if row not in laws and "rate chosen in each protocol" not in row[0]]
    (a, b), (c, d), (e, f), (g, h) = (
        [sum(row[i] == "yes" for row in some) for i in (1, 4)] for some in (shown, anew, others, chosen)
    )
    return [
        f"of {len(shown)} claims that the law holds {a} survive in the authors' protocol and {b} with running statistics",
        f"it is {c} and {d} of {sum(row[1] != '–' for row in anew)}, instead of {g} and {h}",
        f"the paper's {len(others)} other claims it is {e} and {f}",
    ]


def noise(record: dict) -> str:
    """What the index says of the networks of Figure 1 in which the law holds: how much their steps differ (CV), by depth."""
    spread: dict[str, list[float]] = {"4": [], "8": [], "20": []}
    for table in record["tables"]:
        if {"holds", "evenness"} <= set(table["columns"]):
            rows = [dict(zip(table["columns"], row, strict=True)) for row in table["rows"]]
            for row in rows:
                if row["holds"] and row["evenness"]:
                    spread[str(row["network"]).split("depth ")[1].split(",")[0]].append(
                        (1 / row["evenness"] - 1) ** 0.5
                    )
    a, b, c = (f"{100 * median(some):.0f}" for some in spread.values())
    return f"in which the law holds the median is {a}, {b} and {c} % at 4, 8 and 20 layers"


def straightness(records: dict[str, dict]) -> str:
    """How many convolutional, residual and dense networks have an r that is no better than that of random splits."""
    panels = [
        panel
        for name in ("fig4", "fig7", "fig8", "fig10", "s2", "s3")
        for panel in records[name]["sheets"][0]["panels"]
        if "mixed" not in panel["title"] and (name, panel["title"].split(", ")[1]) not in TWICE
    ]
    worse = 0
    for panel in panels:
        (points,) = {len(series["x"]) for series in panel["series"] if series["label"] == "D"}
        r = float(panel["note"].split("r = ")[1].split(",")[0].replace("−", "-"))
        worse += r > median_r(points)
    return f"in {worse} of {len(panels)} pairs less straight than the median random split"


@cache
def median_r(points: int, draws: int = 20_000) -> float:
    """The median correlation with depth of a fall that is split into steps at random."""
    steps = np.random.default_rng(0).exponential(size=(draws, points - 1))
    falls = -np.pad(steps.cumsum(1), ((0, 0), (1, 0)))
    depth = np.arange(points) - (points - 1) / 2
    falls -= falls.mean(1, keepdims=True)
    return median(falls @ depth / np.sqrt((falls**2).sum(1) * (depth**2).sum()))


def main() -> int:
    records = {
        path.stem: json.loads(path.read_text(encoding="utf-8")) for path in (ROOT / "docs/reproduction").glob("*.json")
    }
    papers = {
        "separation": [
            rows
            for name, record in records.items()
            if not name.startswith(("lm_", "minority", "svsl_"))
            for rows in record["rows"]
        ],
        "next_token": [rows for name, record in records.items() if name.startswith("lm_") for rows in record["rows"]],
        "layer_peeled": [
            rows for name, record in records.items() if name.startswith("minority") for rows in record["rows"]
        ],
        "collapse": [rows for name, record in records.items() if name.startswith("svsl_") for rows in record["rows"]],
    }
    wrong = 0
    for name, record in records.items():
        missing = [
            row["name"] for row in record["rows"] if row["reproduced"] is not None and row.get("kind") not in WORDS
        ]
        if missing:
            print(f"{name}: rows that are judged but of no kind: {', '.join(missing)}")
            wrong += 1
    texts = {
        path: " ".join((ROOT / path).read_text(encoding="utf-8").split())
        for path in ("README.md", "docs/findings.md", "docs/reproduction.md")
    }
    if (words := noise(records["fig1"])) not in texts["docs/reproduction.md"]:
        print(f"docs/reproduction.md: expected the words “{words}”, found other ones. Mend the sentence.")
        wrong += 1
    words = straightness(records)
    print(f"convolutions: {words}")
    for path in ("README.md", "docs/findings.md"):
        if words not in texts[path]:
            print(f"{path}: expected these words, found other ones. Mend the sentence.")
            wrong += 1
    for words in survivals(records):
        print(f"protocols: {words}")
        if words not in texts["docs/findings.md"]:
            print("docs/findings.md: expected these words, found other ones. Mend the sentence.")
            wrong += 1
    for paper, rows in papers.items():
        if not any(row["reproduced"] is not None for row in rows):
            continue
        words = tally(rows)
        print(f"{paper}: {words}")
        for path in ("README.md", "docs/reproduction.md"):
            if words.split(" reproduced")[0] not in texts[path]:
                print(
                    f"{path}: expected the words “{words.split(' reproduced')[0]}”, found other ones. Mend the sentence."
                )
                wrong += 1
    return min(wrong, 1)


if __name__ == "__main__":
    sys.exit(main())
