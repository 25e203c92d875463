"""Words along depth: the two main directions of some words' hidden states at every block.

    layerlaw reproduce lm_words             three words of wikitext-2 in SmolLM2-135M (a minute on a GPU)
    layerlaw reproduce lm_words --quick     three tokens of a Markov chain in a tiny GPT

The authors draw contextual embeddings of chosen words (patients, cells, disorder) and call the pictures chaotic: nothing in
them shows the law that the residuals follow. There is no number to compare; ours is the separation D of the words within the
plane, lower where they lie further apart.
"""

from __future__ import annotations

import math

import torch

from layerlaw.experiments.next_token.language import measured
from layerlaw.experiments.numbers import row
from layerlaw.experiments.setting import Setting
from layerlaw.measures import separation_fuzziness
from layerlaw.outcome import Outcome
from layerlaw.sheet import PlanePanel, Sheet

TITLE = "Contextual embeddings of chosen words, block by block"
WORDS = ("game", "album", "war")
QUICK = (5, 6, 7)
SHOWN = 8


def run(setting: Setting) -> Outcome:
    """Keep the states of the words at every block, and draw their planes."""
    record = measured(setting, words=QUICK if setting.quick else WORDS)
    sites = list(enumerate(record.sites))
    chosen = sites[:: max(1, math.ceil(len(sites) / SHOWN))]
    panels = [
        PlanePanel(
            f"block {i}" if i else "embedded", [(x, y) for x, y in site.plane], record.plane_labels, record.plane_names
        )
        for i, site in chosen
    ]
    labels = torch.tensor(record.plane_labels)
    rows = [
        row(f"block-{i}/separation-in-the-plane", [float(separation_fuzziness(torch.tensor(site.plane), labels))])
        for i, site in chosen
    ]
    return Outcome("lm_words", TITLE, rows, [Sheet("Words", panels, 4)], [], record.notes)
