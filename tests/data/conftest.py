"""Small fake files for the data tests."""

from pathlib import Path

import pooch
import pytest
import torch

SHARED = Path(__file__).parents[3] / "shared" / "data"


@pytest.fixture(autouse=True)
def one_thread_and_no_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    torch.set_num_threads(1)
    monkeypatch.delenv("LAYERLAW_DATA", raising=False)
    monkeypatch.setattr(pooch, "os_cache", lambda project: tmp_path / "cache" / project)  # never the real cache


@pytest.fixture
def shared() -> Path:
    if not (SHARED / "fashion_mnist").is_dir():
        pytest.skip(f"no full data sets at {SHARED}")
    return SHARED
