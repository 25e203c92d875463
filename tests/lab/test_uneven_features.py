"""Fleets whose features float32 cannot hold: right, or no D; never a plausible wrong number."""

from __future__ import annotations

import pytest
import torch

import oracle
from layerlaw.lab import Recipe, Samples, Schedule, Shape, sweep

N, K = 120, 4
Y = torch.arange(N) % K


def inputs(size: float = 1.0, offset: float = 0.0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(0)
    x = 2 * torch.randn(K, 6, generator=generator)[Y] + torch.randn(N, 6, generator=generator)
    x[:, 0] *= size
    return x + offset


def measured(x: torch.Tensor) -> list[float | None]:
    """D of the input in two members, untrained."""
    recipes = Recipe(Shape(6, (8,), K), epochs=1, learning_rate=1e-9).grid(seed=(1, 2))
    runs = sweep(recipes, Samples.of((x, Y)), schedule=Schedule(epochs=(0,)), progress=False)
    return [run.measurements[0].separation[0] for run in runs]


@pytest.mark.parametrize("size", [1.0, 1e3, 1e6, 1e8])
def test_columns_of_other_units_have_the_right_d_or_none(size: float) -> None:
    found = measured(inputs(size))
    right = oracle.separation(inputs(size).double(), Y, K)
    assert all(value is None or value == pytest.approx(right, rel=1e-3) for value in found)
    assert all(value is None for value in found) == (size >= 1e8)


def test_an_offset_that_hides_directions_has_no_d() -> None:
    assert measured(inputs(offset=1e7)) == [None, None]
    near = measured(inputs(offset=10.0))
    right = oracle.separation(inputs(offset=10.0).double(), Y, K)
    assert all(value == pytest.approx(right, rel=1e-4) for value in near)
