"""The linearized control, quickly."""

import numpy as np
import pytest
import torch
from experiments_recorded import Quick, hidden, quick_fixture

import oracle
from layerlaw.experiments.runs import PROTOCOL_TITLE
from layerlaw.experiments.separation.linearized import linear_floor
from layerlaw.measures import separation_fuzziness

quick = quick_fixture("linearized", most=4)


def clouds(seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    y = torch.arange(300) % 5
    x = torch.randn(5, 12, generator=generator)[y] + torch.randn(300, 12, generator=generator)
    return x.double(), y


def test_the_linear_floor_is_the_sum_of_inverse_eigenvalues() -> None:
    x, y = clouds()
    within, between = oracle.scatters(oracle.as_array(x), oracle.as_labels(y), 5)
    values = np.sort(np.linalg.eigvals(np.linalg.solve(within, between)).real)[-4:]
    assert linear_floor(x, y) == pytest.approx((1 / values).sum(), rel=1e-9)


def test_no_linear_map_goes_below_the_floor_and_one_reaches_it() -> None:
    x, y = clouds()
    floor = linear_floor(x, y)
    generator = torch.Generator().manual_seed(1)
    for _ in range(20):
        mapped = x @ torch.randn(12, 12, generator=generator, dtype=torch.float64)
        assert linear_floor(mapped, y) == pytest.approx(floor, rel=1e-6)
        assert float(separation_fuzziness(mapped, y)) > floor
    within, _ = oracle.scatters(oracle.as_array(x), oracle.as_labels(y), 5)
    whitened = x @ torch.linalg.inv(torch.linalg.cholesky(torch.from_numpy(within))).T
    assert float(separation_fuzziness(whitened, y)) == pytest.approx(floor, rel=1e-9)


def test_an_empty_pixel_does_not_matter() -> None:
    x, y = clouds()
    assert linear_floor(torch.cat([x, torch.ones(300, 2)], 1), y) == pytest.approx(linear_floor(x, y), rel=1e-6)


def test_linear_networks_stay_above_the_floor(quick: Quick) -> None:
    samples = quick.setting.data["fashion_mnist"]
    floor = quick.row("input/linear-floor").ours
    assert floor == pytest.approx(linear_floor(samples.inputs, samples.labels))
    linear = [r for r in quick.setting.runs["activations"] if r.recipe.network.activation == "none"]
    assert len(linear) == 4
    for run in linear:
        assert min(run.measurement(batchnorm="running").separation) > floor
        assert "relu1" not in dict(run.network().named_children())
    shallow = next(r for r in linear if r.recipe.network.depth == 8)
    x = samples.inputs
    half = hidden(shallow.network(), (x[:1] + x[1:2]) / 2)[-1]
    ends = hidden(shallow.network(), x[:2])[-1]
    assert half[0] == pytest.approx(ends.mean(0), abs=1e-4)  # an affine map


def test_both_kinds_and_depths_are_there(quick: Quick) -> None:
    names = {row.name for row in quick.outcome.rows}
    for cell in ("linear-8", "linear-20", "relu-8", "relu-20"):
        assert {f"{cell}/holds", f"{cell}/pearson", f"{cell}/holds-full", f"{cell}/last-D-eval"} <= names
    judged = {row.name: (row.paper, row.kind) for row in quick.outcome.rows if row.reproduced is not None}
    assert judged == {f"linear-{depth}/holds": ("no law", "remark") for depth in (8, 20)}  # ReLU is Fig. 1 again
    assert [len(sheet.panels) for sheet in quick.outcome.sheets] == [4, 4]
    assert len(quick.table("Every network of the grid").rows) == 8
    assert [line[0].split(":")[0] for line in quick.table(PROTOCOL_TITLE).rows] == ["Ours", "Ours"]
    samples = quick.setting.data["fashion_mnist"]
    D = float(separation_fuzziness(samples.inputs, samples.labels))
    assert quick.row("input/D").ours == pytest.approx(D, rel=1e-6)
