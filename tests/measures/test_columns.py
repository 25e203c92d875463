"""The numbers of a site as columns of a record."""

import importlib.util
import math
from pathlib import Path

import pytest
import torch

import layerlaw as ll
import oracle
from layerlaw.measures import measure, site, unread, variability
from layerlaw.measures.columns import Column, describe, registered
from layerlaw.measures.site import number
from layerlaw.measures.unread import all_columns, site_columns
from layerlaw.pages import table
from layerlaw.stats import ClassSums, Frame, Scatter, find_centers, project
from layerlaw.stats.around import Around
from layerlaw.stats.passes import Dealt, FirstPass, SecondPass


def at_one_site(x: torch.Tensor, y: torch.Tensor, K: int, decision: torch.Tensor | None = None):
    centers = find_centers(ClassSums.of(x, y, K))
    scatter = Scatter.of(*project(x, y, Frame.of(centers)), y, centers, decision)
    return Around(centers), scatter


def test_columns_say_what_measure_says() -> None:
    x, y = oracle.blobs([30, 20, 10], 7)
    decision = torch.flip(y, [0])
    columns, by_class = site_columns(*at_one_site(x, y, 3, decision))
    expected = measure(x, y, decision=decision)
    for name, value in expected.items():
        if name == "separation_classes":
            assert by_class["separation"] == pytest.approx(value.tolist())
        else:
            assert columns[name] == pytest.approx(float(value)), name
    assert len(by_class["ncc_accuracy"]) == 3


def test_without_decisions_there_is_no_mismatch() -> None:
    x, y = oracle.blobs([30, 20, 10], 7)
    assert site_columns(*at_one_site(x, y, 3))[0]["ncc_mismatch"] is None


def test_where_all_means_coincide_there_is_no_separation() -> None:
    x, y = torch.ones(30, 4), torch.arange(30) % 3
    columns, by_class = site_columns(*at_one_site(x, y, 3))
    assert columns["separation"] is None
    assert columns["nc1"] is None
    assert columns["full_rank"] == 0.0
    assert by_class["separation"] == [None] * 3
    assert all(v is None or math.isfinite(v) for v in columns.values())


def test_classifier_columns_agree_with_the_oracle() -> None:
    x, y = oracle.blobs([30, 20, 10], 7)
    weight = torch.randn(3, 7, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    decision = torch.where(torch.arange(60) % 4 == 0, (y + 1) % 3, y)
    columns, _ = site_columns(*at_one_site(x, y, 3, decision), weight=weight)
    norms, angles, _ = oracle.norms_and_angles(weight.numpy())
    assert columns["nc2_norms_classifier"] == pytest.approx(norms)
    assert columns["nc2_angles_classifier"] == pytest.approx(angles)
    assert columns["nc3"] == pytest.approx(oracle.self_duality(x, y, 3, weight))
    assert columns["nc4"] == columns["ncc_mismatch"] == measure(x, y, decision=decision)["ncc_mismatch"]


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_what_is_not_finite_is_no_number(value: float) -> None:
    assert number(torch.tensor(value)) is None
    assert number(torch.tensor(2.5)) == 2.5


SCRIPT = Path(__file__).resolve().parents[2] / "scripts" / "measures_table.py"


def measures_table():
    spec = importlib.util.spec_from_file_location("measures_table", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_table_in_the_docs_is_the_registry() -> None:
    script = measures_table()
    text = script.PAGE.read_text(encoding="utf-8")
    assert script.page(text) == text, "run python scripts/measures_table.py"


def test_a_new_measure_is_its_function_and_its_row(tmp_path: Path) -> None:
    """Registered, it is measured, recorded, listed, drawn, fitted and documented; unregistered, it is gone."""
    pytest.importorskip("plotly")
    pytest.importorskip("rich")
    x, y = oracle.blobs([30, 30, 30], 7)
    spread = Column(
        "largest_spread", "largest spread of a class", "variance of the widest class", "max_k Var_k", "0", "lower",
        head="widest", yields=9, test_yields=9, panel="collapse", compute=lambda s: s.variances.amax(-1),
        by_class=lambda s: s.variances,
    )  # fmt: skip
    net = torch.nn.Sequential(torch.nn.Linear(7, 6), torch.nn.ReLU(), torch.nn.Linear(6, 5), torch.nn.Linear(5, 3))
    with registered(spread):
        expected = max(float(x[y == k].var(0, correction=0).sum()) for k in range(3))
        assert float(ll.measure(x, y)["largest_spread"]) == pytest.approx(expected)
        record = ll.probe(net, (x.float(), y), test=(x.float(), y), progress=False)
        assert record.column("largest_spread")[0] == pytest.approx(expected, rel=1e-6)
        assert len(record.sites[0].by_class["test_largest_spread"]) == 3
        assert record.law("test_largest_spread").quantity == "test_largest_spread"
        assert "largest_spread" in str(record)
        assert ">test_largest_spread</th>" in record._repr_html_()
        columns = [str(column.header) for column in table(record, width=200).columns]
        assert {"widest", "test widest"} <= set(columns)
        page = ll.report(record, tmp_path / "page.html").read_text(encoding="utf-8")
        assert '<th scope="col" title="variance of the widest class; lower is better">widest</th>' in page
        assert "largest spread of a class" in page  # in the chart of measures that are 0 at collapse
        assert record.plot("test_largest_spread").axes[0].get_ylabel() == "largest spread of a class (test)"
        assert "| `largest_spread` | variance of the widest class |" in measures_table().table()
    assert "largest_spread" not in ll.measure(x, y)
    assert "largest_spread" not in ll.probe(net, (x.float(), y), progress=False).columns


@pytest.mark.parametrize(
    ("name", "label", "law", "quantity", "log"),
    [
        ("separation", "separation fuzziness D", True, "D", True),
        ("test_separation", "separation fuzziness D (test)", True, "D", True),
        ("separation_untrained", "separation fuzziness D (untrained)", True, "separation_untrained", True),
        ("test_ncc_accuracy", "nearest-class-center accuracy (test)", False, "test_ncc_accuracy", False),
        ("residual", "prediction residual", True, "PR", True),
        ("residual_onehot_held_out", "prediction residual (onehot, held out)", True, "PR", True),
        ("residual_held_out_untrained", "prediction residual (held out, untrained)", True, "PR", True),
        ("residual_held_out_log_se", "standard error of the log of residual_held_out", False, "PR", False),
        ("something_else", "something_else", True, "something_else", True),
    ],
)
def test_names_made_from_others_are_known(name: str, label: str, law: bool, quantity: str, log: bool) -> None:
    column = describe(name)
    assert (column.name, column.label, column.law, column.quantity, column.log) == (name, label, law, quantity, log)


def test_columns_of_many_sites_are_those_of_each_alone() -> None:
    """Also where one of them is dead, and where one is read by the classifier."""
    x, y = oracle.blobs([30, 20, 10], 7)
    weight = torch.randn(3, 7, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    first = FirstPass(3)
    first.begin(Dealt(y))
    sites = {"one": x, "dead": torch.ones_like(x), "two": x.tanh(), "narrow": x[:, :1]}
    for name, features in sites.items():
        first.update(name, features)
    first.end(lambda _: "")
    around = Around.all_of(first, "samples")
    assert around["one"].alike is around["two"].alike
    second = SecondPass(around)
    second.begin(Dealt(y), y.flip(0))
    for name, features in sites.items():
        second.update(name, features)
    second.end()
    known = [(around[name], scatter, None) for name, scatter in second.scatters().items()]
    together = all_columns(known, {2: weight})
    for (name, features), (values, by_class), place in zip(sites.items(), together, range(4), strict=True):
        rows = weight if place == 2 else None
        alone, classes_alone = site_columns(*at_one_site(features, y, 3, y.flip(0)), weight=rows)
        assert values.keys() == alone.keys()
        assert by_class.keys() == classes_alone.keys()
        found = [*values.values(), *(number for each in by_class.values() for number in each)]
        expected = [*alone.values(), *(number for each in classes_alone.values() for number in each)]
        assert [number is None for number in found] == [number is None for number in expected], name
        plain = [[number or 0.0 for number in numbers] for numbers in (found, expected)]
        assert plain[0] == pytest.approx(plain[1], rel=1e-9, abs=1e-12), name
    assert together[1][0]["separation"] is None
    assert "nc3" in together[2][0]
    assert "nc3" not in together[0][0]


def test_sites_of_all_widths_are_brought_to_the_cpu_as_one(monkeypatch) -> None:
    x, y = oracle.blobs([40, 30, 20], 7)
    layers = [torch.nn.Linear(7, 9), torch.nn.ReLU(), torch.nn.Linear(9, 5), torch.nn.ReLU(), torch.nn.Linear(5, 3)]
    model, how = torch.nn.Sequential(*layers).double().eval(), {"uncertainty": False, "progress": False}
    plain = ll.probe(model, (x, y), **how)
    together, computed = [], unread._computed

    def counted(site, *how):
        together.append(len(site.centers.rank))
        return computed(site, *how)

    monkeypatch.setattr(site, "APART", {"cpu"})
    monkeypatch.setattr(unread, "_computed", counted)
    found = ll.probe(model, (x, y), **how)
    assert max(together) >= 3  # the sites of 7, 9 and 5 features; what reads a classifier has its rows, and is apart
    for row, expected in zip(found.sites, plain.sites, strict=True):
        assert list(row.values) == list(expected.values)
        for a, b in zip(row.values.values(), expected.values.values(), strict=True):
            assert a == b or a == pytest.approx(b, rel=1e-12, abs=1e-14)
        assert row.by_class.keys() == expected.by_class.keys()
        for name, each in expected.by_class.items():
            assert row.by_class[name] == pytest.approx(each, rel=1e-12, abs=1e-14)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_what_is_brought_to_the_cpu_gives_the_same_numbers(monkeypatch, dtype) -> None:
    x, y = oracle.blobs([40, 30, 20], 7)
    model = torch.nn.Sequential(torch.nn.Linear(7, 9), torch.nn.ReLU(), torch.nn.Linear(9, 3)).to(dtype).eval()
    given = (x.to(dtype), y), {"uncertainty": True, "progress": False}
    plain = ll.probe(model, given[0], **given[1])
    brought = []
    at_hand = variability.span_at_hand
    monkeypatch.setattr(site, "APART", {"cpu"})
    for where in (site, variability):
        monkeypatch.setattr(where, "span_at_hand", lambda *given: brought.append(1) or at_hand(*given))
    found = ll.probe(model, given[0], **given[1])
    assert [row.values for row in found.sites] == [row.values for row in plain.sites]
    assert [row.by_class for row in found.sites] == [row.by_class for row in plain.sites]
    assert len(brought) >= 3  # centers, and those of the views
    assert {"separation_log_se", "separation_permuted", "discrimination"} <= set(found.sites[-2].values)
    brought.clear()
    with registered(Column("widest_mean", "widest mean", compute=lambda s: s.centers.means.abs().amax((-2, -1)))):
        own = ll.probe(model, given[0], **given[1])
    assert own.sites[0].values["widest_mean"] > 0  # a measure of one's own finds the class means where they are
    assert not brought
