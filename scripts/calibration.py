"""How often each kind of curve is said to obey the law, by the number of steps: the table in docs/law.md.

    python scripts/calibration.py            # print it
    python scripts/calibration.py --write    # put it into docs/law.md (a minute)

Steps of ln D are drawn, the law is fitted through their sum, and `LawFit.holds` (and `LawFit.equal_steps`) are counted.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np

from layerlaw.law import fit_law

STEPS = (3, 4, 5, 7, 11, 19, 30, 49)
DROP = 4.0  # of ln D in all: from 36 to 0.7, as in the networks of the papers
PAGE = Path(__file__).resolve().parents[1] / "docs" / "law.md"
BEGIN, END = "<!-- calibration: scripts/calibration.py -->", "<!-- end of calibration -->"
Draw = Callable[[np.random.Generator, int], np.ndarray]


def random_split(rng: np.random.Generator, m: int) -> np.ndarray:
    return rng.exponential(size=m)


def noisy(rng: np.random.Generator, m: int, cv: float = 0.0, trend: float = 1.0) -> np.ndarray:
    """Steps that grow from 1 to `trend` by equal factors, each times a gamma variable of this coefficient of variation."""
    steps = trend ** np.linspace(0, 1, m)
    return steps * rng.gamma(1 / cv**2, cv**2, size=m) if cv else steps


def hump(rng: np.random.Generator, m: int, height: float = 3.0) -> np.ndarray:
    return 1 + (height - 1) * np.sin(np.pi * (np.arange(m) + 0.5) / m) * rng.gamma(100, 0.01, size=m)


def best_of(rng: np.random.Generator, m: int, choices: int = 7) -> np.ndarray:
    """The straightest of several random splits: what choosing a learning rate by r does."""
    splits = rng.exponential(size=(choices, m))
    curves = np.cumsum(splits / splits.sum(1, keepdims=True), 1)
    curves = np.concatenate([np.zeros((choices, 1)), curves], 1)
    x = np.arange(m + 1.0) - m / 2
    centered = curves - curves.mean(1, keepdims=True)
    r = (centered * x).sum(1) / np.sqrt((centered**2).sum(1) * (x**2).sum())
    return splits[r.argmax()]


KINDS: dict[str, tuple[Draw, int]] = {
    "random split of the drop": (random_split, 1),
    "straightest of 7 random splits, not said": (best_of, 1),
    "straightest of 7 random splits, `chosen_from=7`": (best_of, 7),
    "equal steps, CV 10 %": (partial(noisy, cv=0.1), 1),
    "equal steps, CV 20 %": (partial(noisy, cv=0.2), 1),
    "equal steps, CV 30 %": (partial(noisy, cv=0.3), 1),
    "equal steps, CV 50 %": (partial(noisy, cv=0.5), 1),
    "equal steps, CV 10 %, `chosen_from=7`": (partial(noisy, cv=0.1), 7),
    "last step 1.25 × the first, CV 10 %": (partial(noisy, cv=0.1, trend=1.25), 1),
    "last step 1.5 × the first, CV 10 %": (partial(noisy, cv=0.1, trend=1.5), 1),
    "last step 2 × the first, CV 10 %": (partial(noisy, cv=0.1, trend=2.0), 1),
    "last step 3 × the first, CV 10 %": (partial(noisy, cv=0.1, trend=3.0), 1),
    "last step 4.3 × the first, CV 10 %": (partial(noisy, cv=0.1, trend=4.3), 1),
    "last step a third of the first, CV 10 %": (partial(noisy, cv=0.1, trend=1 / 3), 1),
    "hump, 1 → 3 → 1": (hump, 1),
}


def rates(kind: str, steps: int, draws: int) -> tuple[float, float]:
    """The shares of draws in which the law holds, and in which it holds with every step within a factor of 2."""
    draw, chosen_from = KINDS[kind]
    rng = np.random.default_rng(steps)
    holds = equal = 0
    for _ in range(draws):
        drops = draw(rng, steps)
        fit = fit_law(np.exp(-np.cumsum([0.0, *(DROP * drops / drops.sum())])), chosen_from=chosen_from)
        holds += fit.holds is True
        equal += fit.holds is True and fit.equal_steps is True
    return holds / draws, equal / draws


def table(draws: int) -> str:
    lines = [
        f"Percent of {draws:,} simulated curves in which `LawFit.holds` (in brackets: and every step is within a factor of 2).",
        "",
        "| steps of log D | " + " | ".join(f"{m} steps" for m in STEPS) + " |",
        "|---" + "|---:" * len(STEPS) + "|",
    ]
    for kind in KINDS:
        cells = [f"{100 * a:.1f} ({100 * b:.1f})" for a, b in (rates(kind, m, draws) for m in STEPS)]
        lines.append(f"| {kind} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--draws", type=int, default=4000)
    parser.add_argument("--write", action="store_true")
    options = parser.parse_args()
    made = table(options.draws)
    if not options.write:
        print(made)
        return
    page = PAGE.read_text(encoding="utf-8")
    before, rest = page.split(BEGIN)
    PAGE.write_text(f"{before}{BEGIN}\n{made}\n{END}{rest.split(END)[1]}", encoding="utf-8")


if __name__ == "__main__":
    main()
