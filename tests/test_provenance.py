"""Who measured, with which code: what is said of a model."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from layerlaw import provenance
from layerlaw.later import Later
from layerlaw.provenance import parameter_digest


def test_the_checksum_of_weights_is_the_same_however_they_are_fetched(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    network = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Flatten(), nn.Linear(4, 600), nn.Linear(600, 600))
    network.register_buffer("narrow", torch.randn(3, 2).to(torch.bfloat16))
    network.register_buffer("turned", torch.randn(3, 2).mT)
    network.register_buffer("none", torch.zeros(0))
    network[0].to(memory_format=torch.channels_last)
    one_by_one = parameter_digest(network)
    monkeypatch.setattr(provenance, "FETCHED", {"cpu"})
    assert network[-1].weight.nbytes > provenance.SMALL
    assert parameter_digest(network) == one_by_one
    with torch.no_grad():
        network[1].bias[2] += 1
    assert parameter_digest(network) != one_by_one


def test_a_checksum_that_waits_is_that_of_the_weights_as_they_were(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    network = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Flatten(), nn.Linear(4, 5))
    network.register_buffer("narrow", torch.randn(3, 2).to(torch.bfloat16))
    network.register_buffer("none", torch.zeros(0))
    network[0].to(memory_format=torch.channels_last)
    at_once = provenance.model_provenance(network)
    about = provenance.model_provenance(network, waits=True)
    later = about["parameters_sha256"]
    assert isinstance(later, Later)
    assert later.held == sum(t.nbytes for t in (*network.parameters(), *network.buffers()))
    with torch.no_grad():
        network[3].weight.zero_()
        network[1].num_batches_tracked += 1
    assert provenance.worked_out(about) == at_once != provenance.model_provenance(network)
    monkeypatch.setattr(provenance, "WAITING", 8)  # bytes: of more there is no copy
    assert provenance.model_provenance(network, waits=True) == provenance.model_provenance(network)
