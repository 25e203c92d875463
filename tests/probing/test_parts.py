"""Probing what layers are made of: D before and after every part, in the record, the verdict, the page and the terminal."""

import json
import math

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import layerlaw as ll
import oracle
from layerlaw.errors import FeatureError
from layerlaw.record import PartRow
from layerlaw.verdict import judge
from layerlaw.verdict.parts import layer_changes, part_sums

K, D = 3, 12


def network(depth: int = 3) -> nn.Sequential:
    torch.manual_seed(0)
    layers = [m for _ in range(depth) for m in (nn.Linear(D, D), nn.BatchNorm1d(D), nn.ReLU(inplace=True))]
    return nn.Sequential(*layers, nn.Linear(D, K))


@pytest.fixture(scope="module")
def data() -> tuple[torch.Tensor, torch.Tensor]:
    x, y = oracle.blobs([70, 60, 50], D, seed=1)
    return x.float(), y


@pytest.fixture(scope="module")
def trained(data) -> nn.Sequential:
    net, (x, y) = network(), data
    optimizer = torch.optim.Adam(net.parameters(), lr=3e-3)
    for _ in range(150):
        optimizer.zero_grad()
        F.cross_entropy(net(x), y).backward()
        optimizer.step()
    return net.eval()


@pytest.fixture(scope="module")
def record(trained, data) -> ll.Record:
    return ll.probe(trained, data, parts=True, linear=True, progress=False)


def test_every_part_is_measured_where_it_begins_and_ends(record, trained, data) -> None:
    x, y = data
    at = [x]
    with torch.no_grad():
        for module in trained[:-1]:
            at.append(module(at[-1].clone()))
    expected = [float(ll.separation_fuzziness(features, y)) for features in at]
    assert [part.module for part in record.parts] == [str(i) for i in range(9)]
    assert [part.before["separation"] for part in record.parts] == pytest.approx(expected[:-1], rel=1e-6)
    assert [part.values["separation"] for part in record.parts] == pytest.approx(expected[1:], rel=1e-6)
    assert record.parts[4].change() == pytest.approx(math.log(expected[5] / expected[4]), rel=1e-5)


def test_the_parts_of_a_layer_add_up_to_its_step(record) -> None:
    values = record.column("separation")
    for i, (layer, changes) in enumerate(layer_changes(record).items()):
        assert layer == record.sites[i].name
        assert set(changes) == {"map", "normalization", "nonlinearity"}
        assert sum(changes.values()) == pytest.approx(math.log(values[i + 1] / values[i]), abs=1e-6)


def test_the_rows_and_the_law_are_those_of_a_probe_without_parts(record, trained, data) -> None:
    plain = ll.probe(trained, data, linear=True, progress=False)
    assert plain.parts == []
    assert (record.settings["parts"], record.settings["linear"], plain.settings["parts"]) == (True, True, False)
    assert [site.name for site in plain.sites] == [site.name for site in record.sites]
    assert record.columns == plain.columns
    assert record.law().values == pytest.approx(plain.law().values, rel=1e-12)


def test_linear_maps_and_normalizations_leave_the_least_d_of_a_linear_map_alone(record) -> None:
    sums = {one.kind: one for one in part_sums(record)}
    assert sums["map"].linear_most < 1e-3
    assert sums["normalization"].linear_most < 1e-3
    assert sums["nonlinearity"].linear < -0.1


def test_batches_and_little_memory_give_the_same_parts(record, trained, data) -> None:
    streamed = ll.probe(trained, data, parts=True, batch_size=50, memory_gib=2e-5, uncertainty=False, progress=False)
    assert not streamed.settings["one_forward"]
    for a, b in zip(record.parts, streamed.parts, strict=True):
        assert (a.layer, a.kind, a.module, a.type) == (b.layer, b.kind, b.module, b.type)
        assert a.values["separation"] == pytest.approx(b.values["separation"], rel=1e-5)


def test_the_model_is_as_it_was(data) -> None:
    net = network().train()
    before = {name: value.clone() for name, value in net.state_dict().items()}
    ll.probe(net, data, parts=True, progress=False)
    assert net.training
    assert all(torch.equal(value, before[name]) for name, value in net.state_dict().items())
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in net.modules())


def test_a_record_keeps_its_parts(record, tmp_path) -> None:
    again = ll.Record.load(record.save(tmp_path / "record.json"))
    assert again.parts == record.parts
    old = record.to_dict()
    del old["parts"]
    assert ll.Record.from_dict(old).parts == []


def test_the_verdict_says_which_part_does_the_work(record) -> None:
    said = next(line for line in judge(record).findings if line.startswith("Over 3 layers ln D changes by"))
    for words in ("in linear maps", "in normalizations", "in nonlinearities"):
        assert words in said
    assert any(
        line.startswith("The best linear map of the features would bring D to") for line in judge(record).findings
    )
    rows = [
        PartRow("a", kind, "m", "M", {"separation": 1.0}, {"separation": math.exp(change)})
        for kind, change in (("map", 2.9), ("normalization", -0.2), ("nonlinearity", -9.3), ("map", math.inf))
    ]
    record = ll.Record.from_dict(record.to_dict())
    record.parts = rows
    rows[-1].values = {"separation": None}
    assert (
        "Over 1 layer ln D changes by +2.90 in linear maps, −0.20 in normalizations and −9.30 in nonlinearities: "
        "the nonlinearities do all of it (1 part without D left out)."
    ) in judge(record).findings


def test_dead_features_give_parts_without_a_change(data) -> None:
    net = network(1)
    with torch.no_grad():
        net[0].weight.zero_()
        net[0].bias.fill_(-1.0)
    record = ll.probe(net.eval(), data, parts=True, uncertainty=False, progress=False)
    assert record.parts[0].change() is None


def test_the_page_shows_the_parts_only_where_there_are_some(record, trained, data, tmp_path) -> None:
    pytest.importorskip("plotly")
    page = ll.report(record, tmp_path / "page.html").read_text(encoding="utf-8")
    assert 'data-panel="parts"' in page
    assert "What a layer is made of" in page
    assert '<th scope="row" class="site">nonlinearity</th>' in page
    assert "change of ln D<sub>lin</sub>" in page
    plain = ll.report(ll.probe(trained, data, progress=False), tmp_path / "plain.html").read_text(encoding="utf-8")
    assert 'data-panel="parts"' not in plain


def test_the_parts_are_plain_data(record) -> None:
    part = json.loads(json.dumps(record.to_dict()))["parts"][2]
    assert (part["layer"], part["kind"], part["module"], part["type"]) == ("0", "nonlinearity", "2", "ReLU")
    assert set(part["values"]) == {"separation", "separation_linear"}


class Side(nn.Module):
    """A layer, and beside the trunk a branch whose features a function changes; it adds nothing to the trunk."""

    def __init__(self, change) -> None:
        super().__init__()
        self.one, self.act, self.side = nn.Linear(D, D), nn.ReLU(), nn.Linear(D, D)
        self.soft, self.fc, self.change, self.calls = nn.Softmax(-1), nn.Linear(D, K), change, 0

    def forward(self, x):
        self.calls += 1
        x = self.act(self.one(x))
        return self.fc(x + 1e-30 * self.soft(self.change(self.side(x), self.calls)))


def side(change) -> nn.Module:
    torch.manual_seed(0)
    return Side(change).eval()


def test_a_part_that_changes_between_the_passes_is_left_out_alone(data) -> None:
    def noise(x, call):
        return x + torch.randn(x.shape, generator=torch.Generator().manual_seed(call))

    record = ll.probe(side(noise), data, parts=True, memory_gib=2e-5, uncertainty=False, progress=False)
    assert not record.settings["one_forward"]
    note = next(note for note in record.notes if note.startswith("Parts at"))
    assert note.startswith("Parts at 'soft (input)'")
    assert "left out: the data changed between the two passes: the class means moved by" in note
    assert [part.module for part in record.parts if part.module] == ["one", "act", "side"]


def test_a_part_with_infinite_features_is_left_out_alone(data) -> None:
    def masked(x, call):
        return x.masked_fill(torch.arange(D) > 5, -torch.inf)

    record = ll.probe(side(masked), data, parts=True, uncertainty=False, progress=False)
    assert "Parts at 'soft (input)' are left out: NaN or infinity in its features." in record.notes
    assert [part.module for part in record.parts if part.module] == ["one", "act", "side"]
    everywhere = side(lambda x, call: x / 0)
    everywhere.one.weight.data[:] = torch.nan
    with pytest.raises(FeatureError, match="expected finite features"):
        ll.probe(everywhere, data, parts=True, uncertainty=False, progress=False)


class Excited(nn.Module):
    """Squeeze-and-excitation without a skip connection; one of the four units inside is nearly dead, as after training."""

    def __init__(self, dead: float) -> None:
        super().__init__()
        self.stem, self.act = nn.Linear(D, 16), nn.ReLU()
        self.fc1, self.fc2, self.gate = nn.Linear(16, 4), nn.Linear(4, 16), nn.Sigmoid()
        self.fc = nn.Linear(16, 10)
        with torch.no_grad():
            self.fc2.weight[:, 0] *= dead

    def forward(self, x):
        x = self.act(self.stem(x))
        return self.fc(x * self.gate(self.fc2(self.fc1(x))))


@pytest.mark.parametrize("dead", [1.0, 1e-4, 1e-5, 1e-6])
def test_rounding_behind_a_narrow_gate_is_no_change_of_the_data(dead: float) -> None:
    torch.manual_seed(0)
    y = torch.arange(500) % 10
    x = torch.randn(10, D)[y] + torch.randn(500, D)
    net = Excited(dead)
    record = ll.probe(net, (x, y), parts=True, progress=False)
    assert not [note for note in record.notes if note.startswith("Parts at")]
    assert [part.module for part in record.parts if part.branch and part.module] == ["fc1", "fc2", "gate"]
    exact = ll.probe(net.double(), (x.double(), y), parts=True, progress=False)
    for a, b in zip(record.parts, exact.parts, strict=True):
        if not a.branch:
            assert a.values["separation"] == pytest.approx(b.values["separation"], rel=1e-4)


def test_the_parts_of_the_trunk_add_up_whatever_happens_in_gates() -> None:
    torch.manual_seed(0)
    y = torch.arange(300) % 10
    x = torch.randn(10, D)[y] + torch.randn(300, D)
    record = ll.probe(Excited(1.0), (x, y), parts=True, uncertainty=False, progress=False)
    values = record.column("separation")
    assert set(layer_changes(record)["stem"]) == {"map", "nonlinearity"}
    total = sum(one.total for one in part_sums(record))
    assert total == pytest.approx(math.log(values[-1] / values[0]), abs=1e-5)
    assert {one.kind for one in part_sums(record, branch=True)} == {"map", "nonlinearity", "other"}
    said = next(line for line in judge(record).findings if line.startswith("Along the trunk ln D changes by"))
    assert "inside side branches not counted)" in said
    assert "in side branches where they rejoin (residual blocks, gates)" in said


@pytest.mark.parametrize(
    ("changes", "end"),
    [
        ({"map": 2.9, "nonlinearity": -1.0}, ": +1.90 in all, so D does not fall."),
        ({"map": 1.0, "nonlinearity": -1.01}, ": −0.01 in all, so D hardly changes."),
        ({"nonlinearity": 0.4}, ": D does not fall."),
        ({"map": 2.9, "nonlinearity": -3.5}, ": the nonlinearities do all of it."),
        ({"branches": -3.5, "nonlinearity": -1.0}, ": the side branches do most of it."),
    ],
)
def test_who_does_the_work_is_said_only_where_d_falls(record, changes: dict, end: str) -> None:
    record = ll.Record.from_dict(record.to_dict())
    record.parts = [
        PartRow("a", kind, "m", "M", {"separation": 1.0}, {"separation": math.exp(change)})
        for kind, change in changes.items()
    ]
    said = next(line for line in judge(record).findings if line.startswith("Over 1 layer ln D changes by"))
    assert said.endswith(end)
    assert ("do all of it" in said or "do most of it" in said) == (sum(changes.values()) < -0.05)


def test_the_page_keeps_what_is_inside_side_branches_apart(tmp_path) -> None:
    pytest.importorskip("plotly")
    torch.manual_seed(0)
    y = torch.arange(300) % 10
    x = torch.randn(10, D)[y] + torch.randn(300, D)
    record = ll.probe(Excited(1.0), (x, y), parts=True, uncertainty=False, progress=False)
    page = ll.report(record, tmp_path / "page.html").read_text(encoding="utf-8")
    assert '<th scope="row" class="site">linear map, inside side branches</th>' in page
    assert '<th scope="row" class="site">side branches</th>' in page
    assert "The chart is of the trunk, which all data pass" in page
