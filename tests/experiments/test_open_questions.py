"""One factor at a time, and tied weights, quickly."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from experiments_recorded import Quick, Recording, made_run

from layerlaw.experiments import code_digest, find
from layerlaw.experiments.runs import MODE_NAMES, Runs
from layerlaw.experiments.separation import open_questions
from layerlaw.experiments.separation.open_questions import GRID, GRID_TITLES, TIED, grid_shape, tied_shape
from layerlaw.experiments.setting import Setting
from layerlaw.measures import separation_fuzziness

FULL, QUICK = Setting(), Setting(quick=True)


@pytest.fixture(scope="module")
def grid() -> Iterator[Quick]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(open_questions, "GRID", {name: GRID[name] for name in ("base", "kernel-5", "pixels-16")})
        setting = Recording(most=2)
        yield Quick(find("conv_grid").run(setting), setting)


@pytest.fixture(scope="module")
def tied() -> Iterator[Quick]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(open_questions, "TIED", {name: TIED[name] for name in ("tied_resnet_group", "untied")})
        setting = Recording(most=2)
        yield Quick(find("weight_tied").run(setting), setting)


def test_one_thing_is_changed_at_a_time() -> None:
    base = grid_shape(FULL, "base", 3)
    assert (base.kernel, base.pool, base.side, base.repeat, base.stages) == (3, 2, 32, 1, ((64, 64),) * 4)
    fields = ("kernel", "pool", "side", "repeat", "stages")
    for variant in GRID:
        shape = grid_shape(FULL, variant, 3)
        changed = [name for name in fields if getattr(shape, name) != getattr(base, name)]
        assert len(changed) == (variant != "base"), variant
        assert shape.norm
        logits = grid_shape(QUICK, variant, 1).build()(torch.randn(2, 1, shape.side, shape.side))
        assert logits.shape == (2, 10)
    assert list(GRID_TITLES) == list(GRID)


def test_differences_are_from_the_unchanged_network_of_the_same_seed(grid: Quick) -> None:
    base, other = (grid.row(f"fashion_mnist-{name}/pearson").ours for name in ("base", "kernel-5"))
    row = grid.row("fashion_mnist-kernel-5-minus-base/pearson")
    assert row.ours == pytest.approx(other - base)
    assert (row.kind, row.tolerance, row.reproduced) == ("remark", "< 0 (t test over seeds, 5 %)", None)  # one seed
    assert grid.row("fashion_mnist-pixels-16-minus-base/pearson").kind is None
    lines = grid.table("One factor at a time").rows
    assert [line[1] for line in lines] == [
        "3×3 filters, pools of 2, 32 px, 64 channels",
        "filters of 5×5",
        "16×16 pixels",
    ]
    assert lines[0][-3:] == (None, None, None)
    sides = {run.recipe.network.side for run in grid.setting.runs["seeds"]}
    assert sides == {16, 32}
    assert {len(run.measurement().sites) for run in grid.setting.runs["seeds"]} == {9}


def test_larger_filters_are_sharper_by_a_t_test_of_r() -> None:
    def of(middle: float) -> Runs:
        curves = ([4.0, middle + i / 50, 1.0] for i in range(3))
        return Runs(made_run({9: D}, seed=i, modes=tuple(MODE_NAMES)) for i, D in enumerate(curves))

    assert open_questions.SHARPER.agrees is not None
    assert open_questions.SHARPER.agrees(of(2.0).minus(of(3.5), "pearson"))
    assert not open_questions.SHARPER.agrees(of(3.5).minus(of(2.0), "pearson"))


def test_the_same_function_is_applied_at_every_step() -> None:
    shape = tied_shape(FULL, "tied_resnet_group", 3)
    longer = tied_shape(FULL, "tied_16", 3)
    assert (shape.steps, shape.channels, longer.steps, longer.norms) == (8, 32, 16, "batch")
    network, x = tied_shape(QUICK, "tied_resnet_group", 1).build().eval(), torch.randn(3, 1, 16, 16)
    states: list[torch.Tensor] = []
    network.change.register_forward_hook(lambda *args: states.append(args[-1]))
    with torch.no_grad():
        network(x)
        again = network.change(states[3], 0)
    assert torch.equal(again, states[4])
    untied = tied_shape(FULL, "untied", 3)
    assert (untied.blocks, untied.widths) == ((8,), (32,))


def test_points_are_the_states_in_front_of_the_first_step_and_behind_every_one(tied: Quick) -> None:
    runs = tied.setting.runs["seeds"]
    assert len(runs[0].measurement().sites) == 10  # of the untied network: input, stem, eight blocks
    samples = tied.setting.data["fashion_mnist"]
    curve = next(panel for panel in tied.outcome.sheets[0].panels if "GroupNorm" in panel.title)
    assert curve.xlabel == "step"
    assert len(curve.series[-1].x) == 9
    flat = samples.inputs.flatten(1)
    assert float(separation_fuzziness(flat, samples.labels)) > 0
    name = "fashion_mnist-tied_resnet_group"
    assert tied.row(f"{name}/pearson").ours == pytest.approx(tied.row(f"{name}/D/pearson").ours, abs=1e-4)
    assert all(row.kind is None for row in tied.outcome.rows)
    assert [line[0] for line in tied.table("Other measures along the steps").rows] == [
        "Fashion-MNIST, 8 steps, tied, GroupNorm shared",
        "Fashion-MNIST, 8 blocks, not tied",
    ]


def test_the_figures_have_texts_and_digests_of_their_own() -> None:
    for name in ("conv_measures", "conv_grid", "weight_tied"):
        assert f"layerlaw reproduce {name} --quick" in find(name).text
        assert len(code_digest(name)) == 16
    assert code_digest("conv_measures") != code_digest("conv_grid")


def test_in_bf16_the_same_networks_are_trained_on_a_gpu_alone(grid: Quick, monkeypatch: pytest.MonkeyPatch) -> None:
    assert grid.row("fashion_mnist-base-bf16-over-tf32/final-D").reason == "trained on a GPU alone"
    setting = Setting(quick=True, device="cuda")
    asked = []
    monkeypatch.setattr(setting, "train", lambda name, recipes, *a, **k: asked.extend(recipes) or Runs())
    base = Runs(grid.setting.runs["seeds"][:1])
    assert open_questions.in_half_precision(setting, {"fashion_mnist": base}, {}) == {"fashion_mnist": Runs()}
    assert [(r.precision, r.seed, r.learning_rate) for r in asked] == [
        ("bf16", run.recipe.seed, run.recipe.learning_rate) for run in base
    ]


class _Both(tuple[str, ...]):
    """The names of all data sets also where a quick run takes the first."""

    def __getitem__(self, place: object) -> object:
        return tuple(self)


def test_both_data_sets_share_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(open_questions, "GRID", {"base": GRID["base"]})
    monkeypatch.setattr(open_questions, "SETS", _Both(("fashion_mnist", "cifar10")))
    found = find("conv_grid").run(Setting(quick=True, progress=False, folder=tmp_path / "conv_grid"))
    numbers = {row.name: row.ours for row in found.rows}
    same = pytest.approx(numbers["fashion_mnist-base/pearson"], rel=1e-4)  # in a quick run the images are the same
    assert numbers["cifar10-base/pearson"] == same
    assert [len(table.rows) for table in found.tables if table.title == "One factor at a time"] == [2]
