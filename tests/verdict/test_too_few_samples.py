"""Where D is that of noise, the headline says so, and how many samples would do."""

import math

import numpy as np
import pytest
import torch

import layerlaw as ll
from layerlaw.record import Record, SiteRow
from layerlaw.verdict import judge, law_holds
from layerlaw.verdict.steps import samples_needed


def record(values: list[float], floors: list[float], n: int = 100) -> Record:
    rows = [
        SiteRow(f"fc{i}", "Linear", (9,), 9, values={"separation": D, "separation_permuted": F})
        for i, (D, F) in enumerate(zip(values, floors, strict=True))
    ]
    return Record(name="net", sites=rows, classes=["a", "b"], counts=[n // 2, n // 2])


def test_noise_is_no_law_and_no_rise() -> None:
    noisy = record([9.0, 9.5, 9.2, 9.8, 9.1], [10.0] * 5)
    headline = judge(noisy).headline
    assert headline.startswith(
        "With 100 samples it cannot be told whether the law holds: D is 90 to 98% of what permuted labels give; about 1,100 "
        "would do ("
    )
    assert not any(word in headline for word in ("evenness", "trend", "Greenwood"))  # nothing can be said of it
    assert law_holds(noisy, noisy.law()) is None
    assert "many more are needed" in judge(record([11.0, 12.0, 10.5, 11.5], [10.0] * 4)).headline


def test_most_points_decide() -> None:
    straight = [8.0, 4.0, 2.0, 1.0, 0.5]
    assert samples_needed(record(straight, [10.0] * 5)) is None  # only the first is near chance
    assert law_holds(record(straight, [10.0] * 5), record(straight, [10.0] * 5).law()) is True
    assert samples_needed(record(straight, [9.0, 5.0, 2.5, 10.0, 10.0])) == pytest.approx(100 * 0.8 / 0.2)
    assert (
        samples_needed(
            Record(name="bare", sites=[SiteRow("a", "Linear", (2,), 2, values={"separation": 1.0})], classes=["a"])
        )
        is None
    )


def test_so_many_samples_do_bring_d_to_half_of_chance() -> None:
    rng = np.random.default_rng(0)
    K, d = 5, 40
    means = 0.2 * rng.normal(size=(K, d))

    def ratio(n: int) -> tuple[float, float]:
        y = np.arange(n) % K
        x = means[y] + rng.normal(size=(n, d))
        D = ll.separation_fuzziness(torch.tensor(x), torch.tensor(y))
        floor = np.median(
            [ll.separation_fuzziness(torch.tensor(x), torch.tensor(rng.permutation(y))) for _ in range(9)]
        )
        return D, float(floor)

    D, floor = np.mean([ratio(40) for _ in range(20)], 0)
    assert 0.6 * floor < D
    needed = samples_needed(record([D, D], [floor, floor], 40))
    assert needed is not None
    assert math.isfinite(needed)
    D, floor = np.mean([ratio(K * round(needed / K)) for _ in range(20)], 0)
    assert D / floor == pytest.approx(0.5, abs=0.1)
