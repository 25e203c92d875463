"""Forwards as CUDA graphs; on a CPU a stand-in takes the place of the graph."""

from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import torch
from torch import Tensor, nn

import layerlaw as ll
from layerlaw.capture import replay, trunk
from layerlaw.capture.batches import Batch
from layerlaw.capture.hooks import Capture, hooked
from layerlaw.lab import Architecture
from layerlaw.probing import waiting
from layerlaw.probing.memory import KeptFeatures

cuda = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
BATCHES, SIZE = 20, 30


class StandIn:
    """Does again what was recorded, in the same memory."""

    made = replays = 0

    def __init__(self, batch: Batch, collect) -> None:
        self.given, self.collect = batch.copy(), collect
        self.output, self.features = collect(self.given)
        StandIn.made += 1

    def replay(self, batch: Batch) -> Tensor:
        for mine, given in zip(self.given.tensors(), batch.tensors(), strict=True):
            mine.copy_(given)
        with hooks_of(self.collect.__self__):
            output, features = self.collect(self.given)
        for site, mine in self.features.items():
            mine.copy_(features[site])
        StandIn.replays += 1
        self.output.copy_(output)
        return self.output.clone()


@contextmanager
def hooks_of(capture: Capture) -> Iterator[None]:
    """Those of the pass that was recorded, instead of those of the present one, which a graph does not call."""
    kinds = "_forward_pre_hooks", "_forward_pre_hooks_with_kwargs", "_forward_hooks"
    tables = [getattr(module, kind) for module in capture.network.modules() for kind in kinds]
    present = [dict(table) for table in tables]
    for table in tables:
        table.clear()
    with hooked(capture.network, capture.expected, capture.enter, capture.leave, capture.outputs):
        yield
    for table, entries in zip(tables, present, strict=True):
        table.update(entries)


@pytest.fixture
def on_cpu(monkeypatch):
    monkeypatch.setattr(replay, "Recording", StandIn)
    monkeypatch.setattr(replay, "RECORDED", {"cpu"})
    monkeypatch.setattr(trunk, "RECORDED", {"cpu"})
    StandIn.made = StandIn.replays = 0


def network(*more: nn.Module, outputs: int = 4) -> nn.Module:
    torch.manual_seed(0)
    layers = [nn.Linear(6, 12), nn.ReLU(inplace=True), nn.Linear(12, 12), nn.ReLU(inplace=True), *more]
    return nn.Sequential(*layers, nn.Linear(12, outputs)).eval()


def data(n: int = BATCHES * SIZE) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(1)
    y = torch.arange(n) % 4
    return torch.randn(n, 6, generator=generator) + y[:, None], y


def probed(model: nn.Module, given=None, **options) -> ll.Record:
    return ll.probe(model, given or data(), batch_size=SIZE, progress=False, **options)


def values(record: ll.Record) -> list[dict]:
    return [site.values for site in record.sites]


WAYS = {
    "kept": {},
    "streamed": {"memory_gib": 2e-5, "uncertainty": False},
    "with side inputs": {"sites": ["0", "2"], "reduce": "mean"},
}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("n", [BATCHES * SIZE, BATCHES * SIZE - 7])
def test_replayed_forwards_give_the_same_record(monkeypatch, on_cpu, way, n):
    found = probed(network(), data(n), **WAYS[way])
    assert StandIn.made == 1  # for both passes
    whole = BATCHES if n == BATCHES * SIZE else BATCHES - 1
    again = whole if way == "streamed" else 0
    assert StandIn.replays == whole - replay.WARM + 1 + again  # once more to be compared with the forward
    monkeypatch.setattr(replay, "FEW", 10**9)
    plain = probed(network(), data(n), **WAYS[way])
    assert StandIn.made == 1
    assert values(found) == values(plain)
    assert found.law("separation").rho == plain.law("separation").rho


class Counting(nn.Linear):
    calls = 0

    def forward(self, x: Tensor) -> Tensor:
        Counting.calls += 1
        return super().forward(x)


def test_a_recording_is_compared_with_a_forward_that_was_made_anyway(monkeypatch, on_cpu):
    probed(network(Counting(12, 12)))
    recorded, Counting.calls = Counting.calls, 0
    again = StandIn.made + StandIn.replays  # which a graph would not call
    monkeypatch.setattr(replay, "FEW", 10**9)
    probed(network(Counting(12, 12)))
    assert StandIn.made == 1
    assert recorded - again == Counting.calls - BATCHES + replay.WARM


class OwnMemory(nn.Module):
    """Gives every batch its output in the same memory."""

    def __init__(self) -> None:
        super().__init__()
        self.inside = network()
        self.register_buffer("out", torch.zeros(SIZE, 4))

    def forward(self, x: Tensor) -> Tensor:
        found = self.inside(x)
        return torch.add(found, 0, out=self.out) if len(x) == SIZE else found


def test_a_wrong_recording_is_told_where_outputs_share_memory(monkeypatch, on_cpu):
    class Wrong(StandIn):
        def replay(self, batch: Batch) -> Tensor:
            super().replay(batch)
            return self.output.add_(1e-2 * torch.arange(4.0)).clone()

    monkeypatch.setattr(replay, "Recording", Wrong)
    sites = ["inside.0", "inside.2", "logits"]
    found = probed(OwnMemory().eval(), sites=sites)
    monkeypatch.setattr(replay, "FEW", 10**9)
    assert values(found) == values(probed(OwnMemory().eval(), sites=sites))


class OneBuffer:
    """Every batch in the same memory."""

    def __init__(self, x: Tensor, y: Tensor) -> None:
        self.parts = list(zip(x.split(SIZE), y.split(SIZE), strict=True))
        self.x, self.y = (torch.empty_like(part) for part in self.parts[0])

    def __len__(self) -> int:
        return len(self.parts)

    def __iter__(self):
        for x, y in self.parts:
            yield self.x.copy_(x), self.y.copy_(y)


def test_batches_that_are_written_into_the_same_memory_are_recorded_too(monkeypatch, on_cpu):
    found = ll.probe(network(), OneBuffer(*data()), progress=False)
    assert StandIn.made == 1
    assert StandIn.replays > BATCHES / 2
    monkeypatch.setattr(replay, "FEW", 10**9)
    assert values(found) == values(ll.probe(network(), OneBuffer(*data()), progress=False))


def test_features_that_wait_are_copied_together(monkeypatch, on_cpu):
    monkeypatch.setattr(waiting, "MOST", {"cpu": 2**30})
    monkeypatch.setattr(waiting, "ENOUGH", 4 * SIZE)
    taken = []
    add_all = KeptFeatures.add_all
    monkeypatch.setattr(KeptFeatures, "add_all", lambda *given: taken.append(add_all(*given)) or taken[-1])
    found = probed(network(), data(), **WAYS["streamed"] | {"memory_gib": 6e-5})
    assert len(taken) > 1.5 * BATCHES
    assert taken.count(False) == 1  # room is made by the first batch of pass 2; pass 1 begins without a recording
    monkeypatch.setattr(replay, "FEW", 10**9)
    assert values(found) == values(probed(network(), data(), **WAYS["streamed"] | {"memory_gib": 6e-5}))


def test_targets_are_predicted_by_each_batch_of_its_own(monkeypatch, on_cpu):
    x, _ = data()
    given = x, x[:, :2].sin()
    found = probed(network(outputs=2), given)
    assert StandIn.replays > BATCHES / 2
    monkeypatch.setattr(replay, "FEW", 10**9)
    assert values(found) == values(probed(network(outputs=2), given))


class Waits(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x if float(x.sum()) > 1e9 else 2 * x


class Draws(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x + 0 * torch.rand_like(x)


class Chooses(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        x = x.clone()
        x[x < 0] = 0
        return x + 0 * x[x > 0].sum()


@pytest.mark.parametrize("odd", [Waits, Draws, Chooses])
def test_what_depends_on_numbers_or_chance_is_not_recorded(on_cpu, odd):
    probed(network(odd()))
    assert StandIn.made == 0


def test_few_batches_are_not_recorded(on_cpu):
    probed(network(), data(SIZE * (replay.FEW - 1)))
    assert StandIn.made == 0


def test_hooks_of_the_user_are_called_for_every_batch(on_cpu):
    model, calls = network(), []
    model[0].register_forward_hook(lambda *_: calls.append(1))
    probed(model)
    assert StandIn.made == 0
    assert len(calls) >= BATCHES


def test_a_forward_of_its_own_and_training_mode_are_not_recorded():
    model = network()
    assert replay.repeats(model)
    model[0].forward = lambda x: x
    assert not replay.repeats(model)
    assert not replay.repeats(network().train())


def test_classes_that_are_chosen_are_measured_as_ever(monkeypatch, on_cpu):
    found = probed(network(), classes=[0, 1, 2])
    assert StandIn.made == 0  # only some rows of a batch are handed over
    monkeypatch.setattr(replay, "FEW", 10**9)
    assert values(found) == values(probed(network(), classes=[0, 1, 2]))


def test_a_recording_that_gives_something_else_is_not_used(monkeypatch, on_cpu):
    class Wrong(StandIn):
        def replay(self, batch: Batch) -> Tensor:
            return super().replay(batch) + 1e-3

    monkeypatch.setattr(replay, "Recording", Wrong)
    found = probed(network())
    assert StandIn.replays == 1
    monkeypatch.setattr(replay, "FEW", 10**9)
    assert values(found) == values(probed(network()))


def test_large_inputs_are_not_recorded(monkeypatch, on_cpu):
    monkeypatch.setattr(replay, "INPUTS", 4 * 6 * SIZE - 1)
    probed(network())
    assert StandIn.made == 0


@cuda
@pytest.mark.parametrize("gib", [8, 0.02])
def test_a_graph_gives_what_forwards_give(monkeypatch, gib):
    model = Architecture.named("resnet20").build().cuda().eval()
    generator = torch.Generator().manual_seed(0)
    x, y = torch.randn(1000, 3, 32, 32, generator=generator).cuda(), (torch.arange(1000) % 10).cuda()
    made = []
    recorded = replay.Recording.__init__
    monkeypatch.setattr(replay.Recording, "__init__", lambda self, *a: (made.append(1), recorded(self, *a))[1])
    options = {"batch_size": 50, "progress": False, "memory_gib": gib, "sites": "layers", "uncertainty": False}
    found = ll.probe(model, (x, y), **options)
    assert len(made) == 1 if gib == 8 else len(made) >= 2  # a group of sites is recorded in each of its passes
    monkeypatch.setattr(replay, "FEW", 10**9)
    plain = ll.probe(model, (x, y), **options)
    for mine, other in zip(values(found), values(plain), strict=True):
        assert mine == pytest.approx(other, rel=1e-9, abs=1e-12, nan_ok=True)


class FailsWhenRecorded(nn.Module):
    """Waits for a number, but not in the dry run."""

    def forward(self, x: Tensor) -> Tensor:
        return x if len(x) < 10 or float(x.sum()) < 1e9 else 2 * x


@cuda
def test_a_forward_that_cannot_be_recorded_leaves_no_trace():
    model = network(FailsWhenRecorded()).cuda()
    x, y = (t.cuda() for t in data())
    torch.cuda.manual_seed(5)
    state, here = torch.cuda.get_rng_state(), torch.cuda.current_stream()
    found = probed(model, (x, y))
    assert torch.equal(torch.cuda.get_rng_state(), state)
    assert torch.cuda.current_stream() == here
    torch.rand(3, device="cuda")
    large = torch.empty(2**30, device="cuda")
    assert torch.cuda.memory_reserved() > 2**32
    del large
    torch.cuda.empty_cache()
    assert torch.cuda.memory_reserved() < 2**30  # memory is given back as ever
    plain = probed(model.cpu(), data())
    assert found.sites[-1].values["separation"] == pytest.approx(plain.sites[-1].values["separation"], rel=1e-4)


def test_a_network_that_could_not_be_recorded_is_not_tried_again(monkeypatch, on_cpu):
    tries = []

    class Fails(StandIn):
        def __init__(self, *_: object) -> None:
            tries.append(1)
            raise RuntimeError("operation not permitted when stream is capturing")

    monkeypatch.setattr(replay, "Recording", Fails)
    model = network()
    found, again = probed(model), probed(model)
    assert len(tries) == 1
    assert values(found) == values(again)
    probed(network())
    assert len(tries) == 2


def passed(copied=(), **how) -> replay.Passed:
    """What is held of one forward whose first activation overwrites what the first layer gave."""
    model, held = network(), replay.Passed(copied, **how)

    def leave(name: str, _: nn.Module, __: object, output: Tensor) -> None:
        held.add(name, output.detach())

    with torch.no_grad(), hooked(model, ["0", "1", "2"], lambda *_: None, leave):
        model(data(5)[0])
    return held


def test_features_that_are_overwritten_are_told_and_copied_in_the_recording():
    watch = passed(sums=True)
    assert watch.overwritten == {"0", "2"}
    with pytest.raises(ll.LayerlawError, match="overwritten in this forward"):
        watch.unchanged()
    assert not passed(None).overwritten
    held = passed(watch.overwritten)
    features = held.unchanged()
    assert {name: of_site.sum(dtype=torch.float64) for name, of_site in features.items()} == watch.sums
    assert bool((features["0"] < 0).any())  # as the layer gave them
    assert bool((features["1"] >= 0).all())


def test_features_of_inference_mode_are_copied():
    held = replay.Passed(())
    with torch.inference_mode():
        one = torch.ones(2)
    held.add("0", one)
    assert held.overwritten == {"0"}


class WritesUnseen(nn.Module):
    """Overwrites what it gets in a way that torch does not count."""

    def forward(self, x: Tensor) -> Tensor:
        found = 2 * x
        x.data.mul_(0.5)
        return found


def test_features_that_are_overwritten_unseen_are_not_taken_from_a_recording(monkeypatch, on_cpu):
    def model() -> nn.Module:
        torch.manual_seed(0)
        return nn.Sequential(nn.Linear(6, 12), WritesUnseen(), nn.Linear(12, 4)).eval()

    found = probed(model(), sites=["0", "2"])
    assert (StandIn.made, StandIn.replays) == (1, 1)  # its features have other sums
    monkeypatch.setattr(replay, "FEW", 10**9)
    assert values(found) == values(probed(model(), sites=["0", "2"]))


class ScalesUnseen(nn.Module):
    """Overwrites its input in a way that torch does not count."""

    def forward(self, x: Tensor) -> Tensor:
        x.data.mul_(torch.linspace(0.1, 1, x.shape[1]).to(x.dtype))
        return x


def test_sums_of_half_precision_do_not_overflow(monkeypatch, on_cpu):
    def found():
        torch.manual_seed(0)
        n = BATCHES * SIZE
        y = torch.arange(n) % 4
        x = torch.randn(n, 6, generator=torch.Generator().manual_seed(1)) + 20 * y[:, None] + 20
        model = nn.Sequential(nn.Linear(6, 400), nn.Softplus(), ScalesUnseen(), nn.Linear(400, 4)).half().eval()
        return values(probed(model, (x.half(), y), sites=["0", "1"], uncertainty=False))

    by_recording = found()
    monkeypatch.setattr(replay, "FEW", 10**9)
    assert by_recording == found()


def test_batches_that_always_have_another_shape_are_soon_not_watched_any_more(monkeypatch, on_cpu):
    watched = []
    add = replay.Passed.add
    monkeypatch.setattr(replay.Passed, "add", lambda *given: (watched.append(given[1]), add(*given))[1])
    x, y = data()
    cuts = [3 + i % 2 for i in range(40)]
    batches = list(zip(x[: sum(cuts)].split(cuts), y[: sum(cuts)].split(cuts), strict=True))
    record = ll.probe(network(), batches, progress=False, uncertainty=False)
    assert 0 < len(watched) <= replay.SHAPES * len(record.sites)
