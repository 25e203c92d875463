"""Experiments: one file per figure of the papers. `run(setting) → Outcome`: numbers beside the paper's, figures, tables."""

from __future__ import annotations

import datetime
import importlib
import time
from dataclasses import replace
from pathlib import Path
from types import ModuleType

import torch

from layerlaw.errors import InputError
from layerlaw.experiments.setting import Setting
from layerlaw.pages import Outcome
from layerlaw.probing.assembly import code_version as code_version
from layerlaw.progress import Progress

NAMES = ("fig1", "fig2", "fig3", "fig5", "fig6", "fig9", "s1", "s4", "s5", "s6", "s7", "s8", "s10", "s11", "linearised")


def find(name: str) -> ModuleType:
    """The module of a figure."""
    if name not in NAMES:
        raise InputError(f"expected one of the experiments {', '.join(NAMES)} (or all), got {name!r}.")
    return importlib.import_module(f"layerlaw.experiments.{name}")


def title(name: str) -> str:
    """What a figure shows, in a line."""
    found: str = find(name).TITLE
    return found


def reproduce(
    name: str,
    *,
    quick: bool = False,
    seeds: int = 3,
    device: str = "cpu",
    folder: str | Path | None = None,
    progress: bool | Progress = True,
) -> Outcome:
    """Run one experiment; with a folder, an interrupted one goes on where it was.

    A quick run takes few epochs and one seed: it shows that everything works, not what the paper shows.
    """
    module = find(name)
    place = None if folder is None else Path(folder) / name
    setting = Setting(quick, seeds, device, place, progress)
    began = time.monotonic()
    outcome: Outcome = module.run(setting)
    words = [f"layerlaw reproduce {name}", "--quick" * quick, f"--seeds {seeds}" * (not quick), f"--device {device}"]
    known = {
        "command": " ".join(word for word in words if word),
        "device": torch.cuda.get_device_name(device) if torch.device(device).type == "cuda" else f"CPU, {device}",
        "wall_s": round(time.monotonic() - began, 1),
        "seeds": sorted(setting.used_seeds),
        "networks": setting.networks,
        "quick": quick,
        "code_version": code_version(),
        "torch": torch.__version__,
        "when": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "data": setting.checksums,
    }
    notes = (*(("Quick run: few epochs and one seed, not the paper's setting.",) if quick else ()), *outcome.notes)
    return replace(outcome, notes=notes, provenance={**known, **outcome.provenance})
