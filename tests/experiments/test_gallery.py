"""The gallery is drawn from whatever records there are."""

import importlib.util
from dataclasses import replace
from pathlib import Path
from types import ModuleType

import pytest

from layerlaw.experiments import NAMES
from layerlaw.outcome import Outcome
from layerlaw.sheet import Panel, Series, Sheet

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def gallery() -> ModuleType:
    spec = importlib.util.spec_from_file_location("gallery_script", ROOT / "scripts" / "gallery.py")
    assert spec is not None
    assert spec.loader is not None
    script = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(script)
    return script


def sheet(title: str, *networks: str, xlabel: str = "layer") -> Sheet:
    curve = Series((0, 1, 2), (4.0, 2.0, 1.0))
    return Sheet(title, [Panel(f"Fashion-MNIST, {network}", [curve], xlabel=xlabel) for network in networks])


def fig7(**how: object) -> Outcome:
    names = ("2-layer blocks", "3-layer blocks")
    shown = [
        sheet("D along blocks", *names, xlabel="block"),
        sheet("D along layers", *names),
        sheet("The same networks in eval mode", *names, xlabel="block"),
    ]
    return Outcome("fig7", "Residual networks", [], shown, provenance=how)


def test_an_architecture_has_its_layers_and_then_its_blocks(gallery: ModuleType) -> None:
    drawn = gallery.sheets({"fig7": fig7()})
    assert list(drawn) == ["resnet_2layer", "resnet_3layer"]
    titles = [panel.title for panel in drawn["resnet_2layer"].panels]
    assert titles == ["Fashion-MNIST, layers", "Fashion-MNIST, blocks"]


def test_what_has_no_record_is_named_with_its_command(gallery: ModuleType) -> None:
    text = gallery.page({"fig7": fig7(quick=True)})
    assert "![2-layer blocks: D along depth](gallery/resnet_2layer.png)" in text
    assert "- mixed blocks: `layerlaw reproduce fig7`" in text
    assert "- AlexNet 5×5; VGG13 5×5: `layerlaw reproduce fig4`" in text
    assert "Quick run" in text
    assert gallery.page({}) == ""


def test_a_panel_without_a_curve_is_no_picture(gallery: ModuleType) -> None:
    empty = replace(fig7(), sheets=[Sheet("D along layers", [Panel("Fashion-MNIST, 2-layer blocks", [])])])
    assert gallery.sheets({"fig7": empty}) == {}


def test_the_page_and_its_pictures_are_written_from_a_folder_of_records(gallery: ModuleType, tmp_path: Path) -> None:
    fig7().save(tmp_path / "fig7.json")
    assert gallery.write(gallery.load([tmp_path]), tmp_path) == ["resnet_2layer", "resnet_3layer"]
    assert (tmp_path / "gallery.md").read_text(encoding="utf-8").startswith("# Gallery")
    assert (tmp_path / "gallery" / "resnet_2layer.png").stat().st_size > 1000
    with pytest.raises(SystemExit, match="expected a folder with records"):
        gallery.load([tmp_path / "absent"])
    (tmp_path / "fig7.json").write_text("{")
    with pytest.raises(SystemExit, match=r"fig7\.json"):
        gallery.load([tmp_path])


def test_the_page_in_the_documentation_is_what_its_records_give(gallery: ModuleType) -> None:
    page, text = ROOT / "docs" / "gallery.md", gallery.page(gallery.load([gallery.RECORDS]))
    assert (page.read_text(encoding="utf-8") if page.exists() else "") == text, "run python scripts/gallery.py"
    there = {path.stem for path in (ROOT / "docs" / "gallery").glob("*.png")}
    assert there == {name for name in gallery.FIGURES if f"(gallery/{name}.png)" in text}


def test_every_architecture_is_one_of_a_figure(gallery: ModuleType) -> None:
    assert set(gallery.FIGURES.values()) <= set(NAMES)
    assert set(gallery.TITLES) == set(gallery.FIGURES)
