"""Two processes under torchrun give the record of one."""

import os
import pickle
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from probe_on_ranks import (
    IMAGES,
    LABELS,
    TARGETS,
    batches,
    cases,
    dealt,
    pictured,
    probed,
    sharded,
    some_classes,
    synchronized,
)

import layerlaw as ll
from layerlaw.capture import batches as capture_batches
from layerlaw.capture.batches import Batch, Batches
from layerlaw.capture.fingerprint import Fingerprint
from layerlaw.probing import shards

HERE = Path(__file__).parent
SCRIPT = HERE / "probe_on_ranks.py"
pytestmark = pytest.mark.filterwarnings("ignore:.*forwards over the data")


def free_port() -> int:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return int(s.getsockname()[1])


def on_two_ranks(script: Path, folder: Path, *, codes: tuple[int, int] = (0, 0)) -> Path:
    """Run a script as two processes, `script RANK PORT FOLDER`, that are to end with these codes; gives the folder."""
    environment, port = {**os.environ, "OMP_NUM_THREADS": "1"}, str(free_port())
    pipes: Any = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True, "env": environment}
    ranks = [subprocess.Popen([sys.executable, str(script), str(r), port, str(folder)], **pipes) for r in range(2)]
    try:
        said = [process.communicate(timeout=120)[0] for process in ranks]
    finally:
        for process in ranks:
            process.kill()
            process.wait()
    assert tuple(process.returncode for process in ranks) == codes, "\n".join(said)
    return folder


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("ranks")
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc_per_node=2", f"--master_port={free_port()}"]
    environment = {
        **os.environ,
        "OMP_NUM_THREADS": "1",
        "PYTHONPATH": f"{HERE.parent}:{os.environ.get('PYTHONPATH', '')}",
    }
    done = subprocess.run(
        [*command, str(SCRIPT), str(folder)], env=environment, capture_output=True, text=True, timeout=240
    )
    assert done.returncode == 0, done.stderr[-4000:]
    return folder


@pytest.fixture(scope="module")
def alone() -> dict[str, ll.Record]:
    return probed(0, 1)


def records(folder: Path, name: str) -> list[ll.Record]:
    return [ll.Record.load(folder / f"{name} {rank}.json") for rank in range(2)]


def assert_same(a: ll.Record, b: ll.Record, rel: float) -> None:
    left, right = a.to_pandas(), b.to_pandas()
    assert left["site"].tolist() == right["site"].tolist()
    assert list(left.columns) == list(right.columns)
    for column in left.columns[5:]:
        np.testing.assert_allclose(left[column], right[column], rtol=rel, atol=1e-12, err_msg=column)
    for part, other in zip(a.parts, b.parts, strict=True):
        assert (part.layer, part.kind, part.module) == (other.layer, other.kind, other.module)
        np.testing.assert_allclose(list(part.values.values()), list(other.values.values()), rtol=rel)
    for mine, theirs in zip(a.sites, b.sites, strict=True):
        for key in mine.by_class:
            np.testing.assert_allclose(mine.by_class[key], theirs.by_class[key], rtol=rel, atol=1e-12)
    for field in ("counts", "test_counts", "accuracy", "test_accuracy", "classes"):
        assert getattr(a, field) == getattr(b, field), field


@pytest.mark.parametrize("name", [name for name in cases() if name not in ("with extras", *TARGETS)])
def test_two_processes_give_the_record_of_one(name: str, folder: Path, alone: dict[str, ll.Record]) -> None:
    for record in records(folder, name):
        assert_same(record, alone[name], 1e-9 if name in ("float64", "in slices") else 2e-5)
        np.testing.assert_allclose(record.column("separation"), alone[name].column("separation"), rtol=1e-6)
        assert record.provenance["processes"] == 2
    first, second = records(folder, name)
    assert [site.values for site in first.sites] == [site.values for site in second.sites]
    assert first.provenance["data_fingerprint"] == second.provenance["data_fingerprint"]


def test_two_processes_say_why_there_is_no_linear_map_as_one_does(folder: Path, alone: dict[str, ll.Record]) -> None:
    said = [note for note in alone["linear, few samples"].notes if note.startswith("No least D of a linear map")]
    assert "needs at least d + K samples, there are 120" in said[0]
    for record in records(folder, "linear, few samples"):
        assert [note for note in record.notes if note.startswith("No least D of a linear map")] == said


def test_two_processes_say_that_batch_statistics_are_those_of_their_own_batches(
    folder: Path, alone: dict[str, ll.Record]
) -> None:
    words = "BatchNorm used the statistics of the batches of each of 2 ranks"
    assert all(any(words in note for note in record.notes) for record in records(folder, "train mode"))
    assert not any(words in note for record in (alone["train mode"], *records(folder, "null")) for note in record.notes)


def test_the_fingerprint_of_the_data_is_that_of_the_shards_one_after_the_other(folder: Path) -> None:
    whole = Fingerprint()
    for rank in range(2):
        for x, y in batches(rank, 2):
            whole.update(y, x)
    assert records(folder, "float32")[0].provenance["data_fingerprint"] == whole.text()


@pytest.mark.parametrize("name", list(TARGETS))
def test_two_processes_give_the_targets_of_one(name: str, folder: Path, alone: dict[str, ll.Record]) -> None:
    """What is held out is dealt rank by rank; all else is equal."""
    columns = [column for column in alone[name].columns if "held_out" not in column and "log_se" not in column]
    assert {"target_separation", "residual", "test_target_separation", "test_residual"} <= set(columns)
    for record in records(folder, name):
        for column in columns:
            left, right = (np.array(one.column(column), dtype=float) for one in (record, alone[name]))
            np.testing.assert_allclose(left, right, rtol=1e-5, atol=1e-12, err_msg=column)
        assert record.accuracy == pytest.approx(alone[name].accuracy)
        assert record.counts == alone[name].counts == [120]
        ratio = np.array(record.column("residual_held_out"), float) / np.array(
            alone[name].column("residual_held_out"), float
        )
        assert np.nanmax(np.abs(np.log(ratio))) < 1
    first, second = records(folder, name)
    assert [site.values for site in first.sites] == [site.values for site in second.sites]


def test_standard_errors_and_permuted_labels_of_two_processes_are_those_of_one(folder: Path) -> None:
    """Also where each of them has the samples of one class alone, among which permuted labels would change nothing."""
    one = dealt()
    for name in ("kept", "numbers", "all on one rank"):
        for record in records(folder, f"dealt, {name}"):
            assert_same(record, one[name], 1e-9)
    # Shares without places, and labels that are not known beforehand: dealt otherwise.
    for name in ("tensors", "streamed", "in groups"):
        for record in records(folder, f"dealt, {name}"):
            assert record.settings["jackknife_groups"] == 10
            for column in ("separation_log_se", "separation_permuted"):
                ratio = np.array(record.column(column)) / np.array(one[name].column(column))
                assert (ratio > 0.3).all(), (name, column)
                assert (ratio < 3).all(), (name, column)
            assert (np.array(record.column("separation_permuted")) > 2 * np.array(record.column("separation"))).all()
    assert not one["streamed"].settings["one_forward"]
    assert one["kept"].settings["one_forward"]


def test_a_note_says_where_standard_errors_depend_on_the_number_of_ranks(folder: Path) -> None:
    for name, one in dealt().items():
        streamed = name in ("streamed", "in groups")
        assert any("in slices" in note for note in one.notes) == (name == "streamed")
        for record in records(folder, f"dealt, {name}"):
            told = [note for note in record.notes if note.startswith("Groups of standard errors: each of the 2 ranks")]
            assert len(told) == streamed, name
            assert len(record.notes) == len(one.notes) + streamed
    for record in records(folder, "streamed in groups"):  # without standard errors
        assert not any("Groups of standard errors" in note for note in record.notes)


def test_pictures_show_the_samples_of_all_ranks_that_one_process_would_show(folder: Path) -> None:
    for name, one in pictured().items():
        assert len(set(one.plane_labels)) >= 3
        for record in records(folder, f"pictured, {name}"):
            assert (record.plane_labels, record.words) == (one.plane_labels, one.words), name
            assert [len(site.plane) for site in record.sites] == [len(site.plane) for site in one.sites]
            for site, other in zip(record.sites, one.sites, strict=True):
                size = np.abs(other.plane).max()
                np.testing.assert_allclose(site.plane, other.plane, atol=2e-3 * size, err_msg=f"{name}, {site.name}")
            assert record.collapse_view.keys() == one.collapse_view.keys()
            for key, value in one.collapse_view.items():
                np.testing.assert_allclose(record.collapse_view[key], value, atol=1e-3, err_msg=f"{name}, {key}")
        if name == "wide":
            assert len(one.sites[0].plane) < len(one.sites[1].plane) == len(one.plane_labels)


def test_some_classes_of_two_processes_give_the_record_of_one(folder: Path) -> None:
    """Samples of other classes stand between those that are measured, so that these come to no rank one after the other."""
    for name, one in some_classes().items():
        assert one.settings["classes"] == [0, 3, 4]
        assert len(set(one.counts)) == 3
        assert any("in slices" in note for note in one.notes) == (name == "in slices")
        for record in records(folder, f"some classes, {name}"):
            assert_same(record, one, 1e-9)
            assert record.settings["jackknife_groups"] == one.settings["jackknife_groups"]
            assert record.plane_labels == one.plane_labels, name
            for site, other in zip(record.sites, one.sites, strict=True):
                np.testing.assert_allclose(site.plane, other.plane, atol=2e-3 * np.abs(other.plane).max())


def test_ranks_normalize_their_own_batches_also_with_synchronized_batchnorm(folder: Path) -> None:
    """However many batches each of them has; one process with the same batches and BatchNorm has the same record."""
    for name, one in synchronized().items():
        for record in records(folder, f"synchronized, {name}"):
            assert_same(record, one, 1e-9)


def test_a_distributed_sampler_and_a_distributed_model_give_the_record_of_one(folder: Path, alone: dict) -> None:
    for record in records(folder, "distributed sampler"):
        np.testing.assert_allclose(record.column("separation"), alone["float32"].column("separation")[:-1], rtol=1e-6)
        assert record.counts == alone["float32"].counts


def test_a_sharded_model_gives_the_numbers_of_a_whole_one(folder: Path) -> None:
    whole = sharded()
    assert [site.name for site in whole.sites] == ["input", "1", "2", "3"]
    assert whole.sites[-1].values["nc3"] is not None
    for record in records(folder, "sharded"):
        assert_same(record, whole, 1e-5)
        assert record.name == record.provenance["model"] == whole.name == "Sequential"
        assert [site.type for site in record.sites] == [site.type for site in whole.sites]


def test_a_rank_may_lack_a_class_but_not_all_ranks(folder: Path) -> None:
    counts = torch.bincount(LABELS).tolist()
    expected = [counts[0], counts[1], 2 * counts[2]]
    for rank in range(2):
        assert (folder / f"lacking {rank}.txt").read_text() == str(expected)
        assert "expected samples of all 3 classes, got none of class 2" in (folder / f"empty {rank}.txt").read_text()


def test_a_probe_takes_few_collective_calls_of_which_each_costs_a_millisecond_of_the_processor(folder: Path) -> None:
    assert [(folder / f"calls {rank}.txt").read_text() for rank in range(2)] == ["17", "17"]


@pytest.mark.parametrize(("here", "there", "messages"), [(8, 9, 1), (8, 2, 2), (0, 9, 2)])
def test_samples_are_sent_to_other_ranks_only_where_one_has_too_few(
    monkeypatch: pytest.MonkeyPatch, here: int, there: int, messages: int
) -> None:
    data = Batches([(IMAGES[:here], LABELS[:here])][:here], batch_size=None, batchnorm="running", where="data")
    other, sent = Batch((IMAGES[60:63],), {}, LABELS[60:63]), []

    def gathered(mine: Any) -> list[Any]:
        sent.append(mine)
        return [mine, there if isinstance(mine, int) else other]

    monkeypatch.setattr(capture_batches, "world_size", lambda: 2)
    for name, value in (("world_size", lambda: 2), ("rank", lambda: 0), ("gathered", gathered)):
        monkeypatch.setattr(shards, name, value)
    first = shards.first_batch(data)
    assert len(sent) == messages
    assert data.spare is not None
    expected = IMAGES[:3] if here else IMAGES[60:63]
    assert torch.equal(data.spare.args[0], expected)
    assert len(first.labels) == (here or 3)
    if sent[-1] is data.spare:  # of a batch that is a view of all samples, these alone
        assert len(pickle.dumps(sent[-1])) < 2 * expected.nbytes


def test_the_data_are_split_between_the_ranks() -> None:
    from probe_on_ranks import batches

    shards = [torch.cat([x for x, _ in batches(rank, 2)]) for rank in range(2)]
    assert [len(s) for s in shards] == [60, 60]
    assert not torch.equal(shards[0], shards[1])
    assert len(IMAGES) == 120
