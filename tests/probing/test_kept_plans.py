"""A network that is probed again: no second dry run, and never the plan of a network that it no longer is."""

from __future__ import annotations

import copy
import gc
import os
import threading
import types
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from capture_networks import Encoder, clouds, seeded
from torch import Tensor, nn
from torch.nn.utils import parametrize

import layerlaw as ll
from layerlaw.errors import CaptureError
from layerlaw.probing import kept_plans
from layerlaw.probing.kept_plans import KeptPlans, keeping

HOW: dict[str, Any] = {"sites": "layers", "progress": False, "uncertainty": False}
X, Y = clouds(60, 6)
SKIPS = False
CALLS = np.zeros(1)  # the numbers in an array are in no key
ODD = np.zeros(1)


class Switched(nn.Module):
    """Four layers; the two in the middle are a residual block where `skips` says so: the same calls, another trunk."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.a, self.b, self.last = (nn.Linear(*w) for w in ((6, 8), (8, 8), (8, 8), (8, 3)))

    def skips(self) -> bool:
        return False

    def forward(self, x: Tensor) -> Tensor:
        CALLS[0] += 1
        x = F.relu(self.first(x))
        y = self.b(F.relu(self.a(x)))
        return self.last(F.relu(x + y if self.skips() else y))


@dataclass
class Settings:
    skips: bool = False


def plain() -> tuple[nn.Module, Callable[[], None]]:
    class ByAttribute(Switched):
        skip = False

        def skips(self) -> bool:
            return self.skip

    network = ByAttribute()
    network.skip = False
    return network, lambda: setattr(network, "skip", True)


def of_class() -> tuple[nn.Module, Callable[[], None]]:
    class ByClass(Switched):
        skip = False

        def skips(self) -> bool:
            return self.skip

    return ByClass(), lambda: setattr(ByClass, "skip", True)


def inside(held: Any, read: Callable[[Any], bool], flip: Callable[[Any], object]) -> Any:
    """An attribute that holds the flag somewhere inside of it."""

    def make() -> tuple[nn.Module, Callable[[], None]]:
        class ByHeld(Switched):
            def skips(self) -> bool:
                return read(self.held)

        network = ByHeld()
        network.held = held()
        return network, lambda: flip(network.held)

    return make


def of_module() -> tuple[nn.Module, Callable[[], None]]:
    global SKIPS
    SKIPS = False

    class ByGlobal(Switched):
        def skips(self) -> bool:
            return SKIPS

    return ByGlobal(), lambda: globals().update(SKIPS=True)


def _global_flag() -> bool:
    return SKIPS


def of_function() -> tuple[nn.Module, Callable[[], None]]:
    global SKIPS
    SKIPS = False

    class ByFunction(Switched):
        def skips(self) -> bool:
            return _global_flag()

    return ByFunction(), lambda: globals().update(SKIPS=True)


settings = types.ModuleType("settings")


def of_other_module() -> tuple[nn.Module, Callable[[], None]]:
    settings.SKIPS = False

    class ByOther(Switched):
        def skips(self) -> bool:
            return settings.SKIPS

    return ByOther(), lambda: setattr(settings, "SKIPS", True)


def closed_over() -> tuple[nn.Module, Callable[[], None]]:
    flag = False

    class ByCell(Switched):
        def skips(self) -> bool:
            return flag

    def flip() -> None:
        nonlocal flag
        flag = True

    return ByCell(), flip


def own_forward() -> tuple[nn.Module, Callable[[], None]]:
    network = Switched()

    def forward(x: Tensor) -> Tensor:
        x = F.relu(network.first(x))
        return network.last(F.relu(x + network.b(F.relu(network.a(x)))))

    return network, lambda: setattr(network, "forward", forward)


def patched(name: str, *, where: str = "own") -> Any:
    """A method of the class, or of the one that it is made from, replaced."""

    def skipping(self: Any, x: Tensor) -> Tensor:
        x = F.relu(self.first(x))
        return self.last(F.relu(x + self.b(F.relu(self.a(x)))))

    def make() -> tuple[nn.Module, Callable[[], None]]:
        class Base(Switched):
            def forward(self, x: Tensor) -> Tensor:
                return super().forward(x)

        class Derived(Base):
            def forward(self, x: Tensor) -> Tensor:
                return super().forward(x)

        new = {"skips": lambda self: True, "forward": skipping}[name]
        return Derived(), lambda: setattr(Derived if where == "own" else Base, name, new)

    return make


def property_of() -> tuple[nn.Module, Callable[[], None]]:
    class ByProperty(Switched):
        @property
        def skip(self) -> bool:
            return False

        def skips(self) -> bool:
            return self.skip

    return ByProperty(), lambda: setattr(ByProperty, "skip", property(lambda self: True))


class Adviser:
    """No module: an object that a network asks."""

    def answer(self) -> bool:
        return False

    def __call__(self) -> bool:
        return SKIPS


def of_object(name: str) -> Any:
    def make() -> tuple[nn.Module, Callable[[], None]]:
        class Own(Adviser):
            answer = Adviser.answer

        class ByObject(Switched):
            def skips(self) -> bool:
                return self.ask.answer() if name == "answer" else self.ask()

        network = ByObject()
        network.ask = Own()
        globals().update(SKIPS=False)
        if name == "answer":
            return network, lambda: setattr(Own, "answer", lambda self: True)
        return network, lambda: globals().update(SKIPS=True)

    return make


def _asked(network: Any) -> bool:
    return network.answer()


def through_function() -> tuple[nn.Module, Callable[[], None]]:
    class Asked(Switched):
        def answer(self) -> bool:
            return False

        def skips(self) -> bool:
            return _asked(self)

    return Asked(), lambda: setattr(Asked, "answer", lambda self: True)


def default_of() -> tuple[nn.Module, Callable[[], None]]:
    class ByDefault(Switched):
        def skips(self, skip: bool = False) -> bool:
            return skip

    return ByDefault(), lambda: setattr(ByDefault.skips, "__defaults__", (True,))


def partial_of() -> tuple[nn.Module, Callable[[], None]]:
    class ByPartial(Switched):
        def skips(self) -> bool:
            return self.ask()

    network = ByPartial()
    network.ask = partial(bool, False)
    return network, lambda: setattr(network, "ask", partial(bool, True))


class Adds(nn.Module):
    """Two layers and what they read."""

    def __init__(self, a: nn.Module, b: nn.Module) -> None:
        super().__init__()
        self.a, self.b = a, b

    def forward(self, x: Tensor) -> Tensor:
        return x + self.b(F.relu(self.a(x)))


def chain() -> nn.Sequential:
    pair = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 8))
    return nn.Sequential(nn.Linear(6, 8), nn.ReLU(), pair, nn.ReLU(), nn.Linear(8, 3))


def hooked(register: str, hook: Callable[..., Any]) -> Any:
    def make() -> tuple[nn.Module, Callable[[], None]]:
        network = chain()
        return network, lambda: getattr(network[2], register)(hook)

    return make


def hook_turned_on() -> tuple[nn.Module, Callable[[], None]]:
    network, on = chain(), [False]
    network[2].register_forward_hook(lambda module, args, output: output + args[0] if on[0] else None)
    return network, lambda: on.__setitem__(0, True)


def hook_removed() -> tuple[nn.Module, Callable[[], None]]:
    network = chain()
    return network, network[2].register_forward_hook(lambda module, args, output: output + args[0]).remove


def other_child() -> tuple[nn.Module, Callable[[], None]]:
    network = chain()
    return network, lambda: network.__setitem__(2, Adds(network[2][0], network[2][2]))


def another_layer() -> tuple[nn.Module, Callable[[], None]]:
    network = chain()
    return network, lambda: network[2].append(nn.Linear(8, 8))


def wider() -> tuple[nn.Module, Callable[[], None]]:
    network = chain()

    def flip() -> None:
        first, second = network[2][0], network[2][2]
        first.weight, first.bias = nn.Parameter(torch.randn(9, 8)), nn.Parameter(torch.randn(9))
        second.weight = nn.Parameter(torch.randn(8, 9))

    return network, flip


def wider_buffer() -> tuple[nn.Module, Callable[[], None]]:
    class ByBuffer(Switched):
        def skips(self) -> bool:
            return len(self.mask) > 1

    network = ByBuffer()
    network.register_buffer("mask", torch.ones(1))
    return network, lambda: network.register_buffer("mask", torch.ones(2))


def parametrized() -> tuple[nn.Module, Callable[[], None]]:
    network = chain()
    return network, lambda: parametrize.register_parametrization(network[2][0], "weight", nn.Tanh())


class Frozen(Switched):
    def skips(self) -> bool:
        return not self.a.weight.requires_grad


def frozen() -> tuple[nn.Module, Callable[[], None]]:
    network = Frozen()
    return network, lambda: network.a.requires_grad_(False)


def tied() -> tuple[nn.Module, Callable[[], None]]:
    class Tied(Switched):
        def skips(self) -> bool:
            return self.a.weight is self.b.weight

    network = Tied()
    return network, lambda: setattr(network.b, "weight", network.a.weight)


def environment() -> tuple[nn.Module, Callable[[], None]]:
    os.environ.pop("LAYERLAW_TEST_SKIPS", None)

    class ByEnvironment(Switched):
        def skips(self) -> bool:
            return "LAYERLAW_TEST_SKIPS" in os.environ

    return ByEnvironment(), lambda: os.environ.update(LAYERLAW_TEST_SKIPS="1")


def number_of(read: Callable[[Tensor], bool]) -> Any:
    """A forward that looks at a number in its weights."""

    def make() -> tuple[nn.Module, Callable[[], None]]:
        class ByNumber(Switched):
            def skips(self) -> bool:
                return read(self.scale)

        network = ByNumber()
        network.scale = nn.Parameter(torch.zeros(1))
        return network, lambda: nn.init.ones_(network.scale)

    return make


MUTATIONS: dict[str, Any] = {
    "plain attribute": plain,
    "attribute of the class": of_class,
    "entry of a list": inside(lambda: [False], lambda held: held[0], lambda held: held.__setitem__(0, True)),
    "entry of a dictionary": inside(
        lambda: {"a": {"b": False}}, lambda held: held["a"]["b"], lambda held: held["a"].update(b=True)
    ),
    "member of a set": inside(set, lambda held: "skips" in held, lambda held: held.add("skips")),
    "attribute of a settings object": inside(
        Settings, lambda held: held.skips, lambda held: setattr(held, "skips", True)
    ),
    "attribute of a namespace": inside(
        lambda: SimpleNamespace(skips=False), lambda held: held.skips, lambda held: setattr(held, "skips", True)
    ),
    "type of a number": inside(lambda: [1], lambda held: held[0] is True, lambda held: held.__setitem__(0, True)),
    "global": of_module,
    "global of a function that is called": of_function,
    "global of another module": of_other_module,
    "variable of the function around": closed_over,
    "forward of the instance": own_forward,
    "forward of the class": patched("forward"),
    "forward of the base class": patched("forward", where="base"),
    "method that forward calls": patched("skips"),
    "property that forward reads": property_of,
    "method of an object that is asked": of_object("answer"),
    "global of an object that is called": of_object("call"),
    "method that a function calls": through_function,
    "default of a method": default_of,
    "argument of a partial": partial_of,
    "forward hook": hooked("register_forward_hook", lambda module, args, output: output + args[0]),
    "forward pre-hook": hooked("register_forward_pre_hook", lambda module, args: (2 * args[0],)),
    "hook that is turned on": hook_turned_on,
    "hook that is removed": hook_removed,
    "another child": other_child,
    "one more layer": another_layer,
    "wider weights": wider,
    "wider buffer": wider_buffer,
    "parametrization": parametrized,
    "frozen weights": frozen,
    "tied weights": tied,
    "environment": environment,
    "number in the weights": number_of(lambda scale: bool(scale > 0)),
    "number in the weights, as a list": number_of(lambda scale: scale.tolist()[0] > 0),
    "number in the weights, by NumPy": number_of(lambda scale: scale.detach().numpy()[0] > 0),
}


def seen(record: ll.Record) -> str:
    """All that a record says, other than when it was made."""
    return repr({key: value for key, value in record.to_dict().items() if key != "provenance"})


@pytest.fixture
def dry_runs(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """One entry for each dry run."""
    made: list[str] = []
    find = kept_plans.find_sites

    def counted(*args: Any, **how: Any) -> Any:
        made.append("dry run")
        return find(*args, **how)

    monkeypatch.setattr(kept_plans, "find_sites", counted)
    return made


@pytest.mark.parametrize("mutation", MUTATIONS)
def test_a_network_that_was_changed_is_measured_as_a_new_one(mutation: str) -> None:
    network, flip = seeded(MUTATIONS[mutation])
    before = ll.probe(network, (X, Y), **HOW)
    ll.probe(network, (X, Y), **HOW)
    flip()
    after = ll.probe(network, (X, Y), **HOW)
    with keeping(KeptPlans()):
        fresh = ll.probe(network, (X, Y), **HOW)
    assert seen(after) == seen(fresh)
    assert seen(after) != seen(before)
    os.environ.pop("LAYERLAW_TEST_SKIPS", None)


def test_a_second_probe_makes_no_dry_run(dry_runs: list[str]) -> None:
    network = seeded(Switched)
    CALLS[0] = 0
    first = ll.probe(network, (X, Y), **HOW)
    calls = int(CALLS[0])
    second = ll.probe(network, (X + 0.0, Y), **HOW)
    assert len(dry_runs) == 1
    assert int(CALLS[0]) == 2 * calls - 2  # two and three samples
    assert seen(first) == seen(second)


def test_new_weights_need_no_dry_run_and_are_measured(dry_runs: list[str]) -> None:
    network = seeded(Switched)
    ll.probe(network, (X, Y), **HOW)
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.add_(torch.randn_like(parameter))
    network.train()
    again = ll.probe(network, (X, Y), **HOW)
    assert len(dry_runs) == 1
    assert seen(again) == seen(ll.probe(copy.deepcopy(network), (X, Y), **HOW))
    assert network.training


def test_other_options_and_inputs_have_plans_of_their_own(dry_runs: list[str]) -> None:
    network = seeded(Switched)
    double = copy.deepcopy(network).double()
    ways: list[dict[str, Any]] = [{"sites": "layers"}, {"sites": ["a", "b"]}, {"sites": nn.Linear}]
    for count in (3, 3):
        found = [ll.probe(network, (X, Y), **{**HOW, **way}) for way in ways]
        assert [len(record.sites) for record in found] == [4, 2, 4]
        assert len(dry_runs) == count
    with torch.autocast("cpu", torch.bfloat16):
        ll.probe(network, (X, Y), **HOW)
    assert len(dry_runs) == 4
    ll.probe(double, (X.double(), Y), **HOW)
    network.double()
    ll.probe(network, (X.double(), Y), **HOW)
    assert len(dry_runs) == 6


def test_a_function_that_chooses_sites_is_asked_every_time() -> None:
    network = seeded(Switched)
    for name in ("a", "b", "first"):
        record = ll.probe(network, (X, Y), **{**HOW, "sites": lambda at, module, name=name: at == name})
        assert [row.name for row in record.sites] == [name]


def test_numbers_that_decide_are_looked_at_every_time(dry_runs: list[str]) -> None:
    tokens = torch.randn(30, 5, 8), torch.arange(30) % 3
    network = seeded(Encoder, batch_first=True)
    for _ in range(2):
        ll.probe(network, tokens, **HOW)
    assert len(dry_runs) == 2
    chained = seeded(chain)
    for _ in range(2):
        ll.probe(chained, (X, Y), **{**HOW, "parts": True})
        ll.probe(chained, (X, Y), **{**HOW, "sites": ["0", "output"]})
    assert len(dry_runs) == 6


class Clamps(nn.Module):
    """Overwrites its inputs, with what they are where they are positive."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(6, 8), nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.first(x.relu_()).relu())


def test_inputs_are_not_overwritten_where_those_before_were_as_they_would_be() -> None:
    network, other = seeded(Clamps), X - X.mean()
    ll.probe(network, (X.abs(), Y), **HOW)
    given = other.clone()
    ll.probe(network, (given, Y), **HOW)
    assert torch.equal(given, other)


def test_inputs_are_not_overwritten_behind_samples_that_stay_as_they_are() -> None:
    given = torch.cat([X[:5].abs(), X[5:] - X.mean()])
    before = given.clone()
    ll.probe(seeded(Clamps), (given, Y), **HOW)
    assert torch.equal(given, before)


class Odd(Switched):
    """Does something else after a change that no key tells."""

    def forward(self, x: Tensor) -> Any:
        if ODD[0] == 1:
            return self.last(F.relu(self.a(F.relu(self.first(x)))))
        if ODD[0] == 2:
            return {"hidden_states": x, "logits": super().forward(x)}
        if ODD[0] == 3:
            return F.pad(super().forward(x), (0, 2))
        if ODD[0] == 4:
            raise RuntimeError("out of order")
        return super().forward(x)


@pytest.mark.parametrize("change", [1, 2, 3])
def test_a_plan_that_no_longer_holds_is_made_anew(change: int, dry_runs: list[str]) -> None:
    ODD[0] = 0
    network = seeded(Odd)
    how = {**HOW, "classes": 3}
    ll.probe(network, (X, Y), **how)
    ODD[0] = change
    after = ll.probe(network, (X, Y), **how)
    assert len(dry_runs) == 2
    assert seen(after) == seen(ll.probe(copy.deepcopy(network), (X, Y), **how))
    ODD[0] = 0


def test_an_error_of_the_model_is_told_as_by_a_dry_run() -> None:
    ODD[0] = 0
    network = seeded(Odd)
    ll.probe(network, (X, Y), **HOW)
    ODD[0] = 4
    with pytest.raises(CaptureError, match=r"in the dry run with 2 samples .* out of order"):
        ll.probe(network, (X, Y), **HOW)
    ODD[0] = 0


def test_an_error_behind_the_first_batch_does_not_measure_twice(dry_runs: list[str]) -> None:
    network, bad = seeded(Switched), X.clone()
    ll.probe(network, (X, Y), **HOW, batch_size=20)
    bad[-1] = torch.nan
    with pytest.raises(ll.errors.FeatureError, match="NaN"):
        ll.probe(network, (bad, Y), **HOW, batch_size=20)
    assert len(dry_runs) == 1


def test_a_network_is_let_go_of_with_its_plans() -> None:
    network = seeded(Switched)
    network.own = SimpleNamespace(network=network)
    ll.probe(network, (X, Y), **HOW)
    assert network in kept_plans._by_network
    held, gone = len(kept_plans._by_network), weakref.ref(network)
    del network
    gc.collect()
    assert gone() is None
    assert len(kept_plans._by_network) < held


def test_two_threads_measure_one_network() -> None:
    network, found = seeded(Switched), list[str]()
    threads = [threading.Thread(target=lambda: found.append(seen(ll.probe(network, (X, Y), **HOW)))) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 3
    assert len(set(found)) == 1


def test_few_plans_of_one_network_are_kept(dry_runs: list[str]) -> None:
    network = seeded(Switched)
    names = ["first", "a", "b", "last"]
    for _ in range(2):
        for name in names:
            ll.probe(network, (X, Y), **{**HOW, "sites": [name]})
    assert len(dry_runs) == 4
    ll.probe(network, (X, Y), **HOW)
    ll.probe(network, (X, Y), **{**HOW, "sites": ["first"]})
    assert len(dry_runs) == 6
