"""`layerlaw depth | width | shape | imbalance | exit | paths | svsl-search | difficulty`.

Which network to take, by training candidates; which classes keep a classifier of their own, by the Layer-Peeled Model;
after which layer to stop; how each sample is decided; how strong SVSL should be; which data set is harder.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, get_args

from typer import Argument, Option

from layerlaw.advice import (
    Choice,
    TrainingData,
    TrainingPlan,
    choose_depth,
    choose_shape,
    choose_width,
    compare_difficulty,
    early_exit,
    forecast,
)
from layerlaw.advice import svsl_search as search_penalty
from layerlaw.advice.choosing import RATES, RECIPE, SHAPES, pictures
from layerlaw.advice.difficulty import MISMATCH
from layerlaw.advice.exit_report import PASS_TEST
from layerlaw.advice.imbalance import measured_classifier
from layerlaw.advice.penalty_search import ALPHAS
from layerlaw.cli.app import JsonFlag, Screen, check_folder, command, conclude, console, in_options, save_figure, saved
from layerlaw.cli.class_choice import CLASSES, ChosenClasses, ClassMap, load_chosen, misnumbered
from layerlaw.cli.classifier import other_scaling
from layerlaw.cli.inputs import (
    ImageOptions,
    SiteOptions,
    Size,
    class_counts,
    explained_inputs,
    load_given,
    whole_numbers,
)
from layerlaw.cli.training import EngineName, ImageTrainingOptions
from layerlaw.data import DEFAULT, Labeled, load, names
from layerlaw.errors import DataError, InputError, check_choice, demand, whole
from layerlaw.files import made_folder, write_json
from layerlaw.lab import Recipe, Shape
from layerlaw.lab.engines import check_engine
from layerlaw.lab.variability import Reduction
from layerlaw.pages.advice_terminal import print_choice, print_exits, print_forecast
from layerlaw.probing.paths import DECIDED, sample_paths
from layerlaw.record import Record
from layerlaw.wording import counted, percent

HIDDEN = "Hidden widths from the input on, shapes separated by semicolons: '100x4,1000x3; 1000x4,100x3'."
DEPTHS, WIDTHS = (f"{name}: expected whole numbers and ranges such as 3-12,15" for name in ("depths", "widths"))
LEARNED = 0.5  # of the way from the share of the most frequent class to 1: less is no learned accuracy
WIDTHS_OF_A_SHAPE = "shapes: expected widths such as 100x4,1000x3, at least 1"
QUICK_RATES, QUICK_EPOCHS, QUICK_PER_CLASS, QUICK_SIZE = (1e-3, 3e-3), 60, 100, 10


@dataclass(frozen=True)
class TrainingOptions:
    """What the three commands share; --quick fills in what was not given."""

    data: Annotated[
        str | None, Option(help=f"{', '.join(names())}, or a folder of class folders of images.", show_default=DEFAULT)
    ] = None
    size: Size = None
    per_class: Annotated[int | None, Option(help="Use this many images of each class.", show_default="all")] = None
    rates: Annotated[str | None, Option(help="Learning rates, e.g. 0.001,0.003.", show_default="1e-4 … 3e-3")] = None
    optimizer: Annotated[str, Option(help="adam, sgd or momentum.")] = "adam"
    seeds: Annotated[int, Option(help="Seeds per candidate and learning rate, the same for all.")] = 3
    epochs: Annotated[int | None, Option(help="Epochs of training.", show_default="200")] = None
    validation: Annotated[float, Option(help="Share of every class held back to choose learning rates.")] = 0.2
    norm: Annotated[bool, Option(help="Networks with BatchNorm.")] = True
    test: Annotated[bool, Option(help="Give the accuracy on the test split, as the last number.")] = True
    quick: Annotated[
        bool, Option("--quick", help="Fewer candidates, rates, epochs, and at most 100 images per class at 10×10.")
    ] = False
    device: Annotated[str, Option(help="cpu, cuda, cuda:1, …")] = "cpu"
    engine: EngineName = "processes"
    out: Annotated[
        Path | None, Option(help="Folder for choice.json, choice.png and the networks; a second call continues there.")
    ] = None
    as_json: JsonFlag = False

    def arguments(self) -> dict[str, Any]:
        """Arguments of `choose_depth` and its siblings, the data among them."""
        if self.seeds < 1:
            raise InputError(f"seeds: expected at least 1, got {self.seeds}.")
        check_engine(self.engine)
        rates: tuple[float, ...] = QUICK_RATES if self.quick else RATES
        epochs = QUICK_EPOCHS if self.quick else RECIPE.epochs
        epochs = self.epochs if self.epochs is not None else epochs
        try:
            rates = tuple(map(float, self.rates.split(","))) if self.rates is not None else rates
        except ValueError:
            raise InputError(f"rates: expected numbers separated by commas, got {self.rates!r}.") from None
        how = {
            "rates": rates,
            "recipe": Recipe(Shape.even(8, norm=self.norm), optimizer=self.optimizer, epochs=epochs),  # type: ignore[arg-type]
            "seeds": tuple(range(self.seeds)),
            "device": self.device,
            "engine": self.engine,
            "folder": None if self.out is None else self.out / "networks",
            "announce": self._announce,
        }
        check_folder(self.out)
        images = self._images()
        return {"data": TrainingData.of(images, self._held_out(images), validation=self.validation), **how}

    def show(self, choice: Choice) -> None:
        """The sentence, the table, the caveats; files where they were requested."""
        screen, plain = console(self.as_json), choice.to_dict()
        written = saved(choice, "choice", self.out)
        print_choice(plain, screen)
        conclude(screen, self.as_json, plain, written)

    def _images(self) -> Labeled:
        """The training images, cut and resized; balanced only where --per-class says so."""
        data = pictures(self.data or DEFAULT, self._size)
        if self.per_class is not None:
            demand(per_class=(self.per_class, whole(1)))
            data = data.balanced(self.per_class)
        elif self.quick:
            data = data.imbalanced([min(QUICK_PER_CLASS, count) for count in data.counts()])
        return data if self._size is None else data.resized(self._size)

    def _held_out(self, data: Labeled) -> Labeled | None:
        """The test split, with as many channels as the training images."""
        if not self.test:
            return None
        if (source := self.data or DEFAULT) in names():
            found = load(source, split="test")
            return found if self._size is None else found.resized(self._size)
        with suppress(DataError):  # a flat folder of classes has no test split
            return load(source, split="test", size=self._size, channels=data.images.shape[1])
        return None

    def _announce(self, plan: TrainingPlan) -> None:
        shorter = "" if self.quick else "--quick is shorter; "
        kept = f"you may stop and go on, all is kept in {self.out}"
        lost = "nothing is kept: --out FOLDER lets you stop and go on"
        words = f"{plan}; {shorter}{lost if self.out is None else kept}."
        Screen(stderr=True, soft_wrap=True).print(words, style="dim")

    @property
    def _size(self) -> int | None:
        return QUICK_SIZE if self.quick and self.size is None else self.size


@command
def depth(
    options: TrainingOptions,
    depths: Annotated[str | None, Option(help="E.g. 3-12, or 3,5,8.", show_default="3-12")] = None,
    width: Annotated[int, Option(help="Width of the hidden layers.")] = 100,
) -> None:
    """Which depth? Trains feed-forward networks of several depths and compares the D of their last hidden layer.

    Every depth is trained at all learning rates with the same seeds; the rate is chosen by validation accuracy. The
    smallest depth within one standard error of the lowest D is recommended.
    """
    chosen = whole_numbers(depths or ("3,4,6,8,10,12" if options.quick else "3-12"), DEPTHS)
    options.show(choose_depth(**options.arguments(), depths=chosen, width=width))


@command
def width(
    options: TrainingOptions,
    widths: Annotated[str | None, Option(help="E.g. 20,50,100.", show_default="20,50,100,200,500")] = None,
    depth: Annotated[int, Option(help="Number of linear layers, the classifier included.")] = 8,
) -> None:
    """Which width is enough? As `layerlaw depth`, for several widths at one depth."""
    chosen = whole_numbers(widths or ("10,20,50,100,200" if options.quick else "20,50,100,200,500"), WIDTHS)
    options.show(choose_width(**options.arguments(), widths=chosen, depth=depth))


@command
def shape(
    options: TrainingOptions,
    shapes: Annotated[str | None, Option(help=HIDDEN, show_default="100x7; 50x4,200x3; 200x4,50x3")] = None,
) -> None:
    """Wide below or wide above? As `layerlaw depth`, for networks of given widths."""
    given = [] if shapes is None else shapes.strip(" ;").split(";")
    chosen = [whole_numbers(part, WIDTHS_OF_A_SHAPE, 1) for part in given]
    options.show(choose_shape(**options.arguments(), shapes=chosen or SHAPES))


@command
def imbalance(
    images: ImageOptions,
    counts: Annotated[str | None, Option(help="Samples per class, e.g. 5000,5000,50 or 5000x3,50x7.")] = None,
    counts_file: Annotated[Path | None, Option(help="A text file of numbers, one per class.")] = None,
    model: Annotated[str | None, Option(help="file.py:make or package.module:make. This runs your own code.")] = None,
    weights: Annotated[Path | None, Option(help="A .safetensors or .pt file of weights.")] = None,
    class_map: ClassMap = None,
    e_w: Annotated[float | None, Option("--E-W", help="Mean squared norm of the classifier's rows.")] = None,
    e_h: Annotated[float | None, Option("--E-H", help="Mean squared norm of the features it reads.")] = None,
    bias: Annotated[bool, Option("--bias", help="The model with a free bias.")] = False,
    out: Annotated[Path | None, Option(help="Folder for forecast.json and forecast.png.")] = None,
    as_json: JsonFlag = False,
) -> None:
    """Will rare classes lose their classifiers? A forecast from class counts and norms (Layer-Peeled Model).

    Norms come from --model, measured on its data or --data, or from --E-W and --E-H. Counts given with --model are
    those of its training; else the classes are counted in the data. More than 40 distinct sizes are put into bins.
    """
    given = class_counts(counts, counts_file)
    check_folder(out)
    measured, has_bias, facts = ({}, None, []) if model is None else measured_by(model, weights, class_map, images)
    if model is None and (weights is not None or class_map is not None):
        name, what = ("--weights", "weights they are") if weights is not None else ("--class-map", "outputs it names")
        raise InputError(f"{name}: expected with --model, whose {what}, got no model.")
    if model is None and given is None:
        if images.data is None:
            raise InputError("counts: expected --counts, --counts-file, --data or --model, got none of them.")
        given = list(load(images.data).counts())
    found = forecast(given, E_W=e_w, E_H=e_h, bias=bias, **measured)
    screen, written = console(as_json), saved(found, "forecast", out)
    for fact in facts:
        screen.print(fact, markup=False)
    print_forecast(found.to_dict(), screen)
    if has_bias is not None and has_bias != bias:
        has, which = ("has a", "without one (--bias: with one)") if has_bias else ("has no", "with one")
        screen.print(f"The classifier {has} bias; this forecast is that of the model {which}.", markup=False)
    conclude(screen, as_json, found.to_dict(), written)


@command
def svsl_search(
    options: ImageTrainingOptions,
    trials: Annotated[int, Option(help="Trainings of the search, beside one without the penalty.")] = 12,
    reduction: Annotated[str, Option(help="authors (summed over the batch) or paper (averaged).")] = "authors",
    sites: Annotated[str, Option(help="Sites of the penalty: auto, blocks, layers, or names with commas.")] = "auto",
    workers: Annotated[int, Option(help="Trials trained at a time, each by a process of its own.")] = 1,
    alphas: Annotated[tuple[float, float], Option(help="Range of α: the lowest and the highest.")] = ALPHAS,
) -> None:
    """How strong should SVSL be, and from which layer on? Searched with Optuna on images held back from training.

    Test images are not looked at. Every trial trains the same network from the same initial weights.
    """
    check_choice("reduction", reduction, get_args(Reduction))
    check_folder(options.out)
    folder = None if options.out is None else options.out / "search"
    chosen: Any = tuple(sites.split(",")) if "," in sites else sites
    how: dict[str, Any] = {"reduction": reduction, "sites": chosen, "trials": trials, "share": options.validation}
    how |= {"workers": workers, "alphas": alphas}
    found = search_penalty(options.recipe(), options.samples(), folder=folder, device=options.device, **how)
    screen, plain = console(options.as_json), found.to_dict()
    rows = [["α", "first site", "validation accuracy"], ["0", "–", percent(found.plain, 2)]]
    rows += [[f"{t.alpha:.3g}", t.first, percent(t.accuracy, 2)] for t in found.trials]
    written = {}
    if options.out is not None:
        write_json(made_folder(options.out) / "search.json", plain)
        written = {"search": str(options.out / "search.json")}
    print_exits(found.sentence, [], rows, [], screen)
    screen.print(found.loss, soft_wrap=True)  # once more, in one line, to be pasted
    conclude(screen, options.as_json, plain, written)


@command
def difficulty(
    records: Annotated[list[Path], Argument(help="Record files (JSON) of one architecture, trained on each data set.")],
    names: Annotated[
        str | None, Option(help="Names of the data sets, with commas.", show_default="those of the files")
    ] = None,
    out: Annotated[Path | None, Option(help="Folder for difficulty.json, .png and .html.")] = None,
    as_json: JsonFlag = False,
) -> None:
    """Which data set is harder for an architecture? By the nearest-class-center mismatch of its first layer."""
    check_folder(out)
    if len(records) < 2:
        raise InputError(f"records: expected the files of two or more data sets, got {len(records)}.")
    called = [path.stem for path in records] if names is None else [name.strip() for name in names.split(",")]
    if len(called) != len(records) or len(set(called)) < len(called) or not all(called):
        how = "Name the data sets by --names" if names is None else "Separate them by commas"
        given = ", ".join(map(repr, called))
        raise InputError(f"names: expected {len(records)} different ones, one per record, got {given}. {how}.")
    found = compare_difficulty({name: Record.load(path) for name, path in zip(called, records, strict=True)})
    screen, written = console(as_json), saved(found, "difficulty", out)
    if out is not None:
        written["page"] = str(found.page(out / "difficulty.html"))
    print_exits(found.sentence, [], found.rows, [MISMATCH, *found.notes], screen)
    conclude(screen, as_json, found.to_dict(), written)


Weights = Annotated[Path | None, Option(help="A .safetensors or .pt file of weights (never unpickled).")]
Device = Annotated[str | None, Option(help="cpu, cuda, cuda:1, …", show_default="where the model is")]


TEST_DATA = (  # what to do instead of passing test=
    "For test data that the network has not seen give --data with a test split: a folder with train and test folders, or a "
    "file of x, y, x_test and y_test; or let your `make` return (model, data, test)."
)


@command
def exit(
    where: SiteOptions,
    images: ImageOptions,
    *,
    weights: Weights = None,
    class_map: ClassMap = None,
    tolerance: Annotated[float, Option(help="Accuracy that may be lost: 0.01 is one point.")] = 0.01,
    by: Annotated[str, Option(help="What decides at the exit: centers, linear, or best.")] = "centers",
    within: Annotated[
        str, Option(help="What the tolerance is of: accuracy, or agreement with the network.")
    ] = "accuracy",
    device: Device = None,
    out: Annotated[Path | None, Option(help="Folder for exit.json, .png, .html and .safetensors.")] = None,
    as_json: JsonFlag = False,
) -> None:
    """After which layer could MODEL stop? Accuracy and time of early exits, on samples that did not choose them.

    Class means come from the training data; half of the test data chooses where to leave, the other half judges. MODEL
    names your own Python code, and that code is run.
    """
    check_folder(out)
    network, chosen, asked = load_chosen(where, images, weights, None, class_map)
    with explained_inputs(network, chosen, images.flat):
        how: Any = {"tolerance": tolerance, "by": by, "within": within, "device": device}
        test = asked.given_as(chosen.test)
        found = early_exit(network, asked.given_as(chosen.data), test=test, **where.how(), **how)
    assert found.report is not None
    notes = [TEST_DATA if note == PASS_TEST else in_options(note) for note in found.report.notes]
    notes += [*chosen.facts, *asked.about(chosen, unknown=misnumbered(notes))]
    report, screen = replace(found.report, notes=tuple(notes)), console(as_json)
    written = saved(report, "exit", out)
    if out is not None:
        written["page"] = str(report.page(out / "exit.html"))
        written |= {"exits": str(found.save(out / "exit.safetensors"))} if found.keeps else {}
    print_exits(report.sentence, report.findings, report.rows, [report.legend, *report.notes], screen)
    conclude(screen, as_json, report.to_dict(), written)


@command
def paths(
    where: SiteOptions,
    images: ImageOptions,
    *,
    weights: Weights = None,
    classes: Annotated[str | None, Option(help=CLASSES)] = None,
    class_map: ClassMap = None,
    device: Device = None,
    out: Annotated[
        Path | None, Option(help="Folder for paths.json, .html, and .png of the images decided last.")
    ] = None,
    as_json: JsonFlag = False,
) -> None:
    """How is each sample decided? D of every sample at every layer, and from which layer on its nearest center stays.

    Of the test data where there are some, else of the training data. MODEL names your own Python code, and that code is run.
    """
    check_folder(out)
    network, chosen, asked = load_chosen(where, images, weights, classes, class_map)
    with explained_inputs(network, chosen, images.flat):
        how: Any = {"test": asked.given_as(chosen.test), "classes": asked.asked, "device": device, **where.how()}
        found = sample_paths(network, asked.given_as(chosen.data), **how)
    notes = [in_options(note) for note in found.notes]
    notes += [*chosen.facts, *asked.about(chosen, unknown=misnumbered(notes))]
    found = replace(found, notes=tuple(notes))
    screen, written = console(as_json), dict[str, str]()
    if out is not None:
        written = {"paths": str(found.save(made_folder(out) / "paths.json"))}
        written["page"] = str(found.page(out / "paths.html"))
        if found.pictured:
            save_figure(found.plot(), out / "paths.png")
            written["figure"] = str(out / "paths.png")
    below = f"Below: the {counted(len(found.last), 'sample')} decided last, the least confident first."
    print_exits(found.sentence, [*found.findings, below], found.decided_last, [DECIDED, *found.notes], screen)
    conclude(screen, as_json, found.to_dict(), written)


def measured_by(
    reference: str, weights: Path | None, class_map: str | None, images: ImageOptions
) -> tuple[Any, bool | None, list[str]]:
    """What a forecast takes from the model that was named, whether its classifier has a bias, and what is to be known."""
    made = load_given(reference, weights)
    network, given = made.network, made.data
    if images.data is None and given is None:
        expected = "expected data to find its classifier and measure its norms on, from `make` or --data, got none"
        raise InputError(f"--model: {expected}. Give --data; or leave out --model and give --counts, --E-W and --E-H.")
    chosen = images.chosen(given, network=network, named=made.named)
    asked = ChosenClasses.of(None, class_map, chosen, made)
    with explained_inputs(network, chosen, images.flat):
        measured, bias = measured_classifier(network, asked.given_as(chosen.data), asked.all_outputs(chosen))
    record, facts = measured["record"], [*chosen.facts, *asked.about(chosen, unknown=False)]
    if (told := other_scaling(network, chosen, record, asked.given_as, {"flat": images.flat})) is not None:
        facts.append(told)
    most = max(record.counts) / sum(record.counts)
    if record.accuracy is not None and record.accuracy < most + LEARNED * (1 - most):
        few = f"{percent(record.accuracy)} of these data are right, and {percent(most)} are of the most frequent class"
        facts.append(
            f"accuracy: {few}: the norms of a network that has not learned its data say little about rare classes"
        )
    return measured, bias, facts
