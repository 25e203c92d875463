"""Write docs/reproduction.md, a page per figure and the records behind them: `python scripts/ledger.py [FOLDER …]`.

FOLDER is what `layerlaw reproduce … --out FOLDER` left; its outcomes (NAME.json) are copied to docs/reproduction/ with the
commit of the code they come from, and their first figures drawn beside them. The index and the pages are written anew
from all records there, so that figures can be run one by one. A test compares them with what this script makes of the
records. `--stale` only lists the records that come from other code than the present one, with their judged rows.
"""

import subprocess
import sys
from collections import Counter
from dataclasses import replace
from pathlib import Path

from layerlaw.experiments import PAPERS, code_digest
from layerlaw.outcome import Outcome
from layerlaw.pages import draw_sheet, ledger_index, ledger_page
from layerlaw.pages.markdown import markdown_table

ROOT = Path(__file__).resolve().parents[1]
DOCS = ROOT / "docs"
RECORDS = DOCS / "reproduction"
PROTOCOLS = "Which claim survives in which protocol"
INTRO = """# Reproduction

Every figure at full size, by `layerlaw reproduce NAME`; behind each figure stand all its numbers with ranges over seeds, what each
accepts, how often chance would pass it, whole learning-rate grids, and what did not come out with what was tried. Made by
`python scripts/ledger.py` from the records in [reproduction/](reproduction); `python scripts/tallies.py` counts them again.

How it is judged. *Numbers* are what the paper gives in digits, *directions* what it says in words; *other model* is a claim of the paper
tried on a model that is not the authors', *self-checks* are ours. That a law holds, or that none does, is one rule for all
([law.md](law.md)), asked in every seed; a direction is a one-sided t test over seeds at the 5 % level. Rows that something without the
claimed property would pass more often than once in five are shown but not counted (a correlation of −0.99 at 4 or 8 layers, say).
Tolerances of numbers were written before the first full-size runs, most of the rules after an audit of those; both before the runs
shown here."""
SECTIONS = {
    "separation": """## Data separation

*A Law of Data Separation in Deep Learning* (He & Su, PNAS 2023): its feed-forward figures, and Fig. S9 on a small BERT that stands in for the
authors'. Not attempted: Figs. 4, 7, 8, 10, S2, S3 (convolutional and residual networks). Each seed draws its own images (10 seeds in
Figs. 1, 2, 3, 5, 9, *performance* and *reactivation*, 3 in the others), collected in a random order until every class is full, as the
authors' are. They measure in chunks of 100 with the statistics of the chunk; **what is left of each claim under other BatchNorm protocols is
a page of its own: [protocols](reproduction/protocols.md).**""",
    "next_token": """## Next-token prediction

*A Law of Next-Token Prediction* (He & Su, arXiv 2408.13442): log of the prediction residual PR falls linearly over the blocks.
SmolLM2-135M-Instruct (4-bit weights, dequantized) on wikitext-2, and models of our own trained on 35 of 41 classic books. The authors' models
are not at hand, so every claim is one on another model; self-checks compare with an earlier measurement of the same model and text by other
code, or with the untrained model.""",
}
PROTOCOL_INTRO = """# Which claim survives in which protocol

[All figures](../reproduction.md). The same trained networks, measured in five ways; only BatchNorm's statistics while measuring differ. *As drawn*: chunks
of 100 in the order in which the images were collected (random until every class is full, so that the last chunks hold few classes), the
authors' protocol; *shuffled*: chunks of 100 in a random order; *balanced*: chunks of 100 with ten of each class; *running* statistics, what
the network uses when it is applied; *all samples*: their statistics at once.

{headline}

A claim that needs one protocol is a statement about that protocol as much as about networks. Uneven chunks make D of the last layers larger
and the line straighter ([batchnorm.md](../batchnorm.md))."""
RERUN = (
    "With other pieces of the text, chosen in three ways, PR differs by up to 0.4 % (held out 0.6 %) and r by up to .003; with the same pieces "
    "CPU and GPU had agreed to 1·10⁻⁵ (embeddings: 3·10⁻⁵)."
)
CAVEATS = {
    "fig2": "The paper shows one network; “around epoch 100” is read as 50 to 150.",
    "fig5": "A depth counts as the paper's when it is at most one layer away. One of six random depths would be; the ranges over single seeds are wide.",
    "fig6": "“About the same” for widths 100 and 1000 is in the paper's first version only, and is not counted.",
    "linearized": "From the authors' code, not from the paper.",
    "s1": "The paper gives no values, only a curve.",
    "s9": "MiniLM-L6 stands in for BERT-base-cased.",
    "lm_law": "The tolerances of the reference numbers were known together with the numbers (1 % for PR and 0.01 for r were requested). On the "
    f"*first* tokens of the text PR is 2 % lower ([lm_tokens](lm_tokens.md)), so tokens are spread over the text. {RERUN}",
    "lm_targets": RERUN,
    "lm_words": RERUN,
    "lm_sizes": "One seed.",
    "lm_task": "The GPTs are those of [lm_training](lm_training.md) and are judged there.",
}
TRIED: dict[str, str] = {}  # what was tried about a number that did not come out: "figure/row"


def load_records() -> dict[str, Outcome]:
    """The records of the ledger, by name."""
    return {path.stem: Outcome.load(path) for path in sorted(RECORDS.glob("*.json"))}


def documents() -> dict[Path, str]:
    """The index, the page of every figure and the one of the protocols, by where they stand."""
    found = load_records()
    index = [INTRO]
    pages = {}
    for paper, names in PAPERS.items():
        outcomes = [found[name] for name in names if name in found]
        index += [SECTIONS[paper], ledger_index(outcomes, folder=RECORDS.name)]
        for outcome in outcomes:
            name = outcome.name
            tried = {key.removeprefix(f"{name}/"): words for key, words in TRIED.items() if key.startswith(f"{name}/")}
            intro = f"[All figures](../{RECORDS.name}.md). {CAVEATS.get(name, '')}"
            picture = f"{name}.png" if (RECORDS / f"{name}.png").exists() else ""
            pages[RECORDS / f"{name}.md"] = ledger_page(outcome, intro=intro, tried=tried, picture=picture)
    pages[RECORDS / "protocols.md"] = protocols([found[name] for name in PAPERS["separation"] if name in found])
    return {DOCS / f"{RECORDS.name}.md": "\n\n".join(index) + "\n", **pages}


def protocols(outcomes: list[Outcome]) -> str:
    """One table of every claim in every protocol, and how many survive."""
    tables = [table for outcome in outcomes for table in outcome.tables if table.title == PROTOCOLS]
    heads = list(tables[0].columns)
    rows = [row for table in tables for row in table.rows if set(row[1:]) != {"–"}]
    mark = {"yes": "✓", "no": "✗", "–": "–"}
    body = [[str(row[0]), *(mark[str(cell)] for cell in row[1:])] for row in rows]
    laws = [row for row in rows if ": the law holds" in str(row[0])]
    parts = []
    for words, some in (("that the law holds", laws), ("of the others", [row for row in rows if row not in laws])):
        counts = Counter(column for row in some for column, cell in zip(heads[1:], row[1:], strict=True) if cell == "yes")
        parts.append(f"{words}, {len(some)}: {', '.join(f'{counts[head]} with {head}' for head in heads[1:])}")
    headline = f"**Claims {parts[0]}. {parts[1][:1].upper()}{parts[1][1:]}.**"
    return "\n\n".join([PROTOCOL_INTRO.format(headline=headline), markdown_table(heads, body)]) + "\n"


def stale() -> list[Outcome]:
    """The records that come from other code than the present one."""
    return [outcome for name, outcome in load_records().items() if outcome.provenance.get("code") != code_digest(name)]


def with_commit(outcome: Outcome) -> Outcome:
    """The same with the commit of the code it comes from, which must be the present one."""
    if outcome.provenance.get("quick"):
        raise SystemExit(f"{outcome.name}: a quick run; the ledger is made from full-size runs.")
    if outcome.provenance.get("code") != code_digest(outcome.name):
        raise SystemExit(f"{outcome.name}: made by other code than the present one; run it again.")
    if git("status", "--porcelain", "--", "src"):
        raise SystemExit("src has changes that are not committed: the record could not name its commit.")
    commit = git("log", "-1", "--format=%H", "--", "src")
    return replace(outcome, provenance={**outcome.provenance, "commit": commit[:12]})


def git(*words: str) -> str:
    return subprocess.run(["git", *words], cwd=ROOT, capture_output=True, text=True, check=True).stdout.strip()


def main() -> None:
    if sys.argv[1:] == ["--stale"]:
        for outcome in stale():
            print(f"{outcome.name}: made by other code; {sum(row.counted for row in outcome.rows)} counted rows")
        return
    RECORDS.mkdir(exist_ok=True)
    for folder in sys.argv[1:]:
        for path in sorted(Path(folder).glob("*.json")):
            outcome = with_commit(Outcome.load(path))
            outcome.save(RECORDS / path.name)
            if outcome.sheets:
                draw_sheet(outcome.sheets[0]).savefig(RECORDS / f"{outcome.name}.png", dpi=80)
    for path, text in documents().items():
        path.write_text(text, encoding="utf-8")
    names = [name for some in PAPERS.values() for name in some]
    missing = [name for name in names if not (RECORDS / f"{name}.json").exists()]
    old = [outcome.name for outcome in stale()]
    print(f"{len(names) - len(missing)} figures; missing: {', '.join(missing) or 'none'}; stale: {', '.join(old) or 'none'}")


if __name__ == "__main__":
    main()
