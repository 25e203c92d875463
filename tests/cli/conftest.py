"""The entry point in this process: without the seconds that a process of its own takes."""

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from layerlaw.cli import main


@pytest.fixture
def refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Callable[..., Any]:
    """Call `layerlaw` in an empty folder; gives the one line of an error with which it leaves."""
    monkeypatch.chdir(tmp_path)

    def call(*arguments: str) -> str:
        monkeypatch.setattr(sys, "argv", ["layerlaw", *arguments])
        with pytest.raises(SystemExit) as left:
            main()
        said = capsys.readouterr()
        assert left.value.code == 1
        assert said.err.startswith("error: ")
        assert len(said.err.strip().splitlines()) == 1
        assert not said.out
        return said.err

    return call
