"""Under a default device of the user our own arithmetic stays on the CPU, and the user's code keeps the one it had.

"meta" stands in for a GPU, and is stricter: whatever is made there and read fails at once.
"""

import threading
import warnings
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.overrides import _get_current_function_mode_stack
from torch.utils.data import DataLoader, Dataset, TensorDataset

import layerlaw as ll
from layerlaw import lab, threads
from layerlaw.lm import pieces_of
from layerlaw.measures import target_separation
from layerlaw.probing import merge, probe_shard
from layerlaw.probing.paths import sample_paths
from layerlaw.threads import on_cpu, users_device

torch.manual_seed(0)
Y = torch.arange(300) % 3
X = torch.randn(300, 20) + Y[:, None]
TARGETS = torch.randn(300, 2)
IDS = torch.randint(0, 30, (6, 48), generator=torch.Generator().manual_seed(0))
HELD_OUT = X[:90].clone(), Y[:90].clone()
QUIET: dict[str, Any] = {"progress": False}


@contextmanager
def set_for_good(device: str) -> Iterator[None]:
    torch.set_default_device(device)
    try:
        yield
    finally:
        torch.set_default_device(None)


FORMS: dict[str, Callable[[str], AbstractContextManager[Any]]] = {"set": set_for_good, "with": torch.device}


class Loader(DataLoader[Any]):
    """A loader of torch, which itself draws a number without a device when it begins: that fails on "meta"."""

    def __iter__(self) -> Any:
        with torch.device("cpu"):
            return super().__iter__()


class Seeing(nn.Module):
    """Remembers where its forward makes tensors without a device."""

    def __init__(self, outputs: int = 3) -> None:
        super().__init__()
        torch.manual_seed(0)
        with torch.device("cpu"):
            first, middle, last = nn.Linear(20, 16), nn.Linear(16, 16), nn.Linear(16, outputs)
            self.layers = nn.Sequential(first, nn.BatchNorm1d(16), nn.ReLU(), middle, nn.ReLU(), last)
        self.eval()
        self.seen: list[str] = []

    def forward(self, x: Tensor) -> Tensor:
        self.seen.append(torch.zeros(1).device.type)
        return self.layers(x)  # type: ignore[no-any-return]


class Rows(Dataset[Any]):
    """The same of a data set."""

    def __init__(self) -> None:
        self.seen: list[str] = []

    def __len__(self) -> int:
        return len(X)

    def __getitem__(self, i: int) -> tuple[Tensor, Tensor]:
        self.seen.append(torch.ones(1).device.type)
        return X[i], Y[i]


def loader(*tensors: Tensor) -> Loader:
    return Loader(TensorDataset(*tensors), batch_size=50)


def of(record: ll.Record) -> dict[str, Any]:
    """All that a record holds but when and how long; its pictures and lazy numbers are looked at."""
    found = record.to_dict()
    marks = {name: value for name, value in found.pop("provenance").items() if "sha256" in name or "data" in name}
    return {**found, "marks": marks, "law": str(record.law())}


def gpt() -> lab.GPT:
    torch.manual_seed(0)
    with torch.device("cpu"):
        return lab.GPT(vocabulary=30, width=8, heads=2, depth=3, context=16).eval()


def probed(*data: Any, model: nn.Module | None = None, **how: Any) -> dict[str, Any]:
    return of(ll.probe(Seeing() if model is None else model, *data, **QUIET, **how))


def monitored() -> list[dict[str, Any]]:
    monitor = ll.Monitor(Seeing(), (X, Y), uncertainty=True)
    for epoch in range(2):
        monitor(epoch)
    return [of(record) for record in monitor.records]


def in_shards(folder: Path) -> dict[str, Any]:
    for _ in range(2):
        for i in (1, 2):
            probe_shard(Seeing(), (X, Y), shard=(i, 2), state=folder, **QUIET)
    return of(merge(folder))


def trained() -> Any:
    network, recipe = (
        Seeing(),
        lab.Recipe(lab.Shape.even(4, inputs=20, classes=3), epochs=2, batch_size=50),
    )
    losses = lab.train(network, X, Y, recipe, **QUIET)
    return losses, {name: value.tolist() for name, value in network.state_dict().items()}


def swept() -> Any:
    recipe = lab.Recipe(lab.Shape.even(4, inputs=20, classes=3), epochs=2, batch_size=50)
    runs = lab.sweep([recipe], lab.Samples(X, Y, classes=3), workers=1, **QUIET)
    return [(run.losses, [m.separation for m in run.measurements]) for run in runs]


def pulled() -> Any:
    model = Seeing()
    loss = ll.SVSL(model, alpha=1e-3, means="whole")
    loss.measure_means((X, Y))
    loss(model(X), Y).backward()
    _, uneven = ll.EvenSteps(model, X[:8])(X, Y)
    return [p.grad.tolist() for p in model.parameters()], uneven.item()


def in_language() -> dict[str, Any]:
    return of(ll.probe_lm(gpt(), pieces_of(IDS, length=16), lens="logit", null=True, classes=3, **QUIET))


def text_trained() -> Any:
    model, recipe = gpt(), lab.TextRecipe(steps=3, batch_size=4, context=16, warmup=1)
    return lab.train_text(model, IDS.flatten(), recipe, **QUIET), lab.text_loss(model, IDS.flatten(), recipe)


def walked() -> Any:
    paths = sample_paths(Seeing(), (X, Y), test=HELD_OUT, **QUIET)
    return paths.rows(), paths.sentence


def left_early() -> Any:
    found = ll.early_exit(Seeing(), (X, Y), test=HELD_OUT, tolerance=0.05, times=(2,), **QUIET)
    assert found.report is not None
    return [(row.name, row.judged, row.layers) for row in found.report.sites], found(X).tolist()


CASES: dict[str, Callable[[], Any]] = {
    "measure": lambda: str(ll.measure(X, Y, linear=True)),
    "at hand": lambda: [f(X, Y) for f in (ll.cdnv, ll.nc1, ll.ncc_accuracy, ll.separation_fuzziness)],
    "targets at hand": lambda: target_separation(X, TARGETS),
    "arrays": lambda: str(ll.measure(X.numpy(), Y.tolist())),
    "default": lambda: probed((X, Y)),
    "test": lambda: probed((X, Y), test=HELD_OUT),
    "linear": lambda: probed((X, Y), linear=True),
    "parts": lambda: probed((X, Y), parts=True),
    "null": lambda: probed((X, Y), null=True),
    "no uncertainty": lambda: probed((X, Y), uncertainty=False),
    "stream": lambda: probed((X, Y), memory_gib=1e-4),
    "batch": lambda: probed((X, Y), batchnorm="batch", batch_size=100),
    "whole": lambda: probed((X, Y), batchnorm="whole"),
    "loader": lambda: probed(loader(X, Y), test=loader(*HELD_OUT)),
    "batches": lambda: probed([(X[:150], Y[:150]), (X[150:], Y[150:])]),
    "some classes": lambda: probed((X, Y), classes=[0, 2]),
    "targets": lambda: probed((X, TARGETS), model=Seeing(2)),
    "targets in a loader": lambda: probed(loader(X, TARGETS), model=Seeing(2)),
    "record_of": lambda: of(ll.record_of({"a": X, "b": X.tanh()}, Y, test=({"a": X, "b": X}, Y), **QUIET)),
    "sites": lambda: str(ll.sites(Seeing(), X)),
    "paths": walked,
    "early exit": left_early,
    "monitor": monitored,
    "train": trained,
    "sweep": swept,
    "losses": pulled,
    "language model": in_language,
    "text": text_trained,
}


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("case", CASES)
def test_every_number_is_what_it_is_without_a_default_device(case: str, form: str) -> None:
    expected = CASES[case]()
    with FORMS[form]("meta"):
        found = CASES[case]()
        assert torch.zeros(1).device.type == "meta"
    assert found == expected


@pytest.mark.parametrize("form", FORMS)
def test_shards_leave_what_they_leave_without_it(form: str, tmp_path: Path) -> None:
    expected = in_shards(tmp_path / "without")
    with FORMS[form]("meta"):
        assert in_shards(tmp_path / "with") == expected


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(
    "case", ["default", "null", "parts", "stream", "monitor", "early exit", "paths", "losses", "train"]
)
def test_the_forward_of_a_model_keeps_the_default_device(case: str, form: str, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[str] = []
    made = Seeing.__init__

    def noted(self: Seeing, outputs: int = 3) -> None:
        made(self, outputs)
        self.seen = seen

    monkeypatch.setattr(Seeing, "__init__", noted)
    monkeypatch.setattr(Seeing, "__deepcopy__", lambda self, memo: Seeing(), raising=False)
    with FORMS[form]("meta"):
        CASES[case]()
    assert set(seen) == {"meta"}


@pytest.mark.parametrize("form", FORMS)
def test_so_do_data_sets_and_functions_of_the_user(form: str) -> None:
    rows, seen = Rows(), set[str]()

    def noted(given: Any) -> Any:
        seen.add(torch.zeros(1).device.type)
        return given

    how: Any = {"scores": noted, "sites": ["input", lambda name, _: noted(name).startswith("layers.")], **QUIET}
    with FORMS[form]("meta"):
        ll.probe(Seeing(), Loader(rows, batch_size=50), **how)
    assert (set(rows.seen), seen) == ({"meta"}, {"meta"})


@pytest.mark.parametrize("form", FORMS)
def test_so_do_callbacks_of_a_training(form: str) -> None:
    seen: list[str] = []

    def note(*_: Any) -> None:
        seen.append(torch.zeros(1).device.type)

    def samples(seed: int) -> lab.Samples:
        note()
        return lab.Samples(X, Y, classes=3)

    with FORMS[form]("meta"):
        lab.train(Seeing(), X, Y, lab.Recipe(epochs=2), at_epochs=(0, 1), visit=note, **QUIET)
        lab.sweep([lab.Recipe(lab.Shape.even(4, inputs=20, classes=3), epochs=1)], {"data": samples}, **QUIET)
        ll.Monitor(Seeing(), (X, Y), to=note)(0)
    assert seen == ["meta"] * 4


def test_a_device_that_the_model_chooses_for_itself_is_left_to_it() -> None:
    class Choosing(Seeing):
        def forward(self, x: Tensor) -> Tensor:
            with torch.device("cpu"):
                return super().forward(x + torch.zeros(20))

    model = Choosing()
    with torch.device("meta"):
        assert probed((X, Y), model=model) == probed((X, Y), model=Choosing())
    assert set(model.seen) == {"cpu"}


@pytest.mark.parametrize("form", FORMS)
def test_after_an_error_the_default_device_is_the_users_again(form: str) -> None:
    class Failing(Seeing):
        def forward(self, x: Tensor) -> Tensor:
            if len(x) > 10:
                raise RuntimeError("no")
            return super().forward(x)

    with FORMS[form]("meta"):
        with pytest.raises(ll.LayerlawError, match="no"):
            ll.probe(Failing(), (X, Y), **QUIET)
        assert torch.zeros(1).device.type == "meta"
        with pytest.raises(ll.LayerlawError):
            ll.measure(X, Y[:3])
        assert torch.zeros(1).device.type == "meta"
    assert torch.zeros(1).device.type == "cpu"


@pytest.mark.parametrize("device", [None, "cpu"])
def test_where_it_is_the_cpu_nothing_is_done(device: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    modes: list[int] = []

    class Counting(Seeing):
        def forward(self, x: Tensor) -> Tensor:
            modes.append(len(_get_current_function_mode_stack()))
            return super().forward(x)

    def told(*_: Any) -> Any:
        raise AssertionError("a default device was changed")

    monkeypatch.setattr(threads, "_told", told)
    with nullcontext() if device is None else torch.device(device):
        probed(loader(X, Y), model=Counting(), parts=True)
    assert set(modes) == {0 if device is None else 1}


def test_each_thread_has_its_own() -> None:
    expected, found = probed((X, Y)), list[Any]()

    def work() -> None:
        found.append((torch.zeros(1).device.type, probed((X, Y))))

    with set_for_good("meta"):
        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
    assert found == [("cpu", expected)]


def test_our_code_and_the_users_may_lie_in_each_other() -> None:
    def here() -> str:
        return torch.zeros(1).device.type

    @on_cpu
    def ours(depth: int) -> list[str]:
        with users_device():
            inner = [here(), *(ours(depth - 1) if depth else []), here()]
        return [here(), *inner, here()]

    assert set(ours(1)) == {"cpu"}
    with torch.device("meta"):
        assert ours(1) == ["cpu", "meta", "cpu", "meta", "meta", "cpu", "meta", "cpu"]
        with torch.device("cpu"):
            assert set(ours(1)) == {"cpu"}
        assert here() == "meta"
    assert here() == "cpu"


def test_a_warning_of_a_monitor_names_the_line_of_the_user() -> None:
    monitor = ll.Monitor(Seeing(), (X, Y))
    monitor(1)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        monitor(0)
    assert [Path(one.filename).name for one in caught] == [Path(__file__).name]
