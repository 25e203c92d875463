"""Files of sweeps and text models: damaged or crafted ones are told, and no number changes without a word."""

import random
import time
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from lab_parts import clouds

from layerlaw.errors import DataError
from layerlaw.lab import GPT, Recipe, Shape, load_text_model, save_text_model, sweep
from layerlaw.lab.jobs import Checkpoint
from layerlaw.packed import digest_of, write_torch

SAMPLES = clouds(60)
RECIPE = Recipe(Shape(12, (8,), 4), epochs=2, batch_size=20)


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("fleet")
    sweep([RECIPE], SAMPLES, folder=folder, progress=False, workers=1)
    return next(folder.glob("fleet-*.pt"))


def same(found: Checkpoint, other: Checkpoint) -> bool:
    plain = [[list(map(str, run.measurements)), run.losses, run.state or {}] for run in found.runs().values()]
    return digest_of(plain) == digest_of(
        [[list(map(str, run.measurements)), run.losses, run.state or {}] for run in other.runs().values()]
    )


def test_no_flipped_bit_of_a_finished_fleet_changes_a_number(fleet: Path, tmp_path: Path) -> None:
    whole, draw, refused = fleet.read_bytes(), random.Random(0), 0
    unbroken, path = Checkpoint.from_file(fleet)[0], tmp_path / "fleet-0.pt"
    for _ in range(150):
        damaged = bytearray(whole)
        damaged[draw.randrange(len(whole))] ^= 1 << draw.randrange(8)
        path.write_bytes(damaged)
        try:
            assert same(Checkpoint.from_file(path)[0], unbroken)
        except DataError:
            refused += 1
    assert refused > 80


def test_a_damaged_fleet_is_told_and_trained_again_once_it_is_gone(fleet: Path, tmp_path: Path) -> None:
    damaged = bytearray(fleet.read_bytes())
    with zipfile.ZipFile(fleet) as archive:
        largest = archive.read(max(archive.infolist(), key=lambda entry: entry.file_size))
    damaged[bytes(damaged).index(largest) + len(largest) // 2] ^= 16
    (tmp_path / fleet.name).write_bytes(damaged)
    with pytest.raises(DataError, match=r"Delete it, and its members are trained again\.$"):
        sweep([RECIPE], SAMPLES, folder=tmp_path, progress=False, workers=1)
    (tmp_path / fleet.name).unlink()
    assert sweep([RECIPE], SAMPLES, folder=tmp_path, progress=False, workers=1)[0].finished


CRAFTED: dict[str, Callable[[dict[str, Any]], object]] = {
    "no losses": lambda plain: plain.pop("losses"),
    "losses that are a word": lambda plain: plain.update(losses="low"),
    "fewer losses than epochs": lambda plain: plain.update(losses=plain["losses"][:1]),
    "losses of other members": lambda plain: plain.update(losses=plain["losses"].repeat(1, 3)),
    "an epoch that is a word": lambda plain: plain.update(epoch="2"),
    "no members": lambda plain: plain.update(keys=[]),
    "members that are numbers": lambda plain: plain.update(keys=[7]),
    "a strange recipe": lambda plain: plain.update(recipes=[{"network": 5}]),
    "a recipe of a strange network": lambda plain: plain["recipes"][0].update(network={"kind": "os.system"}),
    "measurements of nothing": lambda plain: plain.update(measurements=[[{"epoch": 1}]]),
    "measurements that are none": lambda plain: plain.update(measurements=None),
    "states that are words": lambda plain: plain.update(states=[{"w": "x"}]),
    "states of nobody": lambda plain: plain.update(states=[1]),
    "time that is none": lambda plain: plain.update(wall_s="long"),
    "more than there should be": lambda plain: plain.update(hats=3),
    "done or not": lambda plain: plain.update(done=1),
    "snapshots of another time": lambda plain: plain.update(snapshots={1: []}),
    "how it was trained": lambda plain: plain.update(how=[3]),
}


@pytest.mark.parametrize("name", CRAFTED)
def test_a_crafted_fleet_is_answered(name: str, fleet: Path, tmp_path: Path) -> None:
    plain = torch.load(fleet, weights_only=True)
    del plain["sha256"]
    CRAFTED[name](plain)
    path = write_torch(tmp_path / fleet.name, plain)
    with pytest.raises(DataError, match="expected the progress of a sweep"):
        Checkpoint.from_file(path)


def test_progress_that_does_not_fit_its_job_is_answered(tmp_path: Path) -> None:
    sweep([RECIPE], SAMPLES, folder=tmp_path, progress=False, workers=1)
    (path,) = tmp_path.glob("fleet-*.pt")
    plain = torch.load(path, weights_only=True)
    del plain["sha256"]
    write_torch(path, {**plain, "done": False, "states": [], "state": {"nonsense": torch.ones(2)}, "epoch": 1,
                       "losses": plain["losses"][:1]})  # fmt: skip
    with pytest.raises(DataError, match=r"its state does not fit .* Delete it, and its members are trained again"):
        sweep([RECIPE], SAMPLES, folder=tmp_path, progress=False, workers=1)


def test_no_flipped_bit_of_a_text_model_changes_a_weight(tmp_path: Path) -> None:
    model = GPT(vocabulary=12, width=8, depth=1, heads=2, context=8)
    path = save_text_model(model, tmp_path / "model.pt")
    whole, draw = path.read_bytes(), random.Random(3)
    for _ in range(100):
        damaged = bytearray(whole)
        damaged[draw.randrange(len(whole))] ^= 1 << draw.randrange(8)
        path.write_bytes(damaged)
        try:
            assert digest_of(dict(load_text_model(path).state_dict())) == digest_of(dict(model.state_dict()))
        except DataError:
            continue


@pytest.mark.parametrize("claim", ["vocabulary", "width", "depth", "context"])
def test_a_small_text_model_that_claims_to_be_large_is_refused_at_once(claim: str, tmp_path: Path) -> None:
    model = GPT(vocabulary=12, width=8, depth=1, heads=2, context=8)
    file = torch.load(save_text_model(model, tmp_path / "model.pt"), weights_only=True)
    del file["sha256"]
    file["arguments"][claim] = 2**27
    path = write_torch(tmp_path / "large.pt", file)
    began = time.monotonic()
    with pytest.raises(DataError, match=f"{claim}: expected"):
        load_text_model(path)
    assert time.monotonic() - began < 5
    with pytest.raises(DataError, match="expected a path such as"):
        load_text_model(None)  # type: ignore[arg-type]
