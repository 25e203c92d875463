"""What the experiments on language models share: models, texts, measurements; rows, panels and tables of PR along depth."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from layerlaw.data import Text, load_text
from layerlaw.experiments.drawing import r_and_rho
from layerlaw.experiments.numbers import UNCLAIMED, Claim, mean_of, of_laws, row
from layerlaw.experiments.setting import Setting, model_folder
from layerlaw.lab import GPT, Recurrent, TextRecipe, load_text_model, save_text_model, train_text
from layerlaw.lab.networks.text_model import TextModel
from layerlaw.law import RESIDUAL, LawFit, fit_law
from layerlaw.law.fit import EVEN
from layerlaw.lm import Loaded, load, pieces_of, probe_lm
from layerlaw.lm.tokenizer import train_vocabulary
from layerlaw.outcome import Row, Table
from layerlaw.record import Record
from layerlaw.sheet import Panel, Series, Style

REAL = "SmolLM2-135M-Instruct"
NULL_STD = 1 / 24  # of its untrained weights, whatever a converted file says
TOKENS = 122_880  # 240 pieces of 512 of each text: as many as the reference numbers were measured on
WIKITEXT = ("wikitext-2, validation part", "wikitext-2, test part")  # the reference numbers' text
TEXTS = (*WIKITEXT, "classic books")
VALID = 60  # articles of the validation part
EXCERPT = 30_000  # characters of each book
VOCABULARY = 8192
HELD_OUT = 6  # books that are not trained on
CONTEXT = 256
TARGETS = {"id": "residual", "embedding": "residual_embedding"}  # the two that every experiment measures
TARGET_TITLES = {"Token id": "residual", "Output embedding": "residual_embedding"}
PR = "prediction residual"
FLAT = "PR does not fall with depth"
NO_TREND = "the fitted curve does not fall at its first step"
HOLDS = {True: "yes", False: "no", None: "–"}  # in tables
LAW = ("holds", "pearson", "rho", "evenness", "trend", "below-chance", "equal-steps")
COLUMN_WORDS = {
    "in-sample": "residual",
    "held out": "residual_held_out",
    "with the output embedding": "residual_embedding",
}
Records = dict[str, Record]
"""By the name of the text."""


def real_model(setting: Setting) -> Loaded:
    """SmolLM2-135M from LAYERLAW_DATA/smollm2 (a folder of transformers, or a GGUF file); quickly: a tiny GPT."""
    setting.networks = 1  # in all figures of it, however often it is measured
    if setting.quick:
        return Loaded(tiny(), None, "tiny GPT")
    return _loaded(
        model_folder("smollm2", "the model (a folder saved by transformers, or a GGUF file)"), setting.device
    )


@cache
def _loaded(place: Path, device: str) -> Loaded:
    files = sorted(place.glob("*.gguf"))
    where = place if (place / "config.json").exists() or not files else files[0]
    loaded = load(where, dtype="float32")
    return replace(loaded, model=loaded.model.to(device), name=REAL)  # what its file says stays with it


def samples(setting: Setting) -> dict[str, list[Tensor]]:
    """Token ids of the three texts, document by document; quickly: three draws of walks.

    The two parts of wikitext-2, one document each, and an excerpt from the middle of each classic book: about as much text
    in each, and no text in two of them.
    """
    if setting.quick:
        return {name: list(walks(160, 64, seed=i)) for i, name in enumerate(TEXTS, 1)}
    found = _tokenized(model_folder("smollm2", "the model"), setting.device)
    for name, (checksum, _) in found.items():
        setting.checksums[name] = checksum
    return {name: ids for name, (_, ids) in found.items()}


@cache
def _tokenized(place: Path, device: str) -> dict[str, tuple[str, list[Tensor]]]:
    articles = load_text("wikitext-2", articles=True).documents
    books = load_text("classic-books").documents
    middles = [book[max(0, (len(book) - EXCERPT) // 2) :][:EXCERPT] for book in books]
    texts = zip(TEXTS, (["".join(articles[:VALID])], ["".join(articles[VALID:])], middles), strict=True)
    tokenizer = _loaded(place, device).tokenizer
    found = {}
    for name, documents in texts:
        ids = [pieces_of([text], tokenizer, length=10**9).cut().ids[0] for text in documents]
        found[name] = (Text(documents, name).checksum, ids)
    return found


def measured(setting: Setting, name: str, *, first: int | None = None, tokens: int | None = None, **how: Any) -> Record:
    """The real model on one of the texts; quickly: the tiny one.

    `first`: only so many tokens from the beginning of the text are given to it.
    """
    loaded, text = real_model(setting), samples(setting)[name]
    if setting.quick:
        tokens = min(tokens or 10**6, 10**6)
        how = {**how, "classes": min(how.get("classes", 0), 20)}
    else:
        tokens = tokens or TOKENS
        how = {"batch_size": 8 if setting.device == "cpu" else 32, **how}
        if how.get("null"):
            how["null_std"] = NULL_STD
    if first is not None:
        whole = pieces_of(text).cut().ids
        text, tokens = list(whole[: max(1, round(first / len(whole[0])))]), 10**9
    record = probe_lm(loaded, pieces_of(text, tokens=tokens), progress=setting.progress, **how)
    setting.checksums[f"tokens of {name}"] = record.provenance["data_sha256"]
    return record


def on_all_texts(setting: Setting, **how: Any) -> Records:
    """The real model on each of the texts."""
    return {name: measured(setting, name, **how) for name in TEXTS}


def stand_in(setting: Setting) -> list[str]:
    """A note when a quick run does not use the texts it should."""
    return setting.note("Quick run: three draws of a Markov chain stand in for the texts.")


def told(setting: Setting, records: Records) -> list[str]:
    """What is to be said of the measurements, each thing once."""
    by_note: dict[str, list[str]] = {}
    for name, record in records.items():
        for note in record.notes:
            by_note.setdefault(note, []).append(name)
    notes = [note if len(names) == len(records) else f"{', '.join(names)}: {note}" for note, names in by_note.items()]
    return [*notes, *stand_in(setting)]


def of_wikitext(records: Records) -> list[Record]:
    """Those that the reference numbers can be compared with."""
    return [records[name] for name in WIKITEXT]


@cache
def tiny() -> GPT:
    """A GPT that has learnt a Markov chain for a moment: something for quick runs."""
    torch.manual_seed(0)
    model = GPT(vocabulary=128, width=32, depth=6, heads=4, context=64)
    recipe = TextRecipe(steps=120, batch_size=16, context=32, learning_rate=3e-3, warmup=10)
    train_text(model, walks(400, 64, seed=0).reshape(-1), recipe, progress=False)
    return model.eval()


def walks(documents: int, length: int, *, seed: int, size: int = 120) -> Tensor:
    """Documents of a Markov chain over `size` tokens with four successors each."""
    generator = torch.Generator().manual_seed(seed)
    successors = torch.randint(0, size, (size, 4), generator=torch.Generator().manual_seed(7))
    ids = torch.randint(0, size, (documents, length), generator=generator)
    for t in range(1, length):
        choice = torch.randint(0, 4, (documents,), generator=generator)
        ids[:, t] = successors[ids[:, t - 1], choice]
    return ids


@dataclass(frozen=True)
class Corpus:
    """Tokens to train on (one stream), and held-out pieces to measure on."""

    vocabulary: int
    train: Tensor
    held_out: list[Tensor]
    checksum: str


def books(setting: Setting) -> Corpus:
    """Classic books in byte pairs, the last six held out; quickly: walks."""
    if setting.quick:
        return Corpus(128, walks(400, 64, seed=0).reshape(-1), list(walks(160, 64, seed=1)), "walks")
    corpus = _books()
    setting.checksums["classic-books"] = corpus.checksum
    return corpus


@cache
def _books() -> Corpus:
    text = load_text("classic-books")
    tokenizer = train_vocabulary(text.documents[:-HELD_OUT], VOCABULARY)
    train, held = (
        pieces_of(part, tokenizer, length=CONTEXT, documents="cut").cut().ids
        for part in (text.documents[:-HELD_OUT], text.documents[-HELD_OUT:])
    )
    return Corpus(VOCABULARY, torch.cat(train), [piece for piece in held if len(piece) == CONTEXT], text.checksum)


@dataclass(frozen=True)
class OwnModel:
    """What kind of model, how deep and how wide, trained how."""

    kind: str
    depth: int
    width: int
    seed: int
    steps: int
    batch_size: int = 64

    def model(self, vocabulary: int, context: int) -> TextModel:
        """Freshly drawn."""
        torch.manual_seed(self.seed)
        size: dict[str, Any] = {"vocabulary": vocabulary, "width": self.width, "depth": self.depth, "context": context}
        if self.kind == "recurrent":
            return Recurrent(**size)
        return GPT(**size, heads=max(1, self.width // 64), causal=self.kind == "gpt")


def trained(
    setting: Setting, network: OwnModel, corpus: Corpus, at_steps: tuple[int, ...] = ()
) -> dict[int, TextModel]:
    """The model after each of the chosen steps and at the end; kept in the folder, where other experiments find it."""
    if setting.quick:
        network = replace(network, batch_size=8)
    steps = tuple(sorted({*at_steps, network.steps}))
    setting.networks += 1
    setting.used_seeds.add(network.seed)
    context = len(corpus.held_out[0])
    places = {
        step: setting.kept([asdict(network), corpus.checksum, step], "pt", shared="language-models") for step in steps
    }
    if all(place is not None and place.exists() for place in places.values()):
        return {step: load_text_model(place) for step, place in places.items() if place is not None}
    model = network.model(corpus.vocabulary, context)
    found: dict[int, TextModel] = {}

    def visit(step: int) -> None:
        copy = network.model(corpus.vocabulary, context)
        copy.load_state_dict({name: value.detach().cpu() for name, value in model.state_dict().items()})
        found[step] = copy.eval()
        place = places[step]
        if place is not None:
            place.parent.mkdir(parents=True, exist_ok=True)
            save_text_model(copy, place)

    rate, warmup = 1e-3 * (256 / network.width) ** 0.5, min(100, network.steps // 5)  # wider models learn more slowly
    task: Any = "masked" if network.kind == "masked" else "next"
    recipe = TextRecipe(network.steps, network.batch_size, context, rate, warmup, task=task, seed=network.seed)
    how: dict[str, Any] = {"at_steps": steps, "visit": visit, "progress": setting.progress, "device": setting.device}
    train_text(model, corpus.train, recipe, **how)
    return found


def own_records(
    setting: Setting, corpus: Corpus, kind: str, depth: int, width: int, steps: tuple[int, ...]
) -> dict[int, list[Record]]:
    """Models of one shape, one per seed, measured on both targets after each of these steps."""
    found: dict[int, list[Record]] = {step: [] for step in steps}
    pieces = pieces_of(corpus.held_out, length=CONTEXT)
    how: dict[str, Any] = {"batch_size": 32, "device": setting.device, "progress": setting.progress}
    for seed in setting.seeds():
        models = trained(setting, OwnModel(kind, depth, width, seed, steps[-1]), corpus, steps)
        for step in steps:
            model = load(models[step], mask_id=corpus.vocabulary - 1)
            found[step].append(probe_lm(model, pieces, targets="id,embedding", **how))
    return found


def values_of(record: Record, column: str = "residual") -> list[float]:
    """The column at every block."""
    return [value for site in record.sites if site.in_fit and (value := site.values.get(column)) is not None]


def law(record: Record, column: str = "residual", *, drop_last: int = 0) -> LawFit:
    """The law of a column over the blocks, the last so many left out."""
    values = values_of(record, column)
    quantity = RESIDUAL if column.startswith("residual") else "D"
    return fit_law(values[: len(values) - drop_last], quantity=quantity)


def laws(records: Records, column: str = "residual") -> list[LawFit]:
    """Of a column, one per text."""
    return [law(record, column) for record in records.values()]


def each(records: Records, columns: Mapping[str, str]) -> dict[str, tuple[Record, str]]:
    """Every column on every text, for a table of fits."""
    return {f"{name}, {text}": (record, c) for name, c in columns.items() for text, record in records.items()}


def law_rows(name: str, records: Sequence[Record], column: str = "residual", claim: Claim = UNCLAIMED) -> list[Row]:
    """Whether the law holds over all blocks (what is judged) and its numbers; then held out, and without the last block."""
    fits = [law(record, column) for record in records]
    others = {"without-last-block": [law(record, column, drop_last=1) for record in records]}
    if all(f"{column}_held_out" in record.columns for record in records):
        others["held-out"] = [law(record, f"{column}_held_out") for record in records]
    claims, reasons = {"holds": claim}, {"trend": NO_TREND}
    return [
        *(
            row(f"{name}/{what}", of_laws(fits, what), claims.get(what, UNCLAIMED), reason=reasons.get(what, FLAT))
            for what in LAW
        ),
        *(
            row(f"{name}/{what}-{which}", of_laws(laws, what), reason=FLAT)
            for which, laws in others.items()
            for what in ("holds", "pearson", "evenness", "greenwood-p")
        ),
    ]


def embedding_rows(name: str, records: Sequence[Record]) -> list[Row]:
    """The law of the other target, the output embedding."""
    laws = [law(record, TARGETS["embedding"]) for record in records]
    return [
        row(f"{name}/embedding/{what}", of_laws(laws, what), reason=FLAT) for what in ("holds", "pearson", "evenness")
    ]


def in_words(name: str, records: Sequence[Record], what: str = "") -> str:
    """In how many of some networks (or `what`) the law holds, in each way that was measured."""
    n, counts = len(records), []
    for way, column in COLUMN_WORDS.items():
        if all(column in record.columns for record in records):
            counts.append(
                f"{way} in {sum(law(record, column).holds is True for record in records)} of {n}{what and f' {what}'}"
            )
    even = mean_of(law(record).evenness for record in records)
    mean = "" if even is None else f"; evenness in-sample {even:.2f} ({EVEN} is asked for)"
    return f"{name[:1].upper()}{name[1:]}: the law holds {', '.join(counts)}{mean}."


def curve(record: Record, column: str, label: str, *, style: Style = "points") -> Series:
    """A column against the number of the block."""
    values = values_of(record, column)
    return Series(range(1, len(values) + 1), values, label, style=style)


def law_panel(title: str, record: Record, column: str = "residual", *, null: bool = False) -> Panel:
    """A column with its line, held-out values beside it, the untrained model where it was measured."""
    fit = law(record, column)
    x = range(1, fit.points + 1)
    series = [Series(x, fit.line, "line", style="fit"), curve(record, column, "in-sample")]
    if f"{column}_held_out" in record.columns:
        series.append(curve(record, f"{column}_held_out", "held out"))
    if null and f"{column}_untrained" in record.columns:
        series.append(curve(record, f"{column}_untrained", "untrained", style="null"))
    note = f"r = –, ρ = {fit.rho:.4f}" if fit.pearson is None else r_and_rho([fit], digits=4)
    if fit.evenness is not None:
        note += f"\nevenness {fit.evenness:.2f}, {'holds' if fit.holds else 'does not hold'}"
    return Panel(title, series, xlabel="block", ylabel=PR, note=note, tight=True)


def residual_panel(title: str, record: Record, column: str = "residual") -> Panel:
    """What the line leaves of ln PR: a curve where the law is only nearly one."""
    fit = law(record, column)
    x = range(1, fit.points + 1)
    zero = Series(x, [0.0] * fit.points, style="fit")
    return Panel(title, [zero, Series(x, fit.residuals)], xlabel="block", ylabel="ln PR minus the line", log_y=False)


def law_table(title: str, laws: Mapping[str, tuple[Record, str]]) -> Table:
    """One line of fit per record and column."""
    rows = []
    for name, (record, column) in laws.items():
        fit, short = law(record, column), law(record, column, drop_last=1)
        first, *_, last = fit.values
        held = HOLDS[fit.holds]
        rows.append(
            (name, first, last, held, fit.pearson, short.pearson, fit.rho, fit.evenness, fit.trend, fit.greenwood_p)
        )
    heads = ("what", "PR, first block", "PR, last block", "holds", "r", "r without last", "ρ", "evenness", "trend", "p")
    return Table(title, heads, tuple(rows))
