"""`layerlaw depth | width | shape`: which network to take, by training candidates and comparing them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer
from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from layerlaw.advice import Candidate, Choice, choose_depth, choose_shape, choose_width
from layerlaw.advice.choice import with_error
from layerlaw.advice.choosing import RATES, SHAPES
from layerlaw.advice.material import pictures
from layerlaw.advice.plan import Plan
from layerlaw.cli.app import JsonFlag, app, console, emit
from layerlaw.cli.inputs import Size
from layerlaw.data import DEFAULT, Labeled, load, names
from layerlaw.errors import DataError, InputError
from layerlaw.pages import draw_sheet
from layerlaw.wording import correlation, number

DataName = Annotated[
    str | None,
    typer.Option("--data", help=f"{', '.join(names())}, or a folder of class folders of images.", show_default=DEFAULT),
]
Rates = Annotated[str | None, typer.Option(help="Learning rates, e.g. 0.001,0.003.", show_default="1e-4 … 3e-3")]
Seeds = Annotated[int, typer.Option(help="Seeds per candidate and learning rate, the same for all.")]
Epochs = Annotated[int | None, typer.Option(help="Epochs of training.", show_default="200")]
PerClass = Annotated[int | None, typer.Option(help="Use this many images of each class.", show_default="all")]
Validation = Annotated[float, typer.Option(help="Share of every class held back to choose learning rates.")]
Norm = Annotated[bool, typer.Option(help="Networks with BatchNorm.")]
Test = Annotated[bool, typer.Option(help="Give the accuracy on the test split, as the last number.")]
Quick = Annotated[
    bool, typer.Option("--quick", help="Fewer candidates, rates, epochs, and at most 100 images per class at 10×10.")
]
Out = Annotated[
    Path | None, typer.Option(help="Folder for choice.json, choice.png and the networks; a second call goes on there.")
]
Device = Annotated[str, typer.Option(help="cpu, cuda, cuda:1, …")]
OptimizerName = Annotated[str, typer.Option(help="adam, sgd or momentum.")]

OVER_FLOOR = "D over its noise floor"
QUICK_RATES, QUICK_EPOCHS, QUICK_PER_CLASS, QUICK_SIZE = (1e-3, 3e-3), 60, 100, 10


@app.command()
def depth(
    data: DataName = None,
    depths: Annotated[str | None, typer.Option(help="E.g. 3-12, or 3,5,8.", show_default="3-12")] = None,
    width: Annotated[int, typer.Option(help="Width of the hidden layers.")] = 100,
    size: Size = None,
    per_class: PerClass = None,
    rates: Rates = None,
    optimizer: OptimizerName = "adam",
    seeds: Seeds = 3,
    epochs: Epochs = None,
    validation: Validation = 0.2,
    norm: Norm = True,
    test: Test = True,
    quick: Quick = False,
    device: Device = "cpu",
    out: Out = None,
    as_json: JsonFlag = False,
) -> None:
    """Which depth? Trains feed-forward networks of several depths and compares the D of their last hidden layer.

    Every depth is trained at all learning rates with the same seeds; the rate is chosen by validation accuracy. The
    smallest depth within one standard error of the lowest D is recommended.
    """
    chosen = whole_numbers(depths or ("3,4,6,8,10,12" if quick else "3-12"), "depths")
    wish = Wish(data, size, per_class, rates, optimizer, seeds, epochs, validation, norm, test, quick, device, out)
    options, images = wish.options(), wish.images()
    show(choose_depth(images, depths=chosen, width=width, test=wish.held_out(images), **options), wish, as_json)


@app.command()
def width(
    data: DataName = None,
    widths: Annotated[str | None, typer.Option(help="E.g. 20,50,100.", show_default="20,50,100,200,500")] = None,
    depth: Annotated[int, typer.Option(help="Number of linear layers, the classifier included.")] = 8,
    size: Size = None,
    per_class: PerClass = None,
    rates: Rates = None,
    optimizer: OptimizerName = "adam",
    seeds: Seeds = 3,
    epochs: Epochs = None,
    validation: Validation = 0.2,
    norm: Norm = True,
    test: Test = True,
    quick: Quick = False,
    device: Device = "cpu",
    out: Out = None,
    as_json: JsonFlag = False,
) -> None:
    """Which width is enough? As `layerlaw depth`, for several widths at one depth."""
    chosen = whole_numbers(widths or ("10,20,50,100,200" if quick else "20,50,100,200,500"), "widths")
    wish = Wish(data, size, per_class, rates, optimizer, seeds, epochs, validation, norm, test, quick, device, out)
    options, images = wish.options(), wish.images()
    show(choose_width(images, widths=chosen, depth=depth, test=wish.held_out(images), **options), wish, as_json)


@app.command()
def shape(
    data: DataName = None,
    shapes: Annotated[
        str | None,
        typer.Option(
            help="Hidden widths from the input on, shapes separated by semicolons: '100x4,1000x3; 1000x4,100x3'.",
            show_default="100x7; 50x4,200x3; 200x4,50x3",
        ),
    ] = None,
    size: Size = None,
    per_class: PerClass = None,
    rates: Rates = None,
    optimizer: OptimizerName = "adam",
    seeds: Seeds = 3,
    epochs: Epochs = None,
    validation: Validation = 0.2,
    norm: Norm = True,
    test: Test = True,
    quick: Quick = False,
    device: Device = "cpu",
    out: Out = None,
    as_json: JsonFlag = False,
) -> None:
    """Wide below or wide above? As `layerlaw depth`, for networks of given widths."""
    chosen = list(SHAPES) if shapes is None else [hidden_widths(part) for part in shapes.strip(" ;").split(";")]
    wish = Wish(data, size, per_class, rates, optimizer, seeds, epochs, validation, norm, test, quick, device, out)
    options, images = wish.options(), wish.images()
    show(choose_shape(images, shapes=chosen, test=wish.held_out(images), **options), wish, as_json)


@dataclass(frozen=True)
class Wish:
    """The options that the three commands share; --quick fills in what was not said."""

    data: str | None
    size: int | None
    per_class: int | None
    rates: str | None
    optimizer: str
    seeds: int
    epochs: int | None
    validation: float
    norm: bool
    test: bool
    quick: bool
    device: str
    out: Path | None

    def images(self) -> Labeled:
        """The training images, cut and resized; balanced only where --per-class asks for it."""
        folder = self.out
        if folder is not None and folder.exists() and not folder.is_dir():
            raise DataError(f"{folder}: expected a folder, got a file.")
        data = pictures(self.data or DEFAULT, self._size)
        if self.per_class is not None:
            data = data.balanced(self.per_class)
        elif self.quick:
            data = data.imbalanced([min(QUICK_PER_CLASS, count) for count in data.counts()])
        return data if self._size is None else data.resized(self._size)

    def held_out(self, data: Labeled) -> Labeled | None:
        """The test split, with as many channels as the training images."""
        source = self.data or DEFAULT
        if not self.test:
            return None
        if source in names():
            found = load(source, split="test")
            return found if self._size is None else found.resized(self._size)
        try:
            return load(source, split="test", size=self._size, channels=data.images.shape[1])
        except DataError:
            return None  # a flat folder of classes has no test split

    def options(self) -> dict[str, Any]:
        """Keyword arguments of `choose_depth` and its siblings."""
        if self.seeds < 1:
            raise InputError(f"seeds: expected at least 1, got {self.seeds}.")
        rates = (QUICK_RATES if self.quick else RATES) if self.rates is None else learning_rates(self.rates)
        return {
            "rates": rates,
            "optimizer": self.optimizer,
            "seeds": tuple(range(self.seeds)),
            "epochs": self.epochs if self.epochs is not None else QUICK_EPOCHS if self.quick else 200,
            "validation": self.validation,
            "norm": self.norm,
            "device": self.device,
            "folder": None if self.out is None else self.out / "networks",
            "tell": self._announce,
        }

    def _announce(self, plan: Plan) -> None:
        """What is going to be trained, on standard error before it begins."""
        shorter = "" if self.quick else "--quick is shorter; "
        if self.out is None:
            kept = "nothing is kept: --out FOLDER lets you stop and go on"
        else:
            kept = f"you may stop and go on, all is kept in {self.out}"
        words = f"{plan}; {shorter}{kept}."
        Console(stderr=True, soft_wrap=True, highlight=False).print(words, style="dim", markup=False)

    @property
    def _size(self) -> int | None:
        return QUICK_SIZE if self.quick and self.size is None else self.size


def show(choice: Choice, wish: Wish, as_json: bool) -> None:
    """The sentence, the table, the caveats; files where they were asked for."""
    screen, written = console(as_json), {}
    if wish.out is not None:
        figure = wish.out / "choice.png"
        draw_sheet(choice.sheet()).savefig(figure, dpi=160)
        written = {"choice": str(choice.save(wish.out / "choice.json")), "figure": str(figure)}
    print_choice(choice, screen)
    for what, path in written.items():
        screen.print(f"{what}: {path}", markup=False, highlight=False, soft_wrap=True)
    if as_json:
        emit(choice.to_dict() | written)


def print_choice(choice: Choice, screen: Console) -> None:
    """Headline, how it was run, one row per candidate, caveats, the last number."""
    about, how = choice.provenance["data"], choice.provenance["settings"]
    runs = len(choice.candidates) * len(how["rates"]) * len(how["seeds"])
    screen.print(Text(choice.headline, style="bold"))
    facts = (
        f"{about['name']}: {about['train']} training + {about['validation']} validation samples · {runs} networks, "
        f"{how['optimizer']}, {how['epochs']} epochs · {choice.provenance['seconds']:.0f} s"
    )
    screen.print(Text(facts, style="dim"))
    counts = about["per_class"]
    if min(counts) < max(counts):
        low, high = min(counts), max(counts)
        unequal = f"Classes have {low} to {high} images, all of them used; --per-class {low} balances them."
        screen.print(Text(unequal, style="dim"))
    screen.print()
    screen.print(choice_table(choice, screen.width))
    screen.print(Text(_caption(choice), style="dim"))
    screen.print()
    for line in choice.caveats:
        grid = Table.grid(padding=(0, 1))
        grid.add_row(" ·", Text(line))
        screen.print(grid)
    screen.print(Text(choice.last_sentence))


def _caption(choice: Choice) -> str:
    """What D is, and what the arrows mean."""
    norm = choice.provenance["settings"]["norm"]
    what = "D with running statistics (eval mode)" if norm else "D (eval mode, no BatchNorm)"
    lowest = OVER_FLOOR if choice.over_floor else "D"
    if choice.recommended is None:
        arrows = f"↓ lowest {lowest}"
    elif choice.recommended is choice.best:
        arrows = f"→ recommended by {lowest}"
    else:
        arrows = f"→ recommended by {lowest}, ↓ lowest {lowest}"
    floor = "; noise floor: D with shuffled labels" if choice.over_floor else ""
    return f"{what}, training data; {arrows}{floor}"


def choice_table(choice: Choice, width: int) -> Table:
    """One row per candidate at its chosen learning rate: → recommended, ↓ lowest D. Narrow screens lose columns."""
    table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=(0, 1, 0, 0))
    failed = any(candidate.failed for candidate in choice.candidates)
    columns = [
        (choice.kind, 0),
        ("rate", 2),
        ("final D", 0),
        ("range over seeds", 3),
        *([(OVER_FLOOR, 0)] if choice.over_floor else []),
        ("ρ", 4),
        ("r", 4),
        ("effective layers", 5),
        ("val. accuracy", 0),
        ("parameters", 6),
        *([("failed", 0)] if failed else []),
    ]
    rows = [_cells(candidate, choice.kind) for candidate in choice.candidates]
    shown = [head for head, _ in columns]
    goes = dict(columns)
    while sum(max(len(head), *(len(row[head]) for row in rows)) + 2 for head in shown) + 3 > width and any(
        goes[head] for head in shown
    ):
        shown.remove(max(shown, key=lambda head: goes[head]))
    table.add_column("", no_wrap=True)
    for head in shown:
        table.add_column(head, justify="left" if head == "shape" else "right", no_wrap=True)
    for candidate, row in zip(choice.candidates, rows, strict=True):
        mark = "→" if candidate is choice.recommended else "↓" if candidate is choice.best else ""
        style = "bold" if mark == "→" else None if candidate.comparable else "dim"
        table.add_row(mark, *(row[head] for head in shown), style=style)
    return table


def _cells(candidate: Candidate, kind: str) -> dict[str, str]:
    trial, row = candidate.trial, candidate.to_dict()
    low, high = (number(row[f"separation_{end}"]) for end in ("low", "high"))
    effective, ratio = row["effective_layers"], row["separation_over_permuted"]
    return {
        kind: candidate.label.removeprefix(f"{kind} "),
        "rate": f"{trial.rate:g}",
        "final D": number(trial.separation),
        "range over seeds": f"{low} … {high}" if len(trial.finals) > 1 else "–",
        OVER_FLOOR: number(ratio),
        "ρ": number(row["rho"]),
        "r": correlation(row["pearson"]),
        "effective layers": "–" if effective is None else f"{effective:.1f} of {candidate.depth - 1}",
        "val. accuracy": with_error(trial.accuracy, trial.accuracy_error),
        "parameters": f"{candidate.parameters:,}",
        "failed": str(candidate.failed or ""),
    }


def whole_numbers(text: str, name: str) -> list[int]:
    """'3-6,8' → 3, 4, 5, 6, 8."""
    found: list[int] = []
    for part in text.split(","):
        first, dash, last = part.strip().partition("-")
        try:
            ends = int(first), int(last if dash else first)
        except ValueError:
            raise InputError(
                f"{name}: expected whole numbers and ranges such as 3-12 or 3,5,8, got {text!r}."
            ) from None
        if ends[0] > ends[1]:
            raise InputError(f"{name}: expected a range from low to high, got the empty range {part.strip()!r}.")
        found += range(ends[0], ends[1] + 1)
    return found


def learning_rates(text: str) -> tuple[float, ...]:
    """'0.001,3e-3' → numbers."""
    try:
        return tuple(float(part) for part in text.split(","))
    except ValueError:
        raise InputError(f"rates: expected numbers separated by commas, got {text!r}.") from None


def hidden_widths(text: str) -> tuple[int, ...]:
    """'100x4,1000x3' → (100, 100, 100, 100, 1000, 1000, 1000)."""
    found: list[int] = []
    for part in text.split(","):
        one, times, many = part.strip().replace("×", "x").partition("x")
        try:
            width, count = int(one), int(many) if times else 1
        except ValueError:
            raise InputError(f"shapes: expected widths such as 100x4,1000x3, got {text.strip()!r}.") from None
        if width < 1 or count < 1:
            raise InputError(f"shapes: expected positive widths and counts, got {part.strip()!r}.")
        found += [width] * count
    return tuple(found)
