"""Threads of one process: one at a time measures a model, and what they all share is as it was when the last one is done."""

import random
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import layerlaw as ll
from layerlaw.capture.network import Randomness, probing_state
from layerlaw.errors import BusyError
from layerlaw.stats.precision import _switches, full_precision
from layerlaw.threads import Counted, claimed, one_thread

LABELS = torch.arange(60) % 3
IMAGES = torch.randn(60, 8, generator=torch.Generator().manual_seed(0)) + 2 * nn.functional.one_hot(LABELS, 8)
QUIET = {"progress": False, "uncertainty": False}


def network() -> nn.Module:
    torch.manual_seed(0)
    deep = [layer for _ in range(3) for layer in (nn.Linear(8, 8), nn.BatchNorm1d(8), nn.ReLU())]
    return nn.Sequential(*deep, nn.Dropout(), nn.Linear(8, 3)).train()


def at_once(*functions: Callable[[], object]) -> list[object]:
    """Each in a thread of its own, started together."""
    gate = threading.Barrier(len(functions))

    def started(function: Callable[[], object]) -> object:
        gate.wait()
        return function()

    with ThreadPoolExecutor(len(functions)) as pool:
        return [one.result(60) for one in [pool.submit(started, function) for function in functions]]


def refused(model: nn.Module) -> str:
    """What a thread is told that does not want to wait."""
    with pytest.raises(BusyError) as caught:
        ll.probe(model, (IMAGES, LABELS), busy="raise", **QUIET)
    return str(caught.value)


def test_threads_that_probe_one_model_all_get_its_numbers_and_leave_it_as_it_was() -> None:
    model = network()
    expected = {mode: ll.probe(model, (IMAGES, LABELS), batchnorm=mode, **QUIET) for mode in ("running", "batch")}
    before = {name: value.clone() for name, value in model.state_dict().items()}

    def work(mode: str) -> Callable[[], object]:
        return lambda: [
            ll.probe(model, (IMAGES, LABELS), batchnorm=mode, **QUIET).column("separation") for _ in range(4)
        ]

    for mode, found in zip(("running", "batch") * 2, at_once(*map(work, ("running", "batch") * 2)), strict=True):
        assert found == [expected[mode].column("separation")] * 4
    assert all(module.training for module in model.modules())
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in model.modules())
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


def test_models_that_share_a_part_are_not_measured_at_once() -> None:
    trunk = network()
    a, b = nn.Sequential(trunk, nn.Linear(3, 3)), nn.Sequential(trunk, nn.ReLU(), nn.Linear(3, 3))
    with claimed(a):
        (error,) = at_once(lambda: refused(b))
    assert "a part of it, is being measured by another thread" in str(error)
    ll.probe(b, (IMAGES, LABELS), busy="raise", **QUIET)  # free again


def test_a_model_that_a_thread_claims_again_stays_its_own_until_the_first_claim_ends() -> None:
    trunk = network()
    model = nn.Sequential(trunk, nn.Linear(3, 3))
    with claimed(model):
        with claimed(model), claimed(trunk):
            pass
        told = at_once(lambda: refused(model), lambda: refused(trunk))
        assert all("is being measured by another thread" in str(error) for error in told)
    with claimed(trunk), claimed(model):  # the part first, then the whole
        assert "is being measured by another thread" in str(at_once(lambda: refused(model[1]))[0])
    (record,) = at_once(lambda: ll.probe(trunk, (IMAGES, LABELS), busy="raise", **QUIET))
    assert isinstance(record, ll.Record)


def test_who_does_not_want_to_wait_is_told_that_the_model_is_busy() -> None:
    model = network()
    with claimed(model):
        (error,) = at_once(lambda: refused(model))
        assert "busy='wait' waits for it" in str(error)
        assert len(ll.probe(model, (IMAGES, LABELS), busy="raise", **QUIET).sites)  # the thread that has it may go on
    with pytest.raises(ll.LayerlawError, match="busy: expected one of wait, raise, got 'no'"):
        ll.probe(model, (IMAGES, LABELS), busy="no", **QUIET)  # type: ignore[arg-type]


def test_a_model_is_free_again_after_an_error() -> None:
    model = network()
    with pytest.raises(ll.LayerlawError):
        ll.probe(model, (IMAGES[:, :5], LABELS), **QUIET)
    (record,) = at_once(lambda: ll.probe(model, (IMAGES, LABELS), busy="raise", **QUIET))
    assert isinstance(record, ll.Record)


@pytest.mark.parametrize("before", [True, False])
def test_the_fast_path_of_attention_is_put_back_when_the_last_thread_is_done(before: bool) -> None:
    kept = torch.backends.mha.get_fastpath_enabled()
    first_is_in, second_is_in = threading.Event(), threading.Event()
    seen: list[bool] = []

    def first() -> None:
        with probing_state(network(), "running"):
            first_is_in.set()
            second_is_in.wait(10)

    def second() -> None:
        first_is_in.wait(10)
        with probing_state(network(), "running"):
            second_is_in.set()
            left.wait(10)
            seen.append(torch.backends.mha.get_fastpath_enabled())  # the first one is gone, this one still needs it off

    left = threading.Event()
    try:
        torch.backends.mha.set_fastpath_enabled(before)
        with ThreadPoolExecutor(2) as pool:
            one, two = pool.submit(first), pool.submit(second)
            one.result(20)
            left.set()
            two.result(20)
        assert seen == [False]
        assert torch.backends.mha.get_fastpath_enabled() is before
    finally:
        torch.backends.mha.set_fastpath_enabled(kept)


def test_tf32_stays_off_for_a_thread_that_needs_it_off_and_comes_back_after_the_last() -> None:
    def values() -> list[object]:
        return [getattr(switch, name) for switch, name in _switches()]

    kept = values()
    entered, leave, done = threading.Event(), threading.Event(), threading.Event()

    def first() -> None:
        with torch.no_grad(), full_precision():
            entered.set()
            leave.wait(10)
        done.set()

    try:
        for switch, name in _switches():
            setattr(switch, name, "tf32" if name == "fp32_precision" else True)
        wanted = values()
        thread = threading.Thread(target=first)
        thread.start()
        entered.wait(10)
        with torch.no_grad(), full_precision():  # found exact: because of the other thread alone
            leave.set()
            done.wait(10)
            assert all(value in ("ieee", False) for value in values())
        thread.join(10)
        assert values() == wanted
    finally:
        for (switch, name), value in zip(_switches(), kept, strict=True):
            setattr(switch, name, value)


def test_random_generators_of_the_process_are_where_the_first_thread_found_them() -> None:
    torch.manual_seed(5)
    random.seed(5)
    states = torch.get_rng_state(), random.getstate(), np.random.get_state()[1].tolist()  # noqa: NPY002
    first_is_in, second_is_in = threading.Event(), threading.Event()

    def first() -> None:
        with Randomness():
            torch.rand(3)
            first_is_in.set()
            second_is_in.wait(10)

    def second() -> None:
        first_is_in.wait(10)
        with Randomness():
            second_is_in.set()
            torch.rand(2)
            random.random()

    at_once(first, second)
    assert torch.equal(torch.get_rng_state(), states[0])
    assert (random.getstate(), np.random.get_state()[1].tolist()) == states[1:]  # noqa: NPY002


def test_two_models_with_shuffled_loaders_are_measured_side_by_side() -> None:
    models = [network(), network()]
    loaders = [DataLoader(TensorDataset(IMAGES, LABELS), batch_size=20, shuffle=True) for _ in models]
    alone = [ll.probe(*pair, **QUIET).column("separation") for pair in zip(models, loaders, strict=True)]
    pairs = list(zip(models, loaders, strict=True))
    found = at_once(*(lambda pair=pair: ll.probe(*pair, **QUIET).column("separation") for pair in pairs))
    np.testing.assert_allclose(np.array(found, float), np.array(alone, float), rtol=1e-5)


def test_a_counted_context_that_cannot_be_entered_counts_nobody() -> None:
    fails = [True]

    @contextmanager
    def make():  # type: ignore[no-untyped-def]
        if fails:
            raise OSError("no such switch")
        yield

    switch = Counted(make)
    with pytest.raises(OSError, match="no such switch"), switch:
        pass
    fails.clear()
    with switch:
        assert switch.users == 1
    assert switch.users == 0


def test_the_number_of_cores_is_what_it_was_after_small_matrices() -> None:
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        with one_thread():
            assert torch.get_num_threads() == 1
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)
