"""Count the ledger again from its records, and compare with what README and docs say: `python scripts/tallies.py`.

Nothing of layerlaw is used: rows are read from the JSON files, and the rule is written out here once more. A row counts
when it was judged and chance would pass its limit at most once in five.
"""

import json
import sys
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
WORDS = {
    "number": "number",
    "direction": "direction",
    "other model": "claim on another model",
    "self-check": "self-check",
}
EASY = 0.2


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
        f"{right[kind]} of {judged[kind]} {word}{'s' * (judged[kind] != 1)}"
        for kind, word in WORDS.items()
        if judged[kind]
    ]
    words = f"{', '.join(parts[:-1])} and {parts[-1]}" if len(parts) > 1 else "".join(parts)
    return (
        f"{words} reproduced ({easy} row{'s' * (easy != 1)} not counted: chance passes {'them' if easy != 1 else 'it'})"
    )


def main() -> int:
    records = {
        path.stem: json.loads(path.read_text(encoding="utf-8")) for path in (ROOT / "docs/reproduction").glob("*.json")
    }
    papers = {
        "separation": [
            rows for name, record in records.items() if not name.startswith("lm_") for rows in record["rows"]
        ],
        "next_token": [rows for name, record in records.items() if name.startswith("lm_") for rows in record["rows"]],
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
        for path in ("README.md", "docs/reproduction.md")
    }
    for paper, rows in papers.items():
        words = tally(rows)
        print(f"{paper}: {words}")
        for path, text in texts.items():
            if words.split(" reproduced")[0] not in text:
                print(
                    f"{path}: expected the words “{words.split(' reproduced')[0]}”, found other ones. Mend the sentence."
                )
                wrong += 1
    return min(wrong, 1)


if __name__ == "__main__":
    sys.exit(main())
