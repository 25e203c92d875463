"""Two processes to which samplers deal data sets that are not the same, or whose loaders leave samples out."""

import json
from pathlib import Path
from typing import Any

import pytest
from ranks_apart import INPUTS, LABELS, QUIET, network
from test_ranks import on_two_ranks
from torch.utils.data import DataLoader, TensorDataset

import layerlaw as ll

SCRIPT = Path(__file__).with_name("unlike_ranks.py")
SEED = "Seed random_split or shuffle (generator=torch.Generator().manual_seed(0)) and sort the files of a folder."


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, dict[str, Any]]]:
    """What both ranks say of every case."""
    folder = on_two_ranks(SCRIPT, tmp_path_factory.mktemp("unlike"))
    return [json.loads((folder / f"told {rank}.json").read_text()) for rank in range(2)]


@pytest.mark.parametrize(
    "name",
    [
        "a split",
        "a split, padded",
        "a split, shuffled",
        "another order",
        "no file can be pickled",
        "augmented",
        "dealt",
        "shares",
    ],
)
def test_a_sampler_over_another_data_set_on_each_rank_is_an_error(told: list[Any], name: str) -> None:
    for one in told:
        found = one[f"unlike, {name}"]
        assert found["error"] == "DataError", found
        assert found["words"].startswith(
            "data: expected the same data set on all 2 ranks, got other samples, or another order, on rank 1 than on rank 0"
        )
        assert found["words"].endswith(f"The sampler deals places. {SEED}")


def test_the_error_says_what_is_counted_how_often(told: list[Any]) -> None:
    words = told[0]["unlike, a split"]["words"]
    assert "samples would be counted several times, and others never." in words
    assert "Some would never be measured." in told[0]["unlike, shares"]["words"]
    assert told[1]["test data"]["words"].startswith("test: expected the same data set on all 2 ranks")
    assert "got 61 samples on rank 0 and 50 on rank 1." in told[1]["lengths"]["words"]


@pytest.mark.parametrize("name", ["doubled", "doubled, a file", "augmented", "by hand"])
def test_one_data_set_with_equal_samples_or_with_a_state_of_each_rank_needs_no_word(told: list[Any], name: str) -> None:
    for one in told:
        found = one[f"alike, {name}"]
        assert (found["error"], found["notes"], found["warned"]) == ("", [], [])


def test_samples_are_read_without_a_change_of_random_numbers(told: list[Any]) -> None:
    assert [one["random numbers"]["kept"] for one in told] == [True, True]


def test_shares_by_hand_of_unlike_splits_are_warned_about(told: list[Any]) -> None:
    first, second = (one["by hand, a split"] for one in told)
    (note,) = first["notes"]
    assert "samples are on several ranks" in note
    assert note.endswith("where all ranks have the same data set (seed random_split and shuffle).")
    assert (second["notes"], first["warned"], second["warned"]) == ([note], [f"layerlaw: {note}"], [])


def test_samples_that_drop_last_leaves_out_are_told(told: list[Any]) -> None:
    first, second = (one["drop_last"] for one in told)
    left = "data: drop_last leaves out 13 of 61 samples. Make the loader without it, and all are measured."
    assert (sum(first["counts"]), first["notes"], second["notes"]) == (48, [left], [left])
    assert (first["warned"], second["warned"]) == ([f"layerlaw: {left}"], [])


@pytest.mark.parametrize("batchnorm", ["running", "whole"])
def test_one_process_notes_them_without_a_warning(batchnorm: str) -> None:
    loader = DataLoader(TensorDataset(INPUTS, LABELS), batch_size=8, shuffle=True, drop_last=True)
    notes = ll.probe(network(), loader, batchnorm=batchnorm, **QUIET).notes
    assert "data: drop_last leaves out 5 of 61 samples. Make the loader without it, and all are measured." in notes
    even = DataLoader(TensorDataset(INPUTS, LABELS), batch_size=61, drop_last=True)
    assert ll.probe(network(), even, **QUIET).notes == []


def test_weights_of_another_dtype_are_named(told: list[Any]) -> None:
    for one in told:
        assert "got different ones in '0.0.weight', " in one["dtype"]["words"]
        assert " (float32 on rank 0, float64 on rank 1). Convert the model to one dtype" in one["dtype"]["words"]
