"""Two processes that do not agree: in their buffers, weights, data, numbers of batches, or in coming at all."""

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from ranks_apart import EXACT, INPUTS, KEPT, LABELS, PARALLEL_SITES, QUIET, UNEVEN, network, plain, trained, uneven
from test_ranks import on_two_ranks
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

import layerlaw as ll
from layerlaw.data import UnpaddedSampler
from layerlaw.errors import DataError

SCRIPT = Path(__file__).with_name("ranks_apart.py")
COUNTS = torch.bincount(LABELS).tolist()
SOON = 12.0  # seconds, of a busy machine


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return on_two_ranks(SCRIPT, tmp_path_factory.mktemp("apart"))


def told(folder: Path, name: str) -> list[dict[str, Any]]:
    """What both ranks say of a case."""
    return [json.loads((folder / f"told {rank}.json").read_text())[name] for rank in range(2)]


def assert_measured_as(folder: Path, name: str, expected: ll.Record, ranks: tuple[int, ...] = (0, 1)) -> None:
    for rank in ranks:
        record = ll.Record.load(folder / f"{name} {rank}.json")
        assert record.columns == expected.columns
        assert record.counts == expected.counts
        assert record.accuracy == pytest.approx(expected.accuracy)
        for column in expected.columns:
            left, right = (np.array(one.column(column), dtype=float) for one in (record, expected))
            np.testing.assert_allclose(left, right, rtol=2e-5, atol=1e-10, err_msg=f"{name}, {column}")


def test_other_running_statistics_give_the_record_of_the_first_rank_and_stay_as_they_were(folder: Path) -> None:
    assert_measured_as(folder, "buffers", ll.probe(trained(0), (INPUTS, LABELS), **QUIET))
    for one in told(folder, "buffers"):
        assert one["restored"]
        assert one["notes"] == [
            "The running statistics of BatchNorm differ between the 2 ranks: those of rank 0 were used on all."
        ]


def test_running_statistics_that_are_not_used_need_no_word(folder: Path) -> None:
    for one in told(folder, "buffers of batches"):
        assert [note.split(":")[0] for note in one["notes"]] == [
            "BatchNorm used the statistics of the batches of each of 2 ranks"
        ]


@pytest.mark.parametrize("way", ["kept", "in slices"])
def test_a_layer_that_is_the_same_for_all_samples_has_no_nearest_center(folder: Path, way: str) -> None:
    for rank in range(2):
        record = ll.Record.load(folder / f"dead, {way} {rank}.json")
        assert any("in slices" in note for note in record.notes) == (way == "in slices")
        for site in record.sites:
            assert site.values["rank"] == 0
            assert site.values["ncc_accuracy"] == pytest.approx(1 / 3)
            assert site.values["test_ncc_accuracy"] == pytest.approx(1 / 3)


def test_samples_on_several_ranks_are_told_with_their_number(folder: Path) -> None:
    words = (
        "data: 10 samples are on several ranks, with the same inputs and labels. These are counted several times (if"
    )
    for rank, one in enumerate(told(folder, "overlapping")):
        assert sum(one["counts"]) == len(INPUTS) + 10
        assert [note for note in one["notes"] if note.startswith(words)]
        assert len(one["warned"]) == (rank == 0)
    for one in told(folder, "overlapping test data"):
        assert [note for note in one["notes"] if note.startswith("test: 10 samples are on several ranks")]


def test_equal_samples_of_the_data_are_no_overlap(folder: Path) -> None:
    """They are on one rank as often as on two; and dealt by their places they are on two by right."""
    for name in ("equal samples", "every sample twice"):
        for one in told(folder, name):
            assert one["error"] == ""
            assert [note for note in one["notes"] if "several ranks" in note] == one["warned"] == []


@pytest.mark.parametrize("name", ["unpadded", "dealt", "dealt arrays"])
def test_the_fingerprint_is_that_of_one_process_where_samples_are_dealt_by_their_places(
    folder: Path, name: str
) -> None:
    alone = ll.probe(network(), (INPUTS, LABELS), test=(INPUTS, LABELS), **QUIET).provenance
    for rank in range(2):
        found = ll.Record.load(folder / f"{name} {rank}.json").provenance
        assert found["data_fingerprint"] == alone["data_fingerprint"]
        assert found["data_samples"] == alone["data_samples"]
        assert found["test_samples"] in (alone["test_samples"], None)
    mine = ll.Record.load(folder / "a group of all 0.json").provenance  # dealt by hand
    assert mine["data_fingerprint"] != alone["data_fingerprint"]
    assert mine["data_samples"] == alone["data_samples"]


def test_another_weight_is_an_error_that_names_it(folder: Path) -> None:
    for one in told(folder, "weights"):
        assert one["error"] == "PassError"
        assert "expected the same weights on all 2 ranks, got different ones in '1.0.bias'" in one["words"]


def test_a_weight_that_differs_in_its_last_number_alone_is_an_error_also_among_thousands(folder: Path) -> None:
    for one in told(folder, "weights, at the end"):
        assert one["error"] == "PassError"
        assert "expected the same weights on all 2 ranks, got different ones in '2.large' (" in one["words"]


def test_a_padded_sampler_is_told_loudly(folder: Path) -> None:
    first, second = told(folder, "padded")
    words = "data: the loader's DistributedSampler repeats 1 of 61 samples (which count twice)"
    assert first["notes"][0].startswith(words)
    assert "layerlaw.data.UnpaddedSampler(dataset)" in first["notes"][0]
    assert [words in warning for warning in first["warned"]] == [True]
    assert first["at"] == [str(SCRIPT)]
    assert second["notes"] == first["notes"]
    assert second["warned"] == []  # the first speaks for all
    for one in told(folder, "padded, of other orders"):
        assert one["notes"][0].startswith(words)
        assert re.search(
            r"\. \d+ samples are on several ranks, with the same inputs and labels\. These are counted several times",
            one["notes"][0],
        )
    for one in told(folder, "left out"):
        assert "the loader's DistributedSampler leaves out 1 of 61 samples" in one["notes"][0]


def test_a_sampler_for_other_ranks_than_those_that_measure_is_told_where_probe_was_called(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    data = TensorDataset(INPUTS, LABELS)
    half = DataLoader(data, batch_size=8, sampler=DistributedSampler(data, num_replicas=2, rank=0))
    with pytest.warns(
        UserWarning, match="data: the loader's DistributedSampler deals to 2 ranks, but one process"
    ) as told:
        record = ll.probe(network(), half, **QUIET)
    assert [one.filename for one in told] == [__file__]
    assert record.notes[-1].endswith(
        "measures alone: some samples are not measured. Call torch.distributed.init_process_group first, and make the "
        "sampler after it."
    )
    alone = DataLoader(data, batch_size=8, sampler=UnpaddedSampler(data))
    assert ll.probe(network(), alone, **QUIET).notes == []
    monkeypatch.setenv("WORLD_SIZE", "2")  # as torchrun does
    with pytest.warns(UserWarning, match=r"so each of the 2 processes \(WORLD_SIZE\) measures all samples alone"):
        record = ll.probe(network(), (INPUTS, LABELS), test=alone, **QUIET)
    assert record.notes[-1].startswith("test: torch.distributed is not initialized")


def test_an_unpadded_sampler_counts_every_sample_once(folder: Path) -> None:
    assert_measured_as(folder, "unpadded", ll.probe(network(), (INPUTS, LABELS), test=(INPUTS, LABELS), **QUIET))
    assert [one["notes"] + one["warned"] for one in told(folder, "unpadded")] == [[], []]
    assert ll.Record.load(folder / "unpadded 0.json").settings["order"] == "as given"
    assert list(UnpaddedSampler(range(4))) == [0, 1, 2, 3]
    with pytest.raises(DataError, match="expected one of known length, got generator"):
        UnpaddedSampler(i for i in range(3))  # type: ignore[arg-type]


def test_data_that_all_have_whole_are_dealt_and_others_left_alone(folder: Path) -> None:
    for one in told(folder, "dealt"):
        assert all(one.values()), one


@pytest.mark.parametrize(
    ("name", "where"), [("the same", "data"), ("the same, mixed", "data"), ("the same test data", "test")]
)
def test_the_same_data_on_two_ranks_are_an_error(name: str, where: str, folder: Path) -> None:
    for one in told(folder, name):
        assert one["error"] == "DataError"
        assert one["words"].startswith(f"{where}: expected every sample on one rank, got the same 61 on ranks 0 and 1")
        assert "UnpaddedSampler" in one["words"]


def test_the_same_samples_with_random_augmentation_are_told_loudly(folder: Path) -> None:
    names = [name for name in told(folder, "augmented")[0] if ", whole, " in name]
    assert len(names) == 4
    for name in names:
        first, second = told(folder, name)
        assert first["error"] == ""
        (note,) = first["notes"]
        assert note.startswith("data: ranks 0 and 1 have the same "), name
        assert "random augmentation makes them: every sample may be counted twice. With layerlaw.data.Unpadd" in note
        assert [note in warning for warning in first["warned"]] == [True]
        assert (second["notes"], second["warned"]) == ([note], [])


def test_augmented_samples_of_its_own_on_every_rank_need_no_word(folder: Path) -> None:
    names = [name for name in told(folder, "augmented")[0] if ", own, " in name]
    assert len(names) == 9
    for name in names:
        assert [one["notes"] + one["warned"] for one in told(folder, name)] == [[], []], name


def test_a_process_group_measures_without_the_other_ranks(folder: Path) -> None:
    expected = ll.probe(network(), (INPUTS, LABELS), **QUIET)
    assert_measured_as(folder, "a group of all", expected)
    assert_measured_as(folder, "a group of one", expected, (0,))
    assert ll.Record.load(folder / "a group of one 0.json").provenance["processes"] == 1
    assert "got one that rank 1 is not in" in json.loads((folder / "told 1.json").read_text())["not a member"]["words"]
    for one in told(folder, "no group"):
        assert one["words"].startswith("ranks: expected a process group of torch.distributed")


def assert_twelve_digits(folder: Path, name: str, rtol: float = 1e-12) -> list[ll.Record]:
    one, two = found = [ll.Record.load(folder / f"{many}, {name} 0.json") for many in ("one", "two")]
    assert (one.columns, one.counts, one.accuracy) == (two.columns, two.counts, two.accuracy)
    for column in one.columns:
        left, right = (np.array(record.column(column), dtype=float) for record in (one, two))
        np.testing.assert_allclose(left, right, rtol=rtol, atol=1e-2 * rtol, err_msg=column)
    for mine, theirs in zip(one.sites, two.sites, strict=True):
        for column, values in mine.by_class.items():
            left, right = (np.array(part, dtype=float) for part in (values, theirs.by_class[column]))
            np.testing.assert_allclose(left, right, rtol=rtol, atol=1e-2 * rtol, err_msg=column)
    return found


@pytest.mark.parametrize("name", list(EXACT))
def test_the_same_batches_on_one_rank_or_two_give_the_same_record_to_twelve_digits(name: str, folder: Path) -> None:
    assert_twelve_digits(folder, name)


@pytest.mark.parametrize(("name", "seed", "uncertainty"), KEPT)
def test_float32_features_that_are_kept_give_it_too(name: str, seed: int, uncertainty: bool, folder: Path) -> None:
    # Products of other libraries than MKL may give a sample other last bits among other samples.
    rtol = 1e-12 if torch.backends.mkl.is_available() else 1e-6
    for record in assert_twelve_digits(folder, f"{name}, {seed}, {uncertainty}", rtol):
        assert record.settings["one_forward"]
        assert ("separation_log_se" in record.columns) == uncertainty
        assert ("separation_permuted" in record.columns) == uncertainty


def test_tensor_parallel_ranks_measure_by_the_group_of_their_data(folder: Path) -> None:
    expected = ll.probe(plain(), (INPUTS, LABELS), **QUIET, sites=PARALLEL_SITES)
    assert_measured_as(folder, "tensor parallel", expected)
    assert_measured_as(folder, "tensor parallel, every site", ll.probe(plain(), (INPUTS, LABELS), **QUIET))
    for one in told(folder, "tensor parallel, no group"):
        assert (one["error"], "Ranks that hold parts of one model pass `ranks`" in one["words"]) == ("DataError", True)


@pytest.mark.parametrize("site", ["0", "1"])
def test_a_part_of_the_features_on_each_of_the_tensor_parallel_ranks_is_an_error(folder: Path, site: str) -> None:
    """Between a column-wise and a row-wise layer; D of a half would look right."""
    for one in told(folder, f"tensor parallel, part at {site}"):
        assert one["error"] == "FeatureError"
        expected = f"site '{site}': expected all of them on each of ranks 0 and 1, which hold parts of one model"
        assert one["words"].startswith(expected)
        assert "Pass use_local_output=False to ColwiseParallel" in one["words"]
    for one in told(folder, "tensor parallel, part of the scores"):
        assert one["words"].startswith("the model's class scores: expected all of them on each of ranks 0 and 1")


def test_features_that_tensor_parallel_layers_leave_together_are_measured_whole(folder: Path) -> None:
    expected = ll.probe(plain(), (INPUTS, LABELS), **QUIET, sites=["0", "1", "4"])
    assert_measured_as(folder, "tensor parallel, gathered", expected)


@pytest.mark.parametrize("way", ["dealt to all", "in slices of other samples"])
def test_tensor_parallel_ranks_with_other_samples_are_told_the_group_of_their_data(folder: Path, way: str) -> None:
    expected = "data: expected the same samples on ranks 0 and 1, which hold parts of one model (tensor parallel)"
    for one in told(folder, f"tensor parallel, {way}"):
        assert one["error"] == "DataError"
        assert expected in one["words"]
        assert "say mesh['data'].get_group(), as `ranks` to probe and sampler." in one["words"]


@pytest.mark.parametrize("name", UNEVEN)
def test_sharded_ranks_with_unequal_batches_give_the_record_of_one(name: str, folder: Path) -> None:
    (first, how), (second, _) = uneven(name, 0), uneven(name, 1)
    assert len(first) != len(second)
    assert_measured_as(folder, f"uneven, {name}", ll.probe(network(), first + second, **how))
    kept = [ll.Record.load(folder / f"uneven, {name} {rank}.json").settings["one_forward"] for rank in range(2)]
    assert kept == {"kept": [True, True], "kept by one": [False, True], "skipped": [True, True]}.get(name, [False] * 2)


def test_data_that_fail_on_one_of_the_sharded_ranks_are_an_error_on_both(folder: Path) -> None:
    first, second = told(folder, "uneven, failing")
    assert (first["error"], second["error"]) == ("RankError", "DataError")
    assert "rank 1: DataError: data, batch 1: the data failed with ValueError" in first["words"]
    assert first["seconds"] < SOON
    assert [one["error"] for one in told(folder, "uneven, again")] == ["", ""]


def test_an_untrained_copy_of_a_sharded_network_is_a_clear_error(folder: Path) -> None:
    for one in told(folder, "null"):
        assert one["error"] == "InputError"
        assert one["words"].startswith(
            "null=True: expected a model that is whole on every rank, got one that is sharded"
        )


def test_a_rank_that_measures_alone_is_told_soon_and_all_may_measure_after_that(folder: Path) -> None:
    told_first = json.loads((folder / "told 0.json").read_text())
    for name in ("alone", "alone again"):
        assert told_first[name]["error"] == "RankError"
        assert (
            "rank 0: expected all 2 ranks to measure together, but rank 1 did not come within 2 s"
            in (told_first[name]["words"])
        )
        assert 2 <= told_first[name]["seconds"] < SOON
    assert_measured_as(folder, "after that", ll.probe(network(), (INPUTS, LABELS), **QUIET))
    for one in told(folder, "nonsense"):
        assert one["words"] == "LAYERLAW_RANK_TIMEOUT: expected a number of seconds, got 'soon'."


def test_paths_of_samples_on_one_rank_alone_are_told_too(folder: Path) -> None:
    one = json.loads((folder / "told 0.json").read_text())["alone, paths"]
    assert (one["error"], one["seconds"] < SOON) == ("RankError", True)
    assert "expected all 2 ranks to measure together, but rank 1 did not come" in one["words"]


def test_the_first_rank_tells_of_many_forwards_and_their_number_is_true(folder: Path) -> None:
    first, second = told(folder, "many forwards")
    assert second["warned"] == []
    (words,) = first["warned"]
    assert words.startswith(f"layerlaw: {first['forwards']} forwards over the data and the test data are needed within")
    assert first["forwards"] == second["forwards"] > 20
    assert re.search(r"; memory_gib=\S+ takes \d+\.$", words)


def test_without_a_word_a_lone_rank_waits_less_than_a_minute() -> None:
    from layerlaw.stats.ranks import MEETING

    assert MEETING < 60


def test_the_next_epoch_of_a_loader_of_accelerate_is_what_it_would_be(folder: Path) -> None:
    both = told(folder, "accelerate")
    if None in both:
        pytest.skip("accelerate is not installed")
    for one in both:
        epochs = one["without"]
        assert len({tuple(epoch) for epoch in epochs}) == 3
        assert one["with"] == epochs
        assert one["open loaders"] == 0
        assert one["order"] == "shuffled by the loader"
        assert one["notes"][0].startswith("data: the loader's BatchSamplerShard repeats 19 of 61 samples")
        assert (
            "With DataLoaderConfiguration(even_batches=False) of accelerate every sample is dealt once"
            in one["notes"][0]
        )
        (note,) = one["drop_last"]
        assert note.startswith("data: the loader's BatchSamplerShard leaves out 5 of 61 samples")
        assert "With a loader without drop_last and DataLoaderConfiguration(even_batches=False) of accelerate" in note
        assert sum(one["counts"]) == 80


def test_features_at_hand_that_are_dealt_give_the_record_of_all(folder: Path) -> None:
    layers = {name: INPUTS.double() ** power for name, power in (("a", 1), ("b", 3))}
    assert_measured_as(folder, "given, again", ll.record_of(layers, LABELS, **QUIET))
    assert all(not one["error"] for one in told(folder, "given, alike"))


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("options", "uncertainty: expected the same on all 2 ranks, got None"),
        ("layers", "sites: expected the same on all 2"),
    ],
)
def test_features_at_hand_with_other_arguments_are_told(folder: Path, name: str, words: str) -> None:
    for one in told(folder, f"given, {name}"):
        assert one["error"] == "InputError"
        assert one["words"].startswith(words)


def test_a_buffer_that_one_rank_has_put_away_is_told(folder: Path) -> None:
    for one in told(folder, "a buffer that is put away"):
        assert one["error"] == "PassError"
        assert "got torch.float32 (3,) on rank 0, none that is whole on rank 1" in one["words"]
