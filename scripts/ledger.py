"""Write docs/reproduction.md, a page per figure and the records behind them: `python scripts/ledger.py [FOLDER …]`.

FOLDER is what `layerlaw reproduce … --out FOLDER` left; its outcomes (NAME.json) are copied to docs/reproduction/ and their
first figures drawn beside them. The index and the pages are written anew from all records there, so that figures can be run
one by one. A test compares them with what this script makes of the records.
"""

import sys
from pathlib import Path

from layerlaw.experiments import PAPERS
from layerlaw.outcome import Outcome
from layerlaw.pages import draw_sheet, ledger_index, ledger_page

DOCS = Path(__file__).resolve().parents[1] / "docs"
RECORDS = DOCS / "reproduction"
INTRO = """# Reproduction

Every figure at full size, by `layerlaw reproduce NAME`. *Numbers* are what the paper gives in digits, *statements* what it says in words;
behind each figure stand all its numbers with ranges over seeds, what each accepts, whole learning-rate grids, and what did not come out with
what was tried. Made by `python scripts/ledger.py` from the records in [reproduction/](reproduction).

How far to trust it: tolerances were written before the full-size runs (exceptions are named on the figure's page). Many limits are
generous, and a statement counts when its direction holds in the mean. The records were made on 2026-11-15 from the working tree as it then
was; since then rows have been named, judged and shown differently, and recipes of one or two epochs have another learning rate."""
SECTIONS = {
    "separation": """## Data separation

*A Law of Data Separation in Deep Learning* (He & Su, PNAS 2023): its feed-forward figures, and Fig. S9 on a small BERT. The first images of
every class in file order; BatchNorm as the authors measured it (batches of 100), with running statistics beside it.""",
    "next_token": """## Next-token prediction

*A Law of Next-Token Prediction* (He & Su, arXiv 2408.13442): log of the prediction residual PR falls linearly over the blocks.
SmolLM2-135M-Instruct (4-bit weights, dequantized) on wikitext-2, and models of our own trained on 35 of 41 classic books. The authors' models
are not at hand: a number of theirs stands beside ours only where it speaks of all models; "reference" is an earlier measurement of the same
model and text by other code.""",
}
BEFORE_RANK = "Run before measurements carried the rank of the class means."
TWICE = "Run twice ({}), with the same verdicts; the later record stands."
RERUN = (
    "Run again on a CPU after the rule by which pieces are spread over a text was changed (short and long ones now have the same chance). With "
    "other pieces, chosen in three ways, PR differs by up to 0.4 % (held out 0.6 %) and r by up to .003; with the same pieces CPU and GPU had "
    "agreed to 1·10⁻⁵ (embeddings: 3·10⁻⁵)."
)
CAVEATS = {
    "fig1": TWICE.format("for a column of rates"),
    "fig2": "The row for epoch 600 now also asks for r ≤ −0.99, which was added after the run (the recorded −0.9965 meets it; the record shows "
    "the older rule).",
    "fig3": BEFORE_RANK,
    "fig5": BEFORE_RANK,
    "fig6": BEFORE_RANK,
    "fig9": f"The tolerance of the frozen r (−0.971 ± 0.015) was set when one frozen network had already given −0.973. {BEFORE_RANK}",
    "s4": BEFORE_RANK,
    "s5": BEFORE_RANK,
    "s6": TWICE.format("for class names"),
    "s9": "Run on two CPU cores shared with other work; some parts were measured by a second process beside it, so the wall time is too short.",
    "s11": BEFORE_RANK,
    "lm_law": "The tolerances of the reference numbers were known together with the numbers (1 % for PR and 0.01 for r were requested). A first "
    "run on the *first* 122,880 tokens of the text gave PR 2 % lower (.881, .808, .823 at blocks 1, 27, 30; r −.970; compare "
    f"[lm_tokens](lm_tokens.md)), after which tokens were spread over the text. {RERUN}",
    "lm_targets": RERUN,
    "lm_words": RERUN,
    "lm_sizes": "One seed; the wall time leaves out the networks that an interrupted run with three seeds had already trained.",
    "lm_task": "The GPTs are those of [lm_training](lm_training.md). The row on masked tokens meets what was written before the run, but weakly: "
    "one of three masked models is bent (r = −.854), the other two are as straight as a GPT (−.994, −.990), so the difference in the mean says "
    "little. At this size (12 blocks, 1000 steps) we do *not* see that masked tokens follow no law.",
}
TRIED = {  # what was tried about a number that did not come out
    "fig1/sgd-20/pearson": "With the authors' seed r = −0.998; seed 1 gives −0.975. All seven learning rates were trained: 0.01 "
    "is the best of the grid in every seed, so choosing as the paper did does not help.",
    "fig3/imbalanced-20/pearson": "Best of five Adam rates. The measurement makes it: file order leaves the later batches of 100 "
    "without any minority image. With running statistics the same networks give r = −0.998, and their half-life is then *shorter* "
    "than that of as many balanced images (0.84 times; 0.75 with the images in mixed order).",
    "fig9/frozen/training-loss": "The rate with the best law differs over seeds, and at the higher ones freezing leaves some "
    "networks short of 100 %; at 3e-4 alone the accuracy gap shrinks to 1.0 ± 0.2 points (rows *-at-3e-4*).",
    "fig9/frozen/training-accuracy": "The same networks.",
    "s5/2000-over-1000-images/half-life": "Also not with running statistics (0.99), on the same 1000 images (0.99) or corrected "
    "for the bias of D (0.96); 5000 images do show it.",
    "lm_law/id/pearson": "Without the last block −0.983. The curve has a plateau at blocks 2–7, falls steeply to block 23 and rises at "
    "the end; its shares are less even than those of a random split (p = 1). A small instruction-tuned model in 4 bits is not one of "
    "the authors'.",
    "lm_law/embedding/pearson-as-reference": "See [lm_targets](lm_targets.md).",
    "lm_law/embedding/rho-as-reference": "See [lm_targets](lm_targets.md).",
    "s9/mean/few/seeds-with-clear-law": "One reading of the protocol (training on the 1,000 measured sentences alone) and one way to take "
    "features (the mean over tokens) give a clear law at all three seeds, r = −0.997; dev sentences show none. MiniLM-L6 stands in for "
    "BERT-base-cased, which is not at hand: the model or the reading may make the difference.",
    "lm_targets/embedding/pearson": "By class sums (scripts/class_sums.py, code of its own, other pieces) −0.943. Also not on the first tokens of the "
    "text (−0.944), with no norm or standardized tokens (−0.942, −0.944), nor with entries weighing the same (−0.938), rows of length one (−0.949), "
    "whitened entries (−0.930), or the leading 1 to 256 directions of the embedding (−0.952 to −0.953). What the reference weighed is not known.",
    "lm_targets/one-hot/pearson": "Our target is a sketch; the exact one, by scripts/class_sums.py, gives −0.903. Also not with the 10 to 2,000 "
    "most frequent tokens alone (−0.903 to −0.917) or with every token weighing the same (−0.633).",
    "lm_task/recurrent/pearson": "One of three seeds meets it (−0.977). All three curves flatten towards the end, in-sample and held out; with the "
    "output embedding as target the same models give −0.982 to −0.994. It is our own small recurrence after 1000 steps, not a "
    "trained Mamba or RWKV.",
    "s6/sneaker/pearson": "A hair above the limit, and the least straight of the ten: the first layer alone divides its D by 4.8.",
}


SPELLING = {
    "ptimis": "ptimiz",
    "ormalis": "ormaliz",
    "inearis": "ineariz",
    "tandardis": "tandardiz",
    "entred": "entered",
}  # of older records


def documents() -> dict[Path, str]:
    """The index and the page of every figure, by where they stand."""
    found = {path.stem: Outcome.load(path) for path in RECORDS.glob("*.json")}
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
    texts = {DOCS / f"{RECORDS.name}.md": "\n\n".join(index) + "\n", **pages}
    for old, new in SPELLING.items():
        texts = {path: text.replace(old, new) for path, text in texts.items()}
    return texts


def main() -> None:
    RECORDS.mkdir(exist_ok=True)
    for folder in sys.argv[1:]:
        for path in sorted(Path(folder).glob("*.json")):
            outcome = Outcome.load(path)
            if outcome.provenance.get("quick"):
                raise SystemExit(f"{path}: a quick run; the ledger is made from full-size runs.")
            outcome.save(RECORDS / path.name)
            if outcome.sheets:
                draw_sheet(outcome.sheets[0]).savefig(RECORDS / f"{outcome.name}.png", dpi=80)
    for path, text in documents().items():
        path.write_text(text, encoding="utf-8")
    names = [name for some in PAPERS.values() for name in some]
    missing = [name for name in names if not (RECORDS / f"{name}.json").exists()]
    print(f"{len(names) - len(missing)} figures" + (f", missing: {', '.join(missing)}" if missing else ""))


if __name__ == "__main__":
    main()
