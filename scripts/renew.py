"""Would the present code still give the ledger's records? `python scripts/renew.py [NAME …]` (some minutes on two cores).

A record names its commit and a digest of the code it comes from; most changes of that code change no number. For every
record with another digest than the present one (or the NAMEs), the experiment is run quickly twice, by the code of the
record's commit and by the present one, which train and measure alike but less. Where all rows agree to six digits, the
record gets the present digest, and its page says so; where they do not, it stays stale: run it again in full.
"""

import json
import math
import os
import subprocess
import sys
import tempfile
from dataclasses import replace
from pathlib import Path

from ledger import RECORDS, ROOT, documents, git, load_records, stale

from layerlaw.experiments import code_digest
from layerlaw.wording import counted

AGREE = 1e-6  # relative; the same code on the same machine gives the same bits
QUICKLY = """
import json, sys
from layerlaw.experiments import reproduce
for name in sys.argv[1:]:
    rows = reproduce(name, quick=True, progress=False).rows
    print("ROWS", json.dumps([name, [[r.name, r.ours, r.low, r.high, r.kind] for r in rows]]), flush=True)
"""
Rows = dict[str, list[list]]


def started(names: list[str], tree: Path) -> subprocess.Popen[str]:
    """Quick runs by the code of one checkout, one after the other."""
    where = {**os.environ, "PYTHONPATH": str(tree / "src"), "OMP_NUM_THREADS": "1"}
    where.pop("LAYERLAW_PREPARED", None)
    return subprocess.Popen(
        [sys.executable, "-c", QUICKLY, *names], cwd=tree, env=where, stdout=subprocess.PIPE, text=True
    )


def rows_of(process: subprocess.Popen[str]) -> Rows:
    lines = process.communicate()[0].splitlines()
    return dict(json.loads(line.removeprefix("ROWS ")) for line in lines if line.startswith("ROWS "))


def differences(before: list[list], now: list[list]) -> list[str]:
    """Names of rows that are not the same."""
    old, new = ({row[0]: row[1:] for row in some} for some in (before, now))
    missing = [
        *(f"{name} is gone" for name in old if name not in new),
        *(f"{name} is new" for name in new if name not in old),
    ]
    return missing + [name for name in old if name in new and not all(map(same, old[name], new[name]))]


def same(a: object, b: object) -> bool:
    if isinstance(a, (int, float)) and isinstance(b, (int, float)):
        return math.isclose(a, b, rel_tol=AGREE, abs_tol=1e-12)
    return a == b


def main() -> int:
    if git("status", "--porcelain", "--", "src"):
        raise SystemExit("src has changes that are not committed: the records could not name their commit.")
    records, names = load_records(), sys.argv[1:] or [outcome.name for outcome in stale()]
    commit, wrong = git("log", "-1", "--format=%H", "--", "src")[:12], 0
    by_commit: dict[str, list[str]] = {}
    for name in names:
        by_commit.setdefault(records[name].provenance["commit"], []).append(name)
    for old, some in by_commit.items():
        with tempfile.TemporaryDirectory() as place:
            tree = Path(place) / "old"
            git("worktree", "add", "--detach", str(tree), old)
            try:
                both = [started(some, one) for one in (tree, ROOT)]
                before, now = map(rows_of, both)
            finally:
                git("worktree", "remove", "--force", str(tree))
        for name in some:
            if name not in before or name not in now:
                print(f"{name}: the quick run failed ({'then' if name not in before else 'now'})")
                wrong += 1
            elif unlike := differences(before[name], now[name]):
                print(f"{name}: {len(unlike)} of {counted(len(before[name]), 'row')} differ: {', '.join(unlike[:5])}")
                wrong += 1
            else:
                checked = f"{counted(len(now[name]), 'row')} of a quick run the same in {commit}"
                about = {**records[name].provenance, "code": code_digest(name), "checked": checked}
                replace(records[name], provenance=about).save(RECORDS / f"{name}.json")
                print(f"{name}: {checked}", flush=True)
    for path, text in documents().items():
        path.write_text(text, encoding="utf-8")
    return min(wrong, 1)


if __name__ == "__main__":
    sys.exit(main())
