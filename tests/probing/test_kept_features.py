"""The features that are kept for the second pass: side by side where they are alike, in the order of the forward."""

import pytest
import torch

import layerlaw as ll
from layerlaw.capture.plan import Site
from layerlaw.measures import site as site_statistics
from layerlaw.probing import memory, run, waiting
from layerlaw.probing.memory import KeptFeatures
from layerlaw.stats.passes import Dealt, FirstPass
from layerlaw.stats.plane import PlaneSample

WIDTHS = {"input": 3, "first": 5, "second": 3, "third": 5}


def features(n: int, start: int = 0) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(start)
    return {name: torch.randn(n, width, generator=generator) for name, width in WIDTHS.items()}


def kept(samples: int | None) -> tuple[KeptFeatures, torch.Tensor]:
    sites = [Site(name, "", "input", 0, "", 0, 1, True, (width,), width) for name, width in WIDTHS.items()]
    found = KeptFeatures(sites, 2**20, samples)
    for start in (0, 7):
        for site, rows in zip(sites, features(7, start).values(), strict=True):
            found.add(site, rows)
        found.close(torch.arange(7) % 2, None, f"batch {start}")
    return found, torch.arange(14) % 7 % 2


def test_sites_of_one_width_lie_side_by_side() -> None:
    together = {tuple(names): rows.shape for names, rows in kept(14)[0].together()}
    assert together == {("input", "second"): (2, 14, 3), ("first", "third"): (2, 14, 5)}


def test_features_come_back_as_they_were_also_where_their_number_was_unknown() -> None:
    for samples in (14, None, 5):
        found = dict(kept(samples)[0].features())
        assert list(found) == list(WIDTHS)
        for name, rows in found.items():
            assert torch.equal(rows, torch.cat([features(7, 0)[name], features(7, 7)[name]])), (samples, name)
        some = dict(kept(samples)[0].features(slice(2, 9)))
        assert all(torch.equal(some[name], rows[2:9]) for name, rows in found.items())


def test_a_pass_gets_them_in_the_order_of_the_forward_as_from_a_stream() -> None:
    """Ranks add up site by site, and one of them may keep its features where another does not."""
    for samples in (14, None):
        whole, y = kept(samples)
        first = FirstPass(2)
        first.begin(Dealt(y))
        whole.hand_over(first)
        first.end(str)
        stream = FirstPass(2)
        for start in (0, 7):
            stream.begin(Dealt(torch.arange(7) % 2))
            for name, rows in features(7, start).items():
                stream.update(name, rows)
            stream.end(str)
        assert list(first.sums) == list(stream.sums) == list(WIDTHS)
        for name, sums in first.sums.items():
            torch.testing.assert_close(sums.sums, stream.sums[name].sums, rtol=1e-6, atol=1e-6)
            assert torch.equal(sums.counts, stream.sums[name].counts)


def test_blocks_of_rows_take_what_the_kept_features_leave_of_the_budget(monkeypatch: pytest.MonkeyPatch) -> None:
    found, _ = kept(14)
    found.rows = 5000  # as if there were so many
    each, row = 32 * 10 * len(WIDTHS), 4 * sum(WIDTHS.values())
    assert found.widest == max(WIDTHS.values())
    for least, most, expected in (
        (each * 300, each * 300, 300),
        (each * 300, 2**40, (2**20 - 5000 * row) // each),
        (each * 700, 2**40, 700),
        (0, 0, 256),
    ):
        monkeypatch.setitem(memory.BLOCK_BYTES, "cpu", (least, most))
        blocks = list(found.blocks(32 * 10 * found.sites))
        assert blocks[0] == slice(0, max(256, expected))
        assert blocks[-1].stop == 5000
        assert [block.start for block in blocks[1:]] == [block.stop for block in blocks[:-1]]


def test_cleared_features_leave_their_memory_to_the_next_ones() -> None:
    found, _ = kept(14)
    before = {names[0]: rows.data_ptr() for names, rows in found.together()}
    found.clear()
    assert found.rows == 0
    sites = [Site(name, "", "input", 0, "", 0, 1, True, (width,), width) for name, width in WIDTHS.items()]
    for site, rows in zip(sites, features(9, 3).values(), strict=True):
        found.add(site, rows)
    found.close(torch.zeros(9), None, "later")
    assert {names[0]: rows.data_ptr() for names, rows in found.together()} == before
    assert all(torch.equal(rows, features(9, 3)[name]) for name, rows in found.features())
    assert len(found.labels) == 9


def test_what_is_worked_out_while_a_gpu_is_busy_is_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a CPU nothing is: there it only comes before pass 2 is looked at."""
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(6, 9), torch.nn.ReLU(), torch.nn.Linear(9, 9), torch.nn.Linear(9, 3))
    y = torch.arange(90) % 3
    given = torch.randn(90, 6) + y.unsqueeze(1), y
    expected = ll.probe(model, given, batch_size=40, progress=False)
    monkeypatch.setattr(waiting, "BESIDE", {"cpu"})
    monkeypatch.setattr(site_statistics, "APART", {"cpu"})
    asked = []
    about = run.about_model
    monkeypatch.setattr(run, "about_model", lambda network: asked.append(1) or about(network))
    found = ll.probe(model, given, batch_size=40, progress=False)
    assert asked == [1]
    ll.probe(model, given, test=given, null=True, batch_size=40, progress=False)
    assert asked == [1, 1]  # not again for test data and the untrained network
    for a, b in zip(found.sites, expected.sites, strict=True):
        assert (a.values, a.by_class, a.plane) == (b.values, b.by_class, b.plane)
    apart = ("created", "seconds")
    assert {k: v for k, v in found.provenance.items() if k not in apart} == {
        k: v for k, v in expected.provenance.items() if k not in apart
    }
    assert (found.accuracy, found.notes, found.plane_labels) == (
        expected.accuracy,
        expected.notes,
        expected.plane_labels,
    )


@pytest.mark.parametrize("how", [{}, {"classes": [0, 2, 3]}, {"batchnorm": "batch"}], ids=str)
def test_labels_that_are_known_beforehand_are_those_of_the_kept_samples_in_their_order(
    monkeypatch: pytest.MonkeyPatch, how: dict[str, object]
) -> None:
    """So that those on a device are not waited for; with batch statistics, data sorted by class are mixed."""
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(6, 9), torch.nn.BatchNorm1d(9), torch.nn.ReLU(), torch.nn.Linear(9, 4))
    y = torch.arange(240) // 60
    seen: list[torch.Tensor] = []
    kept_ones: list[torch.Tensor] = []
    begin, close = PlaneSample.begin, KeptFeatures.close
    monkeypatch.setattr(PlaneSample, "begin", lambda self, y, *a: seen.append(y) or begin(self, y, *a))
    monkeypatch.setattr(KeptFeatures, "close", lambda self, y, *a: kept_ones.append(y) or close(self, y, *a))
    ll.probe(model, (torch.randn(240, 6) + y.unsqueeze(1), y), batch_size=40, progress=False, **how)
    assert len(seen) == 1
    assert torch.equal(seen[0], torch.cat(kept_ones))
    assert (seen[0].tolist() == sorted(seen[0].tolist())) is ("batchnorm" not in how)
