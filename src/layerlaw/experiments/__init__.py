"""Experiments: the figures of the papers. `run(setting) → Outcome`: numbers beside the paper's, figures, tables.

A figure has a file of its own, or is a function in a file of several (`FILES`).
"""

from __future__ import annotations

import ast
import difflib
import hashlib
import importlib
import io
import threading
import time
import tokenize
from collections.abc import Callable
from contextlib import nullcontext, suppress
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import torch

from layerlaw.errors import DataError, InputError
from layerlaw.experiments.setting import Setting, quick_title
from layerlaw.files import as_path, made_folder, write_whole
from layerlaw.lab.engines import Engine, check_engine
from layerlaw.lab.processes import cores
from layerlaw.outcome import Outcome
from layerlaw.progress import Progress
from layerlaw.provenance import provenance
from layerlaw.wording import number, sentence

PAPERS = {
    "separation": (
        *("fig1", "fig2", "fig3", "fig4", "fig5", "fig6", "fig7", "fig8", "fig9", "fig10"),
        *("s1", "s2", "s3", "s4", "s5", "s6", "s7", "s8", "s9", "s10", "s11", "linearized"),
        *("performance", "reactivation", "conv_measures", "conv_grid", "weight_tied"),
    ),
    "next_token": (
        *("lm_law", "lm_targets", "lm_normalization", "lm_flow", "lm_tokens", "lm_words"),
        *("lm_training", "lm_sizes", "lm_task"),
    ),
    "layer_peeled": ("minority", "minority_vgg13", "minority_resnet18", "minority_resnet18_cifar10", "minority_whole"),
    "collapse": ("svsl_mnist", "svsl_fashion_mnist", "svsl_cifar10", "svsl_random_labels", "svsl_sentences"),
}
"""Every figure by the folder of its paper. To add one: its file there, its name here, its test; the ledger
shows it once scripts/ledger.py has its record of a full run."""
NAMES = tuple(name for names in PAPERS.values() for name in names)
FILES = {
    "separation.convolutions": ("fig4", "s2", "s3"),
    "separation.blocks": ("fig7", "fig8", "fig10"),
    "separation.open_questions": ("conv_grid", "weight_tied"),
    "next_token.smollm2": ("lm_law", "lm_targets", "lm_normalization", "lm_flow", "lm_tokens", "lm_words"),
    "next_token.own_models": ("lm_training", "lm_sizes", "lm_task"),
    "layer_peeled.minority": PAPERS["layer_peeled"],
    "collapse.svsl": PAPERS["collapse"][:-1],
}
"""The files that hold several figures, a function each."""


class Experiment(NamedTuple):
    """A figure: what it shows, how it is run and what is expected of it, and the function that runs it."""

    title: str
    text: str
    run: Callable[[Setting], Outcome]


def find(name: str) -> Experiment:
    """A figure by its name."""
    for file, names in FILES.items():
        if name in names:
            module = importlib.import_module(f"layerlaw.experiments.{file}")
            run = getattr(module, name)
            return Experiment(module.TITLES[name], run.__doc__, run)
    for folder, names in PAPERS.items():
        if name in names:
            module = importlib.import_module(f"layerlaw.experiments.{folder}.{name}")
            return Experiment(module.TITLE, module.__doc__ or "", module.run)
    near = difflib.get_close_matches(name, NAMES, n=2)
    hint = f" Did you mean {' or '.join(near)}?" if near else ""
    raise InputError(f"expected one of the experiments {', '.join(NAMES)} (or all), got {name!r}.{hint}")


def title(name: str) -> str:
    """What a figure shows, in a line."""
    return find(name).title


def code_digest(name: str) -> str:
    """Of the code that an experiment's numbers come from, without comments and docstrings: older records are stale.

    How jobs are dealt to processes changes no number.
    """
    root, figure = Path(__file__).parents[1], find(name).run.__module__.split(".")
    more = {
        "next_token": ("lm",),
        "layer_peeled": ("peeled", "advice"),
    }  # what a paper's experiments need beside the rest
    own = [part for paper, needed in more.items() if name in PAPERS[paper] for part in needed]
    parts = [root / part for part in ("stats", "measures", "law", "lab", *own)]
    unseen = {*(part / "__init__.py" for part in parts), root / "lab" / "processes.py"}
    files = [path for part in parts for path in sorted(part.rglob("*.py")) if path not in unseen]
    files += [root / "experiments" / f"{part}.py" for part in ("numbers", "runs", "setting", "moments")]
    needs = {"blocks": ["convolutions"], "conv_measures": ["convolutions", "blocks"]}  # other files of figures
    needs |= {"open_questions": [*needs["conv_measures"], "conv_measures"], "svsl_sentences": ["svsl"]}
    needs["minority"] = ["class_counts"]
    shared = ["language"] * (name in PAPERS["next_token"]) + needs.get(figure[-1], [])
    files += [
        root.joinpath(*place).with_suffix(".py") for place in (*((*figure[1:-1], one) for one in shared), figure[1:])
    ]
    if name in ("s9", "svsl_sentences"):
        files.append(root / "experiments" / "sentences.py")
    if name in PAPERS["collapse"]:
        files += [root / "verdict" / "conjectures.py", root / "advice" / "penalty_search.py"]
        files.append(root / "advice" / "courses.py")
    return hashlib.sha256("\n".join(_bare(path.read_text(encoding="utf-8")) for path in files).encode()).hexdigest()[
        :16
    ]


def _bare(code: str) -> str:
    """The lines of a file without comments and docstrings; the same under every version of Python."""
    lines = code.splitlines()
    for token in tokenize.generate_tokens(io.StringIO(code).readline):
        if token.type == tokenize.COMMENT:
            row, column = token.start
            lines[row - 1] = lines[row - 1][:column]
    for node in ast.walk(ast.parse(code)):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            lines[node.lineno - 1 : node.end_lineno] = [""] * (node.end_lineno - node.lineno + 1)  # type: ignore[operator]
    return "\n".join(line.rstrip() for line in lines if line.strip())


class Clock:
    """Seconds that went by, in this call and in earlier ones that ended early, also killed ones: written as they pass."""

    EVERY = 5.0  # seconds

    def __init__(self, file: Path | None) -> None:
        self._file, self._earlier, self._began = file, 0.0, time.monotonic()
        if file is not None:
            made_folder(file.parent)
            with suppress(OSError, ValueError):  # none yet, or nothing that can be read
                self._earlier = max(0.0, float(file.read_text(encoding="utf-8")))
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._tick, daemon=True)

    @property
    def seconds(self) -> float:
        """So far."""
        return self._earlier + time.monotonic() - self._began

    def _tick(self) -> None:
        while not self._over.wait(self.EVERY):
            with suppress(DataError):  # a full disk is told where something is lost by it
                self._write()

    def _write(self) -> None:
        if self._file is not None and self._file.parent.exists():
            write_whole(self._file, f"{self.seconds:.1f}")

    def __enter__(self) -> Clock:
        if self._file is not None:
            self._thread.start()
        return self

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        self._over.set()
        if self._thread.is_alive():
            self._thread.join()
        with suppress(DataError) if error is not None else nullcontext():  # what ended it is to be told, not this
            self._write()


def reproduce(
    name: str,
    *,
    quick: bool = False,
    seeds: int | None = None,
    device: str = "cpu",
    folder: str | Path | None = None,
    progress: bool | Progress = True,
    workers: int | None = None,
    engine: Engine = "processes",
) -> Outcome:
    """Run one experiment; with a folder, an interrupted one goes on where it was. `workers` and `engine` as in `sweep`.

    A quick run takes few epochs and one seed (unless more are requested): it shows that everything works, and nothing is
    judged by it.
    """
    experiment = find(name)
    place = None if folder is None else as_path(folder, "runs") / name
    check_engine(engine)
    setting = Setting(quick, seeds, device, place, progress, workers, engine)
    with Clock(None if place is None else place / "seconds") as clock:
        outcome = experiment.run(setting)
    words = [f"layerlaw reproduce {name}", "--quick" * quick, f"--seeds {seeds}" * bool(seeds), f"--device {device}"]
    on_cluster = {"engine": engine} if engine == "ray" else {}
    known = provenance(
        device,
        **on_cluster,
        code=code_digest(name),
        command=" ".join(word for word in words if word),
        cores=None if on_cluster or torch.device(device).type == "cuda" else cores(),
        wall_s=round(clock.seconds, 1),
        seeds=sorted(setting.used_seeds),
        networks=setting.networks,
        quick=quick,
        data=setting.checksums,
    )
    rows, notes, title = outcome.rows, list(map(sentence, outcome.notes)), outcome.title
    if quick:
        title = quick_title(title, setting.checksums)
        rows = [replace(row, reproduced=None) for row in rows]
        notes = [_how_quick(outcome), *notes]
    return replace(outcome, title=title, rows=rows, notes=notes, provenance={**known, **outcome.provenance})


def _how_quick(outcome: Outcome) -> str:
    """What a quick run says of its networks, and how well they learned where that is known."""
    learned = [row for row in outcome.rows if row.name.endswith("/test-accuracy") and "-minus-" not in row.name]
    found = [row.ours for row in learned if row.ours is not None]
    ends = dict.fromkeys(number(end(found), 2) for end in (min, max)) if found else ()
    accuracy = f" (test accuracy {' to '.join(ends)})" if ends else ""
    judged = "Quick run: few epochs, not the paper's setting; nothing is judged by it"
    return f"{judged}. What follows is of these networks alone{accuracy}."
