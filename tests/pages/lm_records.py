"""Synthetic records of language models: plateau, fall, and rise at the end as SmolLM2 shows them; every column filled."""

from __future__ import annotations

import io

import numpy as np
from rich.console import Console

from layerlaw.pages import print_record
from layerlaw.record import LANGUAGE_MODEL, Record, SiteRow

GROUPS = 8
TARGETS = ("embedding", "onehot", "rank", "previous", "current", "next2")
WORDS = ["patients", "cells", "disorder"]


def curve(blocks: int, first: float = 0.902, last: float = 0.823) -> np.ndarray:
    """PR after each block: flat, then falling, and a little higher at the end."""
    x = np.linspace(0, 1, blocks)
    fall = np.clip((x - 0.15) / 0.72, 0, 1) ** 1.15
    rise = np.clip((x - 0.9) / 0.1, 0, 1) * 0.2
    return np.exp(np.log(first) + np.log(last / first) * (fall - rise))


def lm_record(
    name: str = "SmolLM2-135M",
    *,
    blocks: int = 30,
    held_out: bool = True,
    null: float | None = 0.93,
    targets: tuple[str, ...] = TARGETS,
    shuffled: int = 8,
    separation: bool = True,
    lens: bool = False,
    words: bool = True,
    values: list[float] | None = None,
    noise: float = 0.002,
    task: str = "next",
    tokens_per_feature: float = 213.0,
    stem: str = "model.layers.",
    seed: int = 0,
) -> Record:
    """A record with the wanted columns; `null` is the untrained PR of the first block."""
    rng = np.random.default_rng(seed)
    inside = np.array(values) if values is not None else curve(blocks)
    blocks = len(inside)
    inside = np.concatenate([[inside[0] * 1.01], inside])
    labels = [int(k) for k in rng.integers(0, len(WORDS), 90)] if words else []
    tilts = {"": 1.0, **{t: 0.7 + 0.1 * k for k, t in enumerate(targets)}}  # how steeply each target falls
    tilts |= {f"shuffled_{k}": rng.uniform(0.2, 0.6) for k in range(1, shuffled + 1)}
    sites = []
    level = rng.normal(0, 0.01, GROUPS)  # what all blocks share in a group
    for i, pr in enumerate(inside):
        cells: dict[str, float | None] = {}
        left_out: dict[str, list[float | None]] = {}
        for target, tilt in tilts.items():
            column = f"residual_{target}" if target else "residual"
            value = float(pr**tilt)
            if target in ("previous", "current"):
                value = float(0.35 + 0.5 * i / blocks)  # the past is forgotten
            cells |= {column: value, f"{column}_adjusted": value * 1.005}
            if held_out:
                cells[f"{column}_held_out"] = value * 1.012
                for of, v in ((column, value), (f"{column}_held_out", value * 1.012)):
                    cells[f"{of}_log_se"] = 0.01
                    left_out[of] = [float(x) for x in v * np.exp((level + rng.normal(0, noise, GROUPS)) / (GROUPS - 1))]
            if null is not None:
                cells[f"{column}_untrained"] = null * 1.0008**i
                if held_out:
                    cells[f"{column}_held_out_untrained"] = 1.012 * null * 1.0008**i
        cells["rank"] = 576.0
        if separation:
            cells |= {"separation": 40 * 0.97**i, "separation_untrained": 44 * 1.002**i}
        if lens:
            share, loss = i / blocks, 3.5 + 8 * (1 - i / blocks)
            cells |= {
                "lens_loss": loss if i else 90.0,
                "lens_excess_se": 0.1 * (i < blocks),
                "linear_lens_loss": loss / 2 + 1.75,
            }
            cells |= {
                f"{kind}_{name}": share
                for kind in ("lens", "linear_lens")
                for name in ("agreement", "settled", "accuracy")
            }
        plane = rng.normal(0, 1, (90, 2)) + np.array(labels)[:, None] * i / 20 if words else []
        sites.append(
            SiteRow(
                f"{stem}{i - 1}" if i else "embedded input", "LlamaDecoderLayer" if i else "input", (576,), 576,
                in_fit=i > 0, at="output" if i else "input", values=cells, left_out=left_out,
                plane=[[float(x), float(y)] for x, y in plane],
            )
        )  # fmt: skip
    tokens = round(576 * tokens_per_feature)
    about = {"kind": "linear", "tokens": 2048, "pieces": 60, "frequency_loss": 6.1}
    return Record(
        name=name, kind=LANGUAGE_MODEL, sites=sites, classes=[], words=WORDS if words else [], plane_labels=labels,
        counts=[tokens],
        settings={
            "task": task, "targets": {"id": "the next token's id"}, "normalize": "fresh", "norm": "rms", "tokens": tokens,
            "blocks": "30 blocks of type LlamaDecoderLayer in 'model.layers', width 576, rms norm 'model.norm' behind them",
            "tokens_per_feature": tokens_per_feature, "pieces": 240, "documents": 60, "groups": GROUPS, "length": 512,
            **({"lens": about} if lens else {}),
        },
        provenance={"layerlaw": "0.1.0", "model": "LlamaForCausalLM", "data_sha256": "9f2c" * 16},
        notes=["Other lists of blocks were not measured: none."],
    )  # fmt: skip


def bare_lm_record() -> Record:
    """Nothing but the residual in-sample."""
    return lm_record("bare", blocks=6, held_out=False, null=None, targets=(), shuffled=0, separation=False, words=False)


def printed(record: Record, width: int) -> str:
    """A record as a terminal of this width shows it."""
    console = Console(file=(written := io.StringIO()), width=width)
    print_record(record, console)
    return written.getvalue()
