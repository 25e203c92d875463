"""Figure S9: is there a law in BERT? An encoder fine-tuned on SST-2, by its first token and by the mean over its tokens.

    layerlaw reproduce s9            12 networks at 3 seeds, 6 of them fine-tuned;
                                     wants the encoder in LAYERLAW_DATA/minilm and SST-2 in LAYERLAW_DATA/sst2
    layerlaw reproduce s9 --quick    a tiny BERT with random weights on invented words

The paper has BERT-base-cased (12 layers). Here MiniLM-L6 stands in for it: a BERT encoder of 6 layers and width 384,
distilled and then trained on pairs of sentences. 500 training sentences of either class are measured, drawn anew for
every seed, in eval mode, padding left out; the 872 dev sentences are the test data. The first token is measured from
layer 1 on: before it all sentences have the same one. "Fine-tuned on SST-2, where we randomly sampled 500 sentences for
each class" can be read in two ways, and both are run, with the same number of steps:

    fine-tuned    8,000 training sentences, the measured ones among them, once
    few           the 1,000 measured sentences alone, 8 times, as the paper trains on the images that it measures

A linear head on the first token; AdamW, rate 5e-5, batches of 32, fixed beforehand (the paper: "the common
hyperparameters for BERT"). Beside them the encoder as it is, and its twin with random weights.

The paper: "The equi-separation law does not exist in BERT features", for the first token and for the mean. Judged, on
another model than the paper's: in the fine-tuned networks `LawFit.holds` of the measured training sentences in at most
half the seeds, in the second reading; the first one stands beside it, so that one sentence counts once. On the dev
sentences it is counted beside them and not judged.
"""

from collections.abc import Sequence
from statistics import fmean

from layerlaw.experiments.drawing import caption, curve_mean, fit_note, geometric_mean, laws_table
from layerlaw.experiments.numbers import (
    UNCLAIMED,
    Claim,
    does_not_hold,
    law_along,
    mean_of,
    of_laws,
    over,
    random_split_r,
    row,
)
from layerlaw.experiments.sentences import Token, Tuning, measured, sentence_task
from layerlaw.experiments.setting import Setting
from layerlaw.law import LawFit, fit_law
from layerlaw.outcome import Outcome, Row, Table
from layerlaw.record import Record
from layerlaw.sheet import Panel, Series, Sheet, spread_series

TITLE = "BERT fine-tuned on sentences: first token, and mean over tokens"
EACH = 500  # measured sentences of either class
TUNED = {"fine-tuned": Tuning(8000, 1), "few": Tuning(2 * EACH, 8)}
QUICK_EACH = 60
QUICK_TUNED = {"fine-tuned": Tuning(480, 1, rate=2e-3), "few": Tuning(2 * QUICK_EACH, 4, rate=2e-3)}
NOT_TUNED = {"as-is": "as it is", "untrained": "random weights"}
STAND_IN = "MiniLM-L6 (6 layers, distilled, trained on pairs of sentences) stands in for BERT-base-cased (12 layers)."
LAW = ("holds", "pearson", "rho", "evenness", "trend", "below-chance", "equal-steps")
TOKENS: dict[Token, str] = {"first": "first token", "mean": "mean token"}
SPLITS = {"": "measured training sentences", "test_": "dev sentences"}
Records = dict[tuple[Token, str], list[Record]]


def run(setting: Setting) -> Outcome:
    """Fine-tune, measure every kind both ways, report what came out."""
    each, tunings = (QUICK_EACH, QUICK_TUNED) if setting.quick else (EACH, TUNED)
    many, few = tunings.values()
    names = {kind: f"fine-tuned on {tuning.sentences:,}" for kind, tuning in tunings.items()} | NOT_TUNED
    found: Records = {(token, kind): [] for token in TOKENS for kind in names}
    for seed in setting.seeds():
        given = sentence_task(setting, seed, each, many.sentences)
        for kind in names:
            for token, record in measured(setting, kind, seed, given, tunings.get(kind)).items():
                found[token, kind].append(record)
    rows = [one for (token, kind), records in found.items() for one in _rows(token, kind, records)]
    for kind in TUNED:
        records = found["first", kind]
        rows.append(row(f"{kind}/train-accuracy", [record.accuracy for record in records]))
        rows.append(row(f"{kind}/dev-accuracy", [record.test_accuracy for record in records]))
    again = f"the {few.sentences:,} measured ones {few.epochs} times"
    protocols = f"Fine-tuned on {many.sentences:,} sentences once, or on {again}."
    notes = [protocols, *_notes(found, names), STAND_IN]
    tables = [*(_across(found, names, split) for split in SPLITS), _table(found)]
    return Outcome("s9", TITLE, rows, _sheets(found, names, protocols), tables, notes)


def law_of(record: Record, column: str = "separation") -> LawFit | None:
    """The law along the layers; `None` where D is not defined at one of them."""
    return law_along([site.values.get(column) for site in record.sites])


def _rows(token: Token, kind: str, records: Sequence[Record]) -> list[Row]:
    name = f"{token}/{kind}"
    laws, tests = ([law_of(r, column) for r in records] for column in ("separation", "test_separation"))
    claim = {
        "few": does_not_hold(len(records[0].sites) - 1, kind="other model"),
        "fine-tuned": Claim("no law", tolerance="not judged: the other reading of one sentence"),
    }.get(kind, UNCLAIMED)
    why, test_why = (
        "the class means coincide at some layer" if None in group else "D does not fall, or not at the first step"
        for group in (laws, tests)
    )
    ends = [record.sites[-1].values for record in records]
    return [
        *(row(f"{name}/{w}", of_laws(laws, w), claim if w == "holds" else UNCLAIMED, reason=why) for w in LAW),
        *(row(f"{name}/dev-{w}", of_laws(tests, w), reason=test_why) for w in LAW),
        row(f"{name}/last-D", [end["separation"] for end in ends]),
        row(f"{name}/last-D-over-permuted", [over(end["separation"], end.get("separation_permuted")) for end in ends]),
        row(f"{name}/ncc-accuracy", [end["ncc_accuracy"] for end in ends]),
        row(f"{name}/dev-ncc-accuracy", [end["test_ncc_accuracy"] for end in ends]),
    ]


def _sheets(found: Records, names: dict[str, str], protocols: str) -> list[Sheet]:
    sheets = []
    for split, about in SPLITS.items():
        panels = [_panel(f"{TOKENS[token]}, {names[kind]}", records, split) for (token, kind), records in found.items()]
        same = "Layer 0 is the embedded input, where all first tokens are the same."
        words = caption(panels, protocols, same)
        sheets.append(Sheet(f"D of the {about}", panels, len(names), words, share_y=True))
    panels = []
    for token, title in TOKENS.items():
        curves = [_curve(found[token, kind], "test_ncc_accuracy", name, plain=True) for kind, name in names.items()]
        panels.append(Panel(title, curves, ylabel="accuracy", log_y=False))
    words = "The dev sentence goes to the nearest class mean of the measured training sentences."
    return [*sheets, Sheet("Nearest class mean, dev sentences", panels, 2, caption(panels, words), share_y=True)]


def _panel(title: str, records: Sequence[Record], split: str) -> Panel:
    laws = [law for r in records if (law := law_of(r, f"{split}separation"))]
    if not laws:
        return Panel(title, [_curve([r], f"{split}separation", "D") for r in records], note="no law can be fitted")
    curve = _curve(records, f"{split}separation", "D")
    floor = _curve(records, f"{split}separation_permuted", "")
    line = Series(curve.x, fit_law(curve_mean([law.values for law in laws])).line, "line", style="fit")
    null = Series(floor.x, floor.y, "permuted labels", style="null")
    return Panel(title, [line, curve, null], note=fit_note(laws, flat="\nD does not fall"))


def _curve(records: Sequence[Record], column: str, label: str, *, plain: bool = False) -> Series:
    """A column against the layer: mean and range over the seeds, geometric unless plain."""
    sites = records[0].sites
    start = 0 if sites[0].name.endswith("embeddings") else 1
    seeds = [[r.sites[i].values.get(column) for r in records] for i in range(len(sites))]
    x = range(start, start + len(sites))
    return spread_series(label, x, seeds, several=len(records) > 1, middle=fmean if plain else geometric_mean)


def _across(found: Records, names: dict[str, str], split: str) -> Table:
    cells = {
        f"{TOKENS[token]}, {names[kind]}": [law for r in records if (law := law_of(r, f"{split}separation"))]
        for (token, kind), records in found.items()
    }
    return laws_table(f"Over seeds, {SPLITS[split]}", cells)


def _table(found: Records) -> Table:
    columns = ("separation", "separation_permuted", "test_separation", "ncc_accuracy", "test_ncc_accuracy")
    rows = [
        (token, kind, layer, *(mean_of(r.sites[i].values.get(column) for r in records) for column in columns))
        for (token, kind), records in found.items()
        for i, layer in enumerate(map(int, _curve(records, "separation", "").x))
    ]
    heads = ("features", "network", "layer", "D", "D permuted", "D dev", "NCC", "NCC dev")
    return Table("Every layer", heads, tuple(rows), "Means over seeds; layer 0 is the embedded input.")


def _notes(found: Records, names: dict[str, str]) -> list[str]:
    notes = []
    for (token, kind), records in found.items():
        laws = [law for r in records if (law := law_of(r))]
        r = mean_of(law.pearson for law in laws)
        if r is None:
            continue
        held, dev = (
            sum((law := law_of(record, f"{split}separation")) is not None and law.holds is True for record in records)
            for split in SPLITS
        )
        words = (
            f"{TOKENS[token].capitalize()}, {names[kind]}: the law holds in {held} of {len(records)} seeds, on the dev "
        )
        words += f"sentences in {dev}; r = {r:.3f}"
        falling = [law.shares for law in laws if law.shares]
        rising = [len(law.rising) for law in laws]
        if len(falling) < len(laws):
            words += "; D does not fall"
        elif any(rising):
            words += f"; D rises at {min(rising)} to {max(rising)} of {laws[0].layers} layers"
        else:
            shares = [fmean(share) for share in zip(*falling, strict=True)]
            most = max(range(len(shares)), key=shares.__getitem__)
            words += f" (random splits: {random_split_r(len(shares)):.3f})"
            words += f"; layer {most + 1 + (token == 'first')} takes {shares[most]:.0%} of the drop"
        notes.append(f"{words}.".replace("%", " %"))
    return notes
