"""The GPU that is pretended tells what a real one would, is silent where all is well, and leaves torch as it was."""

import copy
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

import pytest
import torch
from torch import Tensor, nn

from pretended_gpu import Gpu, OnGpu, missing, pretended_gpu

pytestmark = pytest.mark.skipif(bool(missing()), reason=missing() or "none")


@pytest.fixture
def seen() -> Gpu:
    """A pretended GPU that may have problems."""
    with pretended_gpu() as gpu:
        yield gpu


def problems(gpu: Gpu) -> str:
    """What was found since the last time."""
    found = gpu.told()
    gpu.problems.clear()
    return found


def numbers(*shape: int, device: str = "cuda") -> Tensor:
    return torch.arange(1.0, 1 + torch.Size(shape).numel()).view(shape).to(device)


def test_tensors_say_where_they_are_and_have_their_numbers(seen: Gpu) -> None:
    x = numbers(2, 3)
    assert (str(x.device), x.is_cuda, x.is_cpu, x.get_device()) == ("cuda:0", True, False, 0)
    assert x.to("cuda:1").device.index == 1
    assert (x @ x.mT).tolist() == [[14, 32], [32, 77]]
    assert float(x.sum()) == 21
    assert torch.equal(x.cpu(), numbers(2, 3, device="cpu"))
    assert x.double().cpu().dtype == torch.float64
    assert x.unsqueeze_(0).shape == (1, 2, 3)
    for made in (
        torch.ones(2, device="cuda"),
        torch.tensor([1, 2], device=x.device),
        x.new_tensor([1]),
        x.new_zeros(2),
    ):
        assert isinstance(made, OnGpu)
        assert made.device == x.device
    assert torch.as_tensor(x) is x
    assert not torch.as_tensor([1.0]).is_cuda
    with torch.cuda.device(1):
        assert torch.ones(2, device="cuda").device.index == torch.cuda.current_device() == 1
    with pytest.raises(TypeError):
        x.numpy()
    assert not problems(seen)


def test_a_network_learns_there_and_its_parameters_stay_the_same_objects(seen: Gpu) -> None:
    network = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 2))
    other, parameters = copy.deepcopy(network), list(network.parameters())
    losses = []
    for net, device in ((network.cuda(), "cuda"), (other, "cpu")):
        for _ in range(3):
            loss = nn.functional.cross_entropy(net(numbers(6, 3, device=device)), torch.arange(6, device=device) % 2)
            net.zero_grad()
            loss.backward()
            with torch.no_grad():
                torch._foreach_add_(list(net.parameters()), [p.grad for p in net.parameters()], alpha=-0.1)
            losses.append(float(loss.detach()))
    assert losses[:3] == losses[3:]
    assert {parameter.device.type for parameter in copy.deepcopy(network).parameters()} == {"cuda"}
    assert all(a is b for a, b in zip(network.cpu().parameters(), parameters, strict=True))
    for key, value in other.state_dict().items():
        assert type(network.state_dict()[key]) is Tensor
        assert torch.equal(network.state_dict()[key], value)
    assert not problems(seen)


def test_a_tensor_on_the_cpu_is_told_apart_from_numbers_and_indices(seen: Gpu) -> None:
    x, y, rows = numbers(2, 3), numbers(3, device="cpu"), torch.tensor([1, 0])
    assert not problems(seen)
    x * torch.tensor(2.0) + y[0]
    x[rows] = x[rows]
    x.copy_(y)
    torch.stack([x, x]).to(y)
    y.to(x)
    assert not problems(seen)
    for wrong in (lambda: x + y, lambda: x @ y, lambda: torch.cat([x[0], y]), lambda: x.index_select(0, rows)):
        wrong()
        assert "On the CPU: a tensor (" in problems(seen)
    x[rows] = numbers(2, 3, device="cpu")
    assert "On the CPU: a tensor (2, 3) in index_put_ on a GPU, at test_pretended_gpu.py:" in problems(seen)


def test_two_devices_do_not_go_together(seen: Gpu) -> None:
    x, y = numbers(3), numbers(3, device="cuda:1")
    x.copy_(y)
    y.to("cuda:0") + x
    assert not problems(seen)
    x + y
    assert "Two devices: cuda:0 and cuda:1 in add, at test_pretended_gpu.py" in problems(seen)


def test_what_another_stream_made_must_be_waited_for(seen: Gpu) -> None:
    aside, here = torch.cuda.Stream(), torch.cuda.current_stream()
    x = numbers(3) * 2  # on this stream
    with torch.cuda.stream(aside):
        y = x + 1
    assert "Not waited for: add on stream" in problems(seen)
    z = y * 2
    assert "reads, at test_pretended_gpu.py" in problems(seen)
    here.wait_stream(aside)
    z += y
    with torch.cuda.stream(aside):  # which knows what came before it waited, and not what came behind
        y += z
    assert "Not waited for: add_ on stream" in problems(seen)
    event = here.record_event()
    aside.wait_event(event)
    with torch.cuda.stream(aside):
        assert torch.cuda.current_stream() is not here
        z *= 2
    assert not problems(seen)
    z.sum()
    assert problems(seen)
    aside.synchronize()
    z.sum()
    assert not problems(seen)


def test_what_another_stream_reads_must_not_be_overwritten(seen: Gpu) -> None:
    aside, here, x = torch.cuda.Stream(), torch.cuda.current_stream(), numbers(3)
    aside.wait_stream(here)
    with torch.cuda.stream(aside):
        y = x.sum()
    x.mean()
    assert not problems(seen)
    x[1:] += 1  # a view: the same memory
    assert "Not waited for: add_ on stream" in (found := problems(seen))
    assert "writes, at test_pretended_gpu.py" in found
    here.wait_stream(aside)
    x.add_(1)
    assert float(y) == 6
    assert not problems(seen)


@pytest.mark.parametrize("kept", [False, True])
def test_memory_that_another_stream_works_on_must_not_be_used_again(seen: Gpu, kept: bool) -> None:
    aside, here, x = torch.cuda.Stream(), torch.cuda.current_stream(), numbers(3)
    aside.wait_stream(here)
    with torch.cuda.stream(aside):
        y = x * 2
    if kept:
        x.record_stream(aside)
    del x
    torch.ones(3, device="cuda")  # may be given the memory of x
    assert problems(seen).startswith("1× Reused: ones on stream") != kept
    here.wait_stream(aside)
    y.sum()
    if kept:
        y.record_stream(here)
    del y
    with torch.cuda.stream(aside):
        torch.ones(3, device="cuda")
    assert problems(seen).startswith("1× Reused: ones on stream") != kept


def test_memory_is_used_again_in_time_where_streams_wait(seen: Gpu) -> None:
    aside, here, x = torch.cuda.Stream(), torch.cuda.current_stream(), numbers(3)
    aside.wait_stream(here)
    with torch.cuda.stream(aside):
        x.sum()
    here.wait_stream(aside)
    view = x[1:]
    del x
    view.sum()
    del view
    torch.ones(3, device="cuda")
    assert not problems(seen)


def test_threads_have_streams_of_their_own(seen: Gpu) -> None:
    here, x = torch.cuda.current_stream(), numbers(3)

    def work(stream: object) -> Tensor:
        stream.wait_stream(here)
        with torch.cuda.stream(stream):
            return x + torch.ones(3, device="cuda")

    streams = [torch.cuda.Stream() for _ in range(3)]
    with ThreadPoolExecutor(3) as pool:
        found = list(pool.map(work, streams))
    assert torch.cuda.current_stream() is here
    found[0].sum()
    assert problems(seen)
    for stream in streams:
        here.wait_stream(stream)
    assert torch.stack(found).sum().tolist() == 27
    assert not problems(seen)


def test_the_host_waits_where_it_needs_numbers_and_nowhere_else(seen: Gpu) -> None:
    x, rows = numbers(3, 3), torch.tensor([0, 2])
    there = rows.to("cuda", non_blocking=True)
    seen.waits.clear()
    (x @ x.mT)[there].sum().clamp(1).where(x > 0, x)
    torch.full((3,), 2.0, device="cuda").copy_(rows[0], non_blocking=True)
    assert seen.waits == []
    for reason, wait in {
        "_local_scalar_dense": lambda: bool(x.sum() > 0),
        "to the CPU": lambda: x.cpu(),
        "from the CPU": lambda: rows.to("cuda"),
        "nonzero": lambda: x.nonzero(),
        "mask in index": lambda: x[x > 1],
        "CPU index in index": lambda: x[rows],
        "_linalg_eigh": lambda: torch.linalg.eigh(x),
        "_linalg_check_errors": lambda: torch.linalg.cholesky(x @ x.mT + torch.eye(3, device="cuda")),
    }.items():
        wait()
        assert [one.split(" at ")[0] for one in seen.waits] == [reason]
        seen.waits.clear()


def test_torch_is_as_before_afterwards() -> None:
    def state() -> list[object]:
        cuda = [getattr(torch.cuda, name) for name in sorted(vars(torch.cuda)) if not name.startswith("__")]
        return [*cuda, torch.tensor, torch.as_tensor, torch.Tensor.to, torch.Tensor.cuda, torch.Tensor.pin_memory]

    before = state()
    with suppress(ValueError), pretended_gpu():
        assert torch.cuda.is_available()
        assert torch.cuda.device_count() == 2
        raise ValueError
    assert all(a is b for a, b in zip(state(), before, strict=True))
    assert not {"to", "cuda", "pin_memory"} & set(vars(torch.Tensor))
    assert not torch.cuda.is_available()
    with pytest.raises((AssertionError, RuntimeError)):
        torch.ones(1, device="cuda")
