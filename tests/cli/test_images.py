"""What images a model is given: scaled as it says, printed, checked; and which of its outputs is which folder."""

import json
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import layerlaw as ll
from layerlaw.cli import main
from layerlaw.data import load
from layerlaw.probing.sources import preprocessing_of

MODEL = """
import json
from pathlib import Path
from types import SimpleNamespace

import torch
from torch import nn

class Normalize(nn.Module):
    def __init__(self, mean, std):
        super().__init__()
        self.mean, self.std = mean, std

    def forward(self, x):
        return (x - torch.tensor(self.mean)) / torch.tensor(self.std)

def body(inputs=100, classes=10):
    torch.manual_seed(0)
    return [nn.Flatten(), nn.Linear(inputs, 40), nn.ReLU(), nn.Linear(40, 40), nn.ReLU(), nn.Linear(40, classes)]

def by_itself():
    return nn.Sequential(Normalize((0.28,), (0.02,)), *body())

def plain():
    return nn.Sequential(*body())

def colored():
    return nn.Sequential(*body(48))

def as_timm():
    network = colored()
    network.pretrained_cfg = {"mean": (0.5, 0.4, 0.3), "std": (0.1, 0.2, 0.3), "input_size": (3, 4, 4)}
    return network

def convolution(channels=1):
    torch.manual_seed(0)
    first, second = nn.Conv2d(channels, 8, 3, padding=1), nn.Conv2d(8, 8, 3)
    return nn.Sequential(first, nn.ReLU(), second, nn.ReLU(), nn.Flatten(), nn.Linear(32, 3))

def convolution_of_colors():
    return convolution(3)

def convolution_of_bands():
    return convolution(4)

def flat_gray():
    return nn.Sequential(*body(16, 3)[1:])

def itself_gray():
    return nn.Sequential(*body(16, 3))

def labeled():
    network = colored()
    names = ["plane", "car", "bird", "Cat", "deer", "dog, hound", "frog", "horse", "big_ship", "truck"]
    network.config = SimpleNamespace(id2label=dict(enumerate(names)), _name_or_path="")
    return network
"""
SMALL = ("--size", "10", "--per-class", "30", "--no-test")


@pytest.fixture
def said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Callable[..., str]:
    """Call `layerlaw probe` in a folder with the models; gives all it prints, in one line."""
    (tmp_path / "m.py").write_text(MODEL)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "300")

    def call(*arguments: str) -> str:
        monkeypatch.setattr(sys, "argv", ["layerlaw", "probe", *arguments])
        sys.modules.pop("m", None)
        with pytest.raises(SystemExit) as left:
            main()
        assert not left.value.code, capsys.readouterr().err
        return " ".join(capsys.readouterr().out.split())

    return call


def trained(network: nn.Module, path: Path, x: torch.Tensor, y: torch.Tensor) -> nn.Module:
    optimizer = torch.optim.Adam(network.parameters(), 3e-3)
    for _ in range(150):
        optimizer.zero_grad()
        F.cross_entropy(network(x), y).backward()
        optimizer.step()
    torch.save(network.state_dict(), path)
    return network


def models(folder: Path) -> dict:
    scope: dict = {}
    exec((folder / "m.py").read_text(), scope)
    return scope


def test_how_pixels_are_scaled_is_printed(said: Callable[..., str]) -> None:
    for option, words in (
        ((), "pixels: (x − 0.5)/0.5 (--normalize half, the default)"),
        (("--normalize", "none"), "pixels: x, in 0 … 1 (--normalize none)"),
        (("--normalize", "dataset"), "pixels: (x − 0.286)/0.353 (--normalize dataset)"),
        (("--normalize", "0.1,0.25"), "pixels: (x − 0.1)/0.25 (--normalize 0.1,0.25)"),
    ):
        text = said("m.py:plain", *SMALL, *option)
        assert words in text
        assert "data: fashion_mnist_sample (embedded" in text
        assert "300 samples of fashion_mnist_sample (train)" in text
        assert "training sample" not in text
        assert "train accuracy" not in text


def test_a_network_that_normalizes_itself_gets_plain_pixels(said: Callable[..., str], tmp_path: Path) -> None:
    images = load(split="train").balanced(30).resized(10)
    trained(models(tmp_path)["by_itself"](), tmp_path / "w.pt", *images.tensors("none"))
    text = said("m.py:by_itself", "--weights", "w.pt", *SMALL)
    assert "pixels: x, in 0 … 1 ('0.mean' of the model; --normalize names another)" in text
    assert "may be scaled" not in text
    text = said("m.py:by_itself", "--weights", "w.pt", *SMALL, "--normalize", "half", "--out", "r.json")
    assert "pixels: may be scaled otherwise than in training. On 300 images: accuracy" in text
    assert "with --normalize none" in text
    record = ll.Record.load(tmp_path / "r.json")
    assert record.accuracy < 0.9
    assert record.provenance["command"]["normalize"] == "half"


def test_what_a_model_says_of_its_images_is_read(tmp_path: Path) -> None:
    made = models_of(tmp_path)
    own = preprocessing_of(made["as_timm"]())
    assert (own.normalize, own.size, own.source) == (((0.5, 0.4, 0.3), (0.1, 0.2, 0.3)), (4, 4), "pretrained_cfg")
    beside = made["labeled"]()
    beside.config._name_or_path = str(tmp_path)
    assert preprocessing_of(beside).normalize is None
    said_there = {"image_mean": [0.5, 0.5, 0.5], "image_std": [0.25, 0.25, 0.25], "size": {"height": 8, "width": 6}}
    (tmp_path / "preprocessor_config.json").write_text(json.dumps(said_there))
    own = preprocessing_of(beside)
    assert (own.normalize, own.size) == (((0.5,) * 3, (0.25,) * 3), (8, 6))
    (tmp_path / "preprocessor_config.json").write_text("{broken")
    assert preprocessing_of(beside).normalize is None
    with_buffers = nn.Sequential(nn.Linear(3, 3))
    with_buffers.register_buffer("pixel_mean", torch.zeros(1, 3, 1, 1))
    with_buffers.register_buffer("pixel_std", torch.ones(1, 3, 1, 1))
    assert preprocessing_of(with_buffers).normalize == "none"
    assert preprocessing_of(nn.Sequential(nn.BatchNorm2d(3))).normalize is None


def models_of(folder: Path) -> dict:
    (folder / "m.py").write_text(MODEL)
    return models(folder)


@pytest.fixture
def pictures(tmp_path: Path) -> Path:
    """Class folders cat, dog and ship of 12 pictures each, in color, of different sizes."""
    Image = pytest.importorskip("PIL.Image")
    generator = torch.Generator().manual_seed(0)
    for k, name in enumerate(("cat", "dog", "ship")):
        (tmp_path / "pets" / name).mkdir(parents=True)
        for i in range(12):
            side = 4 + i % 3
            pixels = torch.randint(0, 60, (side, side, 3), generator=generator).to(torch.uint8)
            pixels[..., k] += 150
            Image.fromarray(pixels.numpy()).save(tmp_path / "pets" / name / f"{i}.png")
    return tmp_path / "pets"


def test_a_folder_of_some_of_the_models_classes_is_mapped(
    said: Callable[..., str], tmp_path: Path, pictures: Path
) -> None:
    numbers = {"cat": 3, "dog": 5, "ship": 8}
    images = load(pictures, size=4)
    x, y = images.tensors("imagenet")
    network = models(tmp_path)["colored"]()
    trained(network, tmp_path / "w.pt", x, torch.tensor([3, 5, 8])[y])
    (tmp_path / "map.json").write_text(json.dumps(numbers))
    (tmp_path / "turned.json").write_text(json.dumps({str(n): name for name, n in numbers.items()}))
    call = ("--weights", "w.pt", "--data", str(pictures), "--size", "4", "--normalize", "imagenet", "--out", "r.json")
    for given in (("m.py:colored", "--class-map", "cat=3,dog=5,ship=8"), ("m.py:colored", "--class-map", "map.json"),
                  ("m.py:colored", "--class-map", "turned.json")):  # fmt: skip
        text = said(*given, *call)
        assert "classes: cat = 3, dog = 5, ship = 8 (--class-map)" in text
        assert "pixels: (x − [0.485, 0.456, 0.406])/[0.229, 0.224, 0.225] (--normalize imagenet)" in text
        record = ll.Record.load(tmp_path / "r.json")
        assert record.accuracy == 1.0
        assert record.classes == ["cat", "dog", "ship"]
        assert "36 samples of pets" in text
        assert "(train)" not in text  # a flat folder of classes has no splits
    text = said("m.py:colored", "--class-map", "ship=8,cat=3", *call)
    assert "(--class-map); left out: dog" in text
    assert ll.Record.load(tmp_path / "r.json").counts == [12, 12]
    text = said("m.py:colored", *call)  # nobody says which output is which
    assert ll.Record.load(tmp_path / "r.json").accuracy is None
    assert "fits 10 classes, not 3" in text
    assert "--class-map cat=3,dog=5 (or a JSON file) says which output" in text


def test_names_of_the_model_map_a_folder_where_it_knows_them_all(
    said: Callable[..., str], tmp_path: Path, pictures: Path
) -> None:
    (pictures / "ship").rename(pictures / "big-ship")
    text = said("m.py:labeled", "--data", str(pictures), "--size", "4", "--out", "r.json")
    assert "classes: big-ship = 8, cat = 3, dog = 5 (id2label of the model)" in text
    (pictures / "cat").rename(pictures / "lion")
    text = said("m.py:labeled", "--data", str(pictures), "--size", "4")
    assert "id2label" not in text
    assert "--class-map" in text


def test_pictures_of_a_folder_take_the_size_that_the_model_names(said: Callable[..., str], pictures: Path) -> None:
    text = said("m.py:as_timm", "--data", str(pictures))
    assert (
        "pixels: (x − [0.5, 0.4, 0.3])/[0.1, 0.2, 0.3] (pretrained_cfg of the model; --normalize names another)" in text
    )
    assert "size:" not in text


@pytest.fixture
def gray_pictures(tmp_path: Path) -> Path:
    """Class folders a, b and c of 10 gray pictures of 4×4 each, with a test split."""
    Image = pytest.importorskip("PIL.Image")
    generator = torch.Generator().manual_seed(0)
    for split in ("train", "test"):
        for k, name in enumerate("abc"):
            (tmp_path / "gray" / split / name).mkdir(parents=True)
            for i in range(10):
                pixels = (torch.randint(0, 60, (4, 4), generator=generator) + 60 * k).to(torch.uint8)
                Image.fromarray(pixels.numpy(), "L").save(tmp_path / "gray" / split / name / f"{i}.png")
    return tmp_path / "gray"


@pytest.mark.parametrize(
    ("model", "features", "options"),
    [("convolution", 16, ()), ("flat_gray", 16, ("--flat",)), ("itself_gray", 16, ())],
)
def test_gray_pictures_stay_gray_for_a_model_of_one_channel(
    said: Callable[..., str], tmp_path: Path, gray_pictures: Path, model: str, features: int, options: tuple[str, ...]
) -> None:
    text = said(f"m.py:{model}", "--data", "gray", *options, "--out", "r.json")
    where = {"convolution": "0", "flat_gray": "0", "itself_gray": "1"}[model]
    assert f"channels: 1, as '{where}' of the model takes; the images are gray (--channels names another)" in text
    record = ll.Record.load(tmp_path / "r.json")
    assert record.sites[0].features == features
    assert record.provenance["command"]["channels"] == 1
    x, y = load(gray_pictures, channels=1).tensors("half", flat=model == "flat_gray")
    by_hand = ll.probe(models(tmp_path)[model](), (x, y), progress=False)
    assert [s.values["separation"] for s in record.sites] == pytest.approx(
        [s.values["separation"] for s in by_hand.sites], rel=1e-6
    )
    assert record.test_counts == [10, 10, 10]


def test_gray_images_get_three_channels_for_a_model_that_takes_three(
    said: Callable[..., str], tmp_path: Path, gray_pictures: Path
) -> None:
    text = said(
        "m.py:convolution_of_colors", "--data", str(gray_pictures), "--normalize", "imagenet", "--out", "r.json"
    )
    assert "channels:" not in text  # a folder comes in color
    assert ll.Record.load(tmp_path / "r.json").sites[0].features == 48
    text = said(
        "m.py:convolution_of_colors", "--size", "4", "--per-class", "5", "--classes", "0,1,2", "--scores", "none"
    )
    assert "channels: 3, as '0' of the model takes" in text


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (
            ("convolution", "--data", "pets", "--size", "4"),
            "takes images of 1 channel, these have 3: use --channels 1.",
        ),
        (
            ("convolution_of_colors", "--data", "gray", "--channels", "1"),
            "takes images of 3 channels, these have 1: use --channels 3.",
        ),
        (
            ("convolution_of_bands", "--data", "gray"),
            "takes images of 4 channels, these have 3: hand over data of your own code.",
        ),
        (("convolution", "--data", "gray", "--flat"), "takes images of 1 channel, not vectors: leave --flat out."),
        (("flat_gray", "--data", "gray"), "takes 16 numbers, as many as an image has: use --flat."),
        (
            ("itself_gray", "--data", "pets", "--size", "4"),
            "takes 16 numbers, an image has 3×4×4 = 48: use --channels 1.",
        ),
        (("flat_gray", "--size", "6"), "an image has 1×6×6 = 36: use --size 4 --flat."),
        (("itself_gray", "--data", "gray", "--size", "6"), "an image has 3×6×6 = 108: use --channels 1 --size 4."),
        (
            ("convolution", "--data", "gray", "--normalize", "imagenet"),
            "gray: expected 1 number for the only channel, got 3",
        ),
        (("convolution", "--data", "gray", "--channels", "2"), "--channels: expected"),
    ],
)
def test_images_that_do_not_fit_the_first_layer_name_the_option(
    refused: Callable[..., str],
    tmp_path: Path,
    pictures: Path,
    gray_pictures: Path,
    arguments: tuple[str, ...],
    words: str,
) -> None:
    (tmp_path / "m.py").write_text(MODEL)
    sys.modules.pop("m", None)
    model, *options = arguments
    assert words in refused("probe", f"m.py:{model}", *options)


def test_a_color_picture_with_one_channel_option_is_read_gray(
    said: Callable[..., str], tmp_path: Path, pictures: Path
) -> None:
    said("m.py:convolution", "--data", str(pictures), "--size", "4", "--channels", "1", "--out", "r.json")
    assert ll.Record.load(tmp_path / "r.json").sites[0].features == 16


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--normalize", "halb"), "normalize: expected auto, half, dataset, imagenet, none, or mean,std as 2 numbers"),
        (("--normalize", "0.5"), "or mean,std as 2 numbers"),
        (("--normalize", "0.5,0"), "expected a finite mean and a deviation above 0"),
        (("--normalize", "imagenet"), "expected 1 number for the only channel, got 3: (0.485, 0.456, 0.406)"),
        (("--class-map", "cat"), "expected names of classes with numbers of the model's outputs such as cat=3,dog=5"),
        (("--class-map", "Bag=3,Coat=x"), "got Coat=x"),
        (("--class-map", "Bag=3,cat=5"), "expected names among T-shirt/top, Trouser"),
        (("--class-map", "Bag=3"), "at least two and each with a number of its own"),
        (("--class-map", "Bag=3,Coat=3"), "at least two and each with a number of its own"),
        (("--class-map", "none.json"), "none.json: expected a JSON file such as"),
        (("--class-map", "Bag=3,Coat=30"), "expected numbers below the model's 10 logits, got 30"),
        (("--class-map", "Bag=3,Coat=4", "--classes", "3,4"), "expected one of them"),
    ],
)
def test_bad_options_are_told(
    refused: Callable[..., str], tmp_path: Path, arguments: tuple[str, ...], words: str
) -> None:
    (tmp_path / "m.py").write_text(MODEL)
    sys.modules.pop("m", None)
    assert words in refused("probe", "m.py:plain", *SMALL, *arguments)
