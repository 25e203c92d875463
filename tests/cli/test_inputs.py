"""Files that commands are given: read as they are, or answered before they take memory and time."""

from pathlib import Path

import numpy as np
import pytest
import torch

from layerlaw.cli.inputs import arrays, class_counts, load_model
from layerlaw.errors import CaptureError, DataError
from layerlaw.probing import probe

MODEL = (
    "from torch import nn\ndef make():\n    return nn.Sequential(nn.Linear(8, 6), nn.BatchNorm1d(6), nn.Linear(6, 3))\n"
)


def test_arrays_of_the_other_byte_order_are_read(tmp_path: Path) -> None:
    x, y = np.random.default_rng(0).normal(size=(30, 8)), np.arange(30) % 3
    np.savez(tmp_path / "a.npz", x=x.astype(">f4"), y=y.astype(">i4"))
    (found, labels), test = arrays(tmp_path / "a.npz")
    assert torch.equal(found, torch.tensor(x.astype("f4")))
    assert labels.tolist() == y.tolist()
    assert test is None


def test_a_small_file_of_a_tensor_of_billions_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "a.pt"
    torch.save({"x": torch.ones(1, 8).expand(10**9, 8), "y": torch.zeros(1).expand(10**9)}, file)
    assert file.stat().st_size < 4000
    with pytest.raises(DataError, match=r"got a tensor of 8,000,000,000 numbers of which 8 are stored .* under 'x'"):
        arrays(file)


def test_data_that_are_a_view_of_more_are_read(tmp_path: Path) -> None:
    whole = torch.arange(80.0).reshape(8, 10)
    torch.save({"x": whole.T, "y": torch.arange(10)}, tmp_path / "a.pt")
    assert torch.equal(arrays(tmp_path / "a.pt")[0][0], whole.T)


@pytest.mark.parametrize("dtype", [torch.complex64, torch.int64])
def test_weights_of_another_kind_of_numbers_are_refused(dtype: torch.dtype, tmp_path: Path) -> None:
    (tmp_path / "model.py").write_text(MODEL)
    model, _, _ = load_model(f"{tmp_path}/model.py:make")
    state = model.state_dict()
    torch.save({name: v.half() if v.is_floating_point() else v for name, v in state.items()}, tmp_path / "half.pt")
    load_model(f"{tmp_path}/model.py:make", tmp_path / "half.pt")
    torch.save({name: v.to(dtype) for name, v in state.items()}, tmp_path / "w.pt")
    name = str(dtype).removeprefix("torch.")
    with pytest.raises(DataError, match=rf"expected '0.weight' as floating-point numbers, such as float32, got {name}"):
        load_model(f"{tmp_path}/model.py:make", tmp_path / "w.pt")


def test_counts_are_read_from_files_alone(tmp_path: Path) -> None:
    (tmp_path / "counts.txt").write_text("5000x2\n50")
    assert class_counts(None, tmp_path / "counts.txt") == [5000, 5000, 50]
    with pytest.raises(DataError, match="expected a text file of class counts, got a device or a pipe"):
        class_counts(None, Path("/dev/zero"))


@pytest.mark.parametrize("sites", ["", [""], " ", ["0", ""]])
def test_an_empty_name_is_no_site(sites: str | list[str]) -> None:
    model = torch.nn.Sequential(torch.nn.Linear(8, 6), torch.nn.Linear(6, 3))
    with pytest.raises(CaptureError, match=r"sites: expected a rule \(auto, layers, blocks\), names or globs"):
        probe(model, (torch.randn(30, 8), torch.arange(30) % 3), sites=sites)
