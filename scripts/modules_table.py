"""How often the module finder is right: trained networks on fresh seeds, and simulated curves; the tables in docs/modules.md.

    python scripts/modules_table.py                          # print the tables from docs/modules.json (a minute)
    python scripts/modules_table.py --write                  # put them into docs/modules.md
    python scripts/modules_table.py --train fnn8 --seeds 20  # first train networks that are not in docs/modules.json yet
    python scripts/modules_table.py --train resnet2 resnet3 mixed cnn8 --seeds 20 --together 20 --device cuda

The networks: the paper's 8-layer network on 10×10 images (600 epochs), and those of its Figure 7 on 16×16 images (100 epochs):
four blocks of two 3×3 layers (resnet2), of three 5×5 layers (resnet3), two of each kind (mixed), and the first without
shortcuts (cnn8). Networks that are trained `--together` are one grouped convolution: the same arithmetic, one program.
On a CPU core a resnet2 takes about a minute, a resnet3 three.
"""

from __future__ import annotations

import argparse
import json
from collections import Counter
from collections.abc import Callable, Sequence
from itertools import pairwise
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import layerlaw as ll
from layerlaw.data import load
from layerlaw.lab import Recipe, Samples, Schedule, Shape, sweep
from layerlaw.law import CHANCE, pooled_greenwood_p, shuffled_p
from layerlaw.wording import p_value

DOCS = Path(__file__).resolve().parents[1] / "docs"
PAGE, KEPT = DOCS / "modules.md", DOCS / "modules.json"
TRAINED = "<!-- trained networks: scripts/modules_table.py -->", "<!-- end of trained networks -->"
SIMULATED = "<!-- simulated curves: scripts/modules_table.py -->", "<!-- end of simulated curves -->"
FIRST_SEED = 1000  # no other seeds of ours are so high
KINDS: dict[str, tuple[tuple[int, ...], bool]] = {  # layers of each block, and whether it has a shortcut
    "resnet2": ((2, 2, 2, 2), True),
    "resnet3": ((3, 3, 3, 3), True),
    "mixed": ((3, 3, 2, 2), True),
    "cnn8": ((2, 2, 2, 2), False),
}
TITLES = {
    "fnn8": "8-layer FNN, pairs of layers as “blocks”",
    "resnet2": "ResNet, 4 blocks of 2 layers",
    "resnet3": "ResNet, 4 blocks of 3 layers",
    "mixed": "ResNet, 2 blocks of 3, then 2 of 2",
    "cnn8": "plain CNN, 4 × 2 layers",
}
CHANNELS, PIXELS, CLASSES, BATCH, EPOCHS, RATE = 8, 16, 10, 128, 100, 1e-3


class Block(nn.Module):
    """Convolution → BatchNorm → ReLU, two or three times; the input is added before the last ReLU where there is a shortcut."""

    def __init__(self, layers: int, *, shortcut: bool, copies: int) -> None:
        super().__init__()
        width, kernel = CHANNELS * copies, 3 if layers == 2 else 5
        self.convs = nn.ModuleList(
            nn.Conv2d(width, width, kernel, padding="same", groups=copies, bias=False) for _ in range(layers)
        )
        self.norms = nn.ModuleList(nn.BatchNorm2d(width) for _ in range(layers))
        self.shortcut = shortcut

    def forward(self, x: Tensor) -> Tensor:
        h = x
        for conv, norm in zip(self.convs, self.norms, strict=True):
            h = norm(conv(h if conv is self.convs[0] else F.relu(h)))
        return F.relu(h + x if self.shortcut else h)


class Network(nn.Module):
    """The blocks and a classifier of all pixels; `copies` of it side by side share no channel."""

    def __init__(self, kind: str, copies: int = 1) -> None:
        super().__init__()
        layers, shortcut = KINDS[kind]
        self.copies = copies
        self.blocks = nn.ModuleList(Block(n, shortcut=shortcut, copies=copies) for n in layers)
        self.classifier = nn.Conv1d(copies * CHANNELS * PIXELS**2, copies * CLASSES, 1, groups=copies)

    def forward(self, x: Tensor) -> Tensor:
        for block in self.blocks:
            x = block(x)
        scores = self.classifier(x.flatten(1).unsqueeze(-1)).squeeze(-1)
        return scores if self.copies == 1 else scores.unflatten(1, (self.copies, CLASSES))


def side_by_side(kind: str, seeds: Sequence[int]) -> Network:
    """Networks initialized from these seeds as one."""
    states = []
    for seed in seeds:
        torch.manual_seed(seed)
        states.append(Network(kind).state_dict())
    together = Network(kind, len(seeds))
    parts = {name: [state[name] for state in states] for name in states[0]}
    together.load_state_dict({n: p[0] if p[0].dim() == 0 else torch.cat(p) for n, p in parts.items()})
    return together


def taken_apart(together: Network, kind: str) -> list[Network]:
    """Each of them alone again."""
    out = []
    for i in range(together.copies):
        alone, whole = Network(kind), together.state_dict()
        cut = {
            n: whole[n] if t.dim() == 0 else whole[n].chunk(together.copies)[i] for n, t in alone.state_dict().items()
        }
        alone.load_state_dict({name: tensor.clone() for name, tensor in cut.items()})
        out.append(alone.eval())
    return out


def train(kind: str, seeds: Sequence[int], x: Tensor, y: Tensor) -> list[Network]:
    """Adam, batches of 128, each network in an order of its own."""
    together = side_by_side(kind, seeds).to(x.device).train()
    optimizer = torch.optim.Adam(together.parameters(), RATE)
    orders = [torch.Generator().manual_seed(seed) for seed in seeds]
    for _ in range(EPOCHS):
        order = torch.stack([torch.randperm(len(y), generator=g) for g in orders], 1).to(x.device)  # (n, copies)
        for rows in order.split(BATCH):
            if len(rows) < 2:
                continue
            scores = together(x[rows].flatten(1, 2)).reshape(len(rows), len(seeds), CLASSES)
            optimizer.zero_grad()
            (F.cross_entropy(scores.flatten(0, 1), y[rows].flatten()) * len(seeds)).backward()
            optimizer.step()
    return taken_apart(together, kind)


def convolutional(kind: str, seeds: Sequence[int], device: str) -> list[dict[str, object]]:
    """Trained and measured at every layer, BatchNorm with running statistics."""
    images = load(split="train").balanced(100).resized(PIXELS)
    x, y = images.tensors()
    x = x.repeat(1, CHANNELS, 1, 1).to(device)
    out = []
    for seed, network in zip(seeds, train(kind, seeds, x, y.to(device)), strict=True):
        record = ll.probe(
            network.to(device), (x, y.to(device)), sites="layers", uncertainty=False, progress=False, batch_size=500
        )
        sizes = list(KINDS[kind][0])
        assert [level.modules[0] for level in ll.find_modules(record, branches=True).levels] == [sum(sizes), len(sizes)]
        out.append(row(kind, seed, [site.values["separation"] for site in record.sites], sizes, record.accuracy))
    return out


def feed_forward(seeds: Sequence[int]) -> list[dict[str, object]]:
    """The paper's 8-layer network; pairs of layers stand for blocks that it does not have."""
    samples = Samples.of(load(split="train").balanced(100).resized(10).tensors(flat=True))
    recipes = [Recipe(Shape.even(8), optimizer="adam", learning_rate=1e-3, epochs=600, seed=seed) for seed in seeds]
    runs = sweep(recipes, samples, schedule=Schedule(epochs=(600,), batchnorm=("running",)))
    last = [run.measurements[-1] for run in runs]
    return [row("fnn8", s, m.separation, [2, 2, 2, 1], m.accuracy) for s, m in zip(seeds, last, strict=True)]


def row(
    kind: str, seed: int, values: Sequence[float | None], sizes: list[int], accuracy: float | None
) -> dict[str, object]:
    """What is kept of a network."""
    return {
        "kind": kind,
        "seed": seed,
        "D": [float(f"{v:.6g}") for v in values if v],
        "sizes": sizes,
        "accuracy": accuracy,
    }


Steps = np.ndarray


def statistic(steps: Steps) -> float:
    """Greenwood's, infinite where nothing falls."""
    return float((steps**2).sum() / steps.sum() ** 2) if steps.sum() > 0 else np.inf


def answer(networks: Sequence[Steps], sizes: Sequence[int]) -> tuple[str, bool, tuple[float, float]]:
    """The level, whether it is established, and p of layers and blocks: the rule of `find_modules`, without its other numbers."""
    starts = np.cumsum([0, *sizes[:-1]])
    both = {"layers": networks, "blocks": [np.add.reduceat(steps, starts) for steps in networks]}
    ps = {n: pooled_greenwood_p([statistic(s) for s in each], [len(s) for s in each]) for n, each in both.items()}
    passing = [name for name, p in ps.items() if p < CHANCE]
    return passing[0] if passing else min(ps, key=lambda n: ps[n]), bool(passing), (ps["layers"], ps["blocks"])


def shares(answers: Sequence[tuple[str, bool, object]]) -> list[str]:
    """Percent of each answer."""
    count = Counter((name, established) for name, established, _ in answers)
    order = [("layers", True), ("blocks", True), ("layers", False), ("blocks", False)]
    return [f"{100 * count[key] / len(answers):.0f}" for key in order]


ANSWERS = "“layers” | “blocks” | none; layers | none; blocks"
PERMUTED = 200  # shuffles of a simulated network


def special(networks: Sequence[Steps], sizes: Sequence[int], draws: int) -> bool:
    """Whether shuffled layers in such groups are seldom as even as the blocks."""
    return shuffled_p([list(steps) for steps in networks], [sizes] * len(networks), draws=draws) < CHANCE


def trained_table(rows: list[dict[str, object]]) -> str:
    """A row per kind of network: medians over single networks, percent of each answer, the answer of all pooled."""
    lines = [
        f"| network | seeds | median p, layers | median p, blocks | {ANSWERS} | all pooled: answer (p of layers, of blocks, "
        "permutation p) |",
        "|---" + "|---:" * 7 + "|---|",
    ]
    for kind, title in TITLES.items():
        chosen = [r for r in rows if r["kind"] == kind]
        if not chosen:
            lines.append(f"| {title} | not run yet |" + " |" * 7)
            continue
        curves = [np.array([np.log(a / b) for a, b in pairwise(r["D"])]) for r in chosen]  # type: ignore[call-overload]
        sizes: list[int] = chosen[0]["sizes"]  # type: ignore[assignment]
        alone = [answer([steps], sizes) for steps in curves]
        medians = [p_value(float(np.median([ps[k] for *_, ps in alone]))) for k in (0, 1)]
        name, established, ps = answer(curves, sizes)
        shuffled = shuffled_p([list(steps) for steps in curves], [sizes] * len(curves))
        numbers = ", ".join(map(p_value, (*ps, shuffled)))
        pooled = f"{name if established else f'none; {name}'} ({numbers})"
        lines.append(f"| {title} | {len(chosen)} | {' | '.join([*medians, *shares(alone), pooled])} |")
    return "\n".join(lines)


def drawn(cv: float | None) -> Callable[[np.random.Generator, int], Steps]:
    """Steps of mean 1: exponential (a random split), or gamma variables of this coefficient of variation."""
    return lambda rng, m: rng.exponential(size=m) if cv is None else rng.gamma(1 / cv**2, cv**2, size=m)


def nested(outer: float | None, rng: np.random.Generator, sizes: Sequence[int]) -> Steps:
    """Blocks with equal steps (or not), each split at random over its layers."""
    blocks = drawn(outer)(rng, len(sizes))
    inner = [rng.exponential(size=n) for n in sizes]
    return np.concatenate([block * part / part.sum() for block, part in zip(blocks, inner, strict=True)])


def rising_inside(rng: np.random.Generator, sizes: Sequence[int], cv: float = 0.2, spread: float = 0.6) -> Steps:
    """Blocks with equal steps, inside of which D rises and falls, as in trained ResNets."""
    noise = [rng.normal(scale=spread, size=n) for n in sizes]
    inner = [1 / len(part) + part - part.mean() for part in noise]
    return np.concatenate([block * part for block, part in zip(drawn(cv)(rng, len(sizes)), inner, strict=True)])


CURVES: dict[str, Callable[[np.random.Generator, Sequence[int]], Steps]] = {
    "random split over layers": lambda rng, sizes: drawn(None)(rng, sum(sizes)),
    "random split over blocks, and of each block over its layers": lambda rng, sizes: nested(None, rng, sizes),
    "equal layers, CV 30 %": lambda rng, sizes: drawn(0.3)(rng, sum(sizes)),
    "equal layers, CV 50 %": lambda rng, sizes: drawn(0.5)(rng, sum(sizes)),
    "equal blocks, CV 20 %, each split at random": lambda rng, sizes: nested(0.2, rng, sizes),
    "equal blocks, CV 40 %, each split at random": lambda rng, sizes: nested(0.4, rng, sizes),
    "equal blocks, CV 20 %, D rising and falling inside": rising_inside,
}
GROUPINGS = ((2,) * 4, (3,) * 4, (2,) * 9)


def simulated_table(draws: int) -> str:
    """Percent of simulated networks, alone or eight together, with each answer."""
    heads = f"{ANSWERS} | “blocks” and permutation p < .05"
    lines = [f"| steps of log D | blocks | networks | {heads} |", "|---|---|---:" + "|---:" * 5 + "|"]
    for title, draw in CURVES.items():
        for sizes in GROUPINGS:
            for together in (1, 8):
                rng = np.random.default_rng((len(sizes), together))
                found, both = [], 0
                for _ in range(draws):
                    networks = [draw(rng, sizes) for _ in range(together)]
                    found.append(answer(networks, sizes))
                    both += found[-1][:2] == ("blocks", True) and special(networks, sizes, PERMUTED)
                cells = [*shares(found), f"{100 * both / draws:.0f}"]
                lines.append(f"| {title} | {len(sizes)} × {sizes[0]} | {together} | {' | '.join(cells)} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--train", nargs="*", default=[], choices=list(TITLES))
    parser.add_argument("--seeds", type=int, default=8)
    parser.add_argument("--together", type=int, default=1)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--keep", type=Path, default=KEPT, help="where what was measured is kept")
    parser.add_argument("--draws", type=int, default=2000)
    parser.add_argument("--write", action="store_true")
    options = parser.parse_args()
    kept = json.loads(options.keep.read_text(encoding="utf-8")) if options.keep.exists() else []
    for kind in options.train:
        have = {r["seed"] for r in kept if r["kind"] == kind}
        missing = [seed for seed in range(FIRST_SEED, FIRST_SEED + options.seeds) if seed not in have]
        size = len(missing) if kind == "fnn8" else options.together
        for seeds in (missing[i : i + size] for i in range(0, len(missing), max(1, size))):
            kept += feed_forward(seeds) if kind == "fnn8" else convolutional(kind, seeds, options.device)
            kept.sort(key=lambda r: (list(TITLES).index(r["kind"]), r["seed"]))
            lines = ",\n".join(json.dumps(r) for r in kept)
            options.keep.write_text(f"[\n{lines}\n]\n", encoding="utf-8")
            print(kind, *seeds, flush=True)
    tables = {TRAINED: trained_table(kept), SIMULATED: simulated_table(options.draws)}
    if not options.write:
        print(*tables.values(), sep="\n\n")
        return
    page = PAGE.read_text(encoding="utf-8")
    for (begin, end), table in tables.items():
        before, rest = page.split(begin)
        page = f"{before}{begin}\n{table}\n{end}{rest.split(end)[1]}"
    PAGE.write_text(page, encoding="utf-8")


if __name__ == "__main__":
    main()
