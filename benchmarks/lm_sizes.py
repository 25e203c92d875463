"""Time and memory of measuring language models of 1, 8 and 70 billion parameters, by a model that is stated here.

python benchmarks/lm_sizes.py [--efficiency 0.4] [--peak 989] [--bandwidth 4800]   # the table, computed
python benchmarks/lm_sizes.py --check [--small]   # measures a model of 1B size with random weights beside the prediction

The model. A token costs 2 FLOPs per weight of the blocks and 4·d·T/2 per block for attention over T/2 earlier tokens on
average; the head is spared, but for the model's own loss on some tokens, which takes up to 6 % of the blocks' work in the
first pass. The moments of a site cost 10/16 of 2·d² FLOPs per token (strips of the upper half), and per
batch 18·d² bytes of traffic: a float32 product is written, its upper half gathered, and added in float64. Solving takes d³/3
FLOPs in float64 per site and fit: one, and one more without each group where there are several. FLOPs run at `efficiency` of
the peak. Memory: 2 bytes per weight; 4·g·d² bytes of moments per site and g groups of documents; what does not fit
memory_gib is measured in several passes over the text. A text has 100 tokens per feature, as `probe_lm` reads by default.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import torch
import transformers as tf

from layerlaw.lm import load, pieces_of, probe_lm
from layerlaw.lm.recording import passes_over
from layerlaw.lm.text_budget import ENOUGH, site_bytes

LENGTH, BATCH = 512, 8  # tokens of a piece, pieces of a batch
STRIPS = 10 / 16  # of a product of which the upper half is wanted
TRAFFIC = 18  # bytes per d² and batch: product written 4, gathered 2 + 4 for the index, float64 read and written 8
PEAK64 = 67e12  # of float64 on an H200, by its data sheet
BUDGETS = (2.0, 16.0, 64.0)  # GiB


@dataclass(frozen=True)
class Size:
    """A model of Llama's kind."""

    name: str
    d: int
    layers: int
    inner: int
    heads: int
    groups: int  # of keys and values
    vocabulary: int
    tied: bool

    @property
    def multiplied(self) -> int:
        """Weights of the blocks."""
        narrow = self.d * self.groups // self.heads
        return self.layers * (2 * self.d**2 + 2 * self.d * narrow + 3 * self.d * self.inner)

    @property
    def weights(self) -> int:
        """All of them but the norms."""
        return self.multiplied + (1 if self.tied else 2) * self.vocabulary * self.d

    @property
    def tokens(self) -> int:
        """Of a text."""
        return ENOUGH * self.d

    @property
    def forward(self) -> float:
        """FLOPs per token, without the head."""
        return 2 * self.multiplied + self.layers * 4 * self.d * LENGTH / 2

    @property
    def moments(self) -> float:
        """FLOPs per token at all sites."""
        return (self.layers + 1) * STRIPS * 2 * self.d**2

    @property
    def traffic(self) -> float:
        """Bytes per token at all sites."""
        return (self.layers + 1) * TRAFFIC * self.d**2 / (LENGTH * BATCH)

    def solving(self, groups: int) -> float:
        """FLOPs in float64 at all sites."""
        return (self.layers + 1) * (1 + groups * (groups > 1)) * self.d**3 / 3

    @property
    def plan(self) -> Any:
        """As much of a plan as memory depends on."""
        sites = [SimpleNamespace(name=str(i)) for i in range(self.layers + 1)]
        target = SimpleNamespace(columns=1)
        return SimpleNamespace(sites=sites, blocks=SimpleNamespace(width=self.d), targets=[target], frequent=None)

    def config(self) -> tf.LlamaConfig:
        """For transformers."""
        return tf.LlamaConfig(
            hidden_size=self.d,
            num_hidden_layers=self.layers,
            intermediate_size=self.inner,
            num_attention_heads=self.heads,
            num_key_value_heads=self.groups,
            vocab_size=self.vocabulary,
            tie_word_embeddings=self.tied,
        )


SIZES = (
    Size("1B", 2048, 16, 8192, 32, 8, 128_256, True),
    Size("8B", 4096, 32, 14_336, 32, 8, 128_256, False),
    Size("70B", 8192, 80, 28_672, 64, 8, 128_256, False),
)
SMALL = Size("a small one", 128, 4, 512, 4, 2, 1000, True)


def pass_seconds(size: Size, rate: float, bandwidth: float) -> tuple[float, float]:
    """One pass over the text: the forward, and what the moments of all sites add."""
    return size.tokens * size.forward / rate, size.tokens * (size.moments / rate + size.traffic / bandwidth)


def table(rate: float, bandwidth: float, rate64: float) -> list[str]:
    budgets = " | ".join(f"passes within {b:g} GiB, 1 / 8 groups" for b in BUDGETS)
    lines = [
        f"| model | weights in bfloat16 | moments of all sites, 1 / 8 groups | {budgets} | text | one forward pass | "
        "moments add | solving, 1 / 8 groups |",
        "|---|---" + "|---:" * (len(BUDGETS) + 5) + "|",
    ]
    for size in SIZES:
        plan = size.plan
        held = [(size.layers + 1) * site_bytes(plan, g) / 1e9 for g in (1, 8)]
        passes = (" / ".join(str(len(passes_over(plan, g, b, None))) for g in (1, 8)) for b in BUDGETS)
        forward, more = pass_seconds(size, rate, bandwidth)
        solve = [size.solving(g) / rate64 for g in (1, 8)]
        cells = [
            f"{size.name} ({size.layers} × {size.d:,})",
            f"{2 * size.weights / 1e9:.1f} GB",
            f"{held[0]:.2g} / {held[1]:.3g} GB",
            *passes,
            f"{size.tokens:,} tokens",
            seconds(forward),
            f"{seconds(more)} ({more / forward:.0%})",
            f"{seconds(solve[0])} / {seconds(solve[1])}",
        ]
        lines.append(f"| {' | '.join(cells)} |")
    return lines


def seconds(value: float) -> str:
    return f"{value:.2g} s" if value < 100 else f"{value / 60:.2g} min"


def check(small: bool) -> None:
    """One size, random weights, random tokens: predicted beside measured."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    size, dtype = (SMALL, torch.float32) if small else (SIZES[0], torch.bfloat16)
    rate, bandwidth = measured_rate(device, dtype, 512 if small else 8192), measured_bandwidth(device, small)
    torch.manual_seed(0)
    with torch.device(device):
        model = tf.LlamaForCausalLM(size.config()).to(dtype).eval()
    ids = torch.randint(0, size.vocabulary, (size.tokens // LENGTH, LENGTH), generator=torch.Generator().manual_seed(0))
    if small:
        ids = ids[:, :64].repeat(1, 2)
    text = pieces_of(ids, groups=1, length=LENGTH, tokens=ids.numel())
    loaded, whole = load(model), (size.layers + 1) * site_bytes(size.plan, 1) / 2**30
    share = ids.numel() / size.tokens
    bare = timed(lambda: forward(model.model, ids, device), device)
    print(
        f"{size.name}, {sum(p.numel() for p in model.parameters()) / 1e9:.3g}B weights predicted {size.weights / 1e9:.3g}B"
    )
    print(f"one large product: {rate / 1e12:.3g} TFLOP/s; copies: {bandwidth / 1e9:.3g} GB/s")
    plain, more = (share * part for part in pass_seconds(size, rate, bandwidth))
    print(
        f"forward over {ids.numel():,} tokens: {bare:.3g} s, at that rate {plain:.3g} s: efficiency {plain / bare:.2f}"
    )
    found = []
    for parts in (1, 3):
        if device == "cuda":
            torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated() if device == "cuda" else 0
        how: Any = {"memory_gib": 1.01 * whole / parts, "batch_size": BATCH, "progress": False}
        passes = len(passes_over(size.plan, 1, how["memory_gib"], None))
        if parts == 1:
            probe_lm(loaded, text, **how)  # warms up
        record = probe_lm(loaded, text, **how)
        took = passes * ids.numel() / record.provenance["tokens_per_second"]
        found.append([site.values["residual"] for site in record.sites])
        assert passes == 1 or f"in {passes} passes" in " ".join(record.notes)
        told = f"{passes} passes: {took:.3g} s ({record.provenance['seconds']:.3g} s in all), "
        told += (
            f"{took / (passes * bare) - 1:+.1%} beside so many bare forwards; predicted {more / passes / bare:+.1%}, "
        )
        told += f"and {6 / passes:.1f} % at most for the loss"
        if device == "cuda":
            peak = (torch.cuda.max_memory_allocated() - before) / 1e9
            told += (
                f"; most memory beside the weights {peak:.2f} GB, of it moments {whole * 2**30 / passes / 1e9:.2f} GB"
            )
        print(told)
    gap = max(abs(a / b - 1) for a, b in zip(*found, strict=True))
    print(f"largest relative difference of PR between one pass and several: {gap:.1e}")


def timed(work: Callable[[], object], device: str, rounds: int = 3) -> float:
    """The least of some times, after a warm-up."""
    times = []
    for _ in range(rounds + 1):
        if device == "cuda":
            torch.cuda.synchronize()
        start = time.perf_counter()
        work()
        if device == "cuda":
            torch.cuda.synchronize()
        times.append(time.perf_counter() - start)
    return min(times[1:])


@torch.no_grad()
def forward(model: Any, ids: torch.Tensor, device: str) -> None:
    for part in ids.split(BATCH):
        model(part.to(device), use_cache=False)


def measured_rate(device: str, dtype: torch.dtype, n: int) -> float:
    """FLOPs per second of one large product."""
    a = torch.randn(n, n, device=device).to(dtype)
    return 2 * n**3 / timed(lambda: a @ a, device)


def measured_bandwidth(device: str, small: bool) -> float:
    """Bytes per second, read and written, of a copy."""
    a = torch.empty(2**22 if small else 2**30, device=device)
    return 2 * a.nbytes / timed(a.clone, device)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--peak", type=float, default=989, help="TFLOP/s of bfloat16 (an H200 by its data sheet)")
    parser.add_argument("--bandwidth", type=float, default=4800, help="GB/s of memory")
    parser.add_argument("--efficiency", type=float, default=0.4, help="share of the peak that is reached (assumed)")
    parser.add_argument("--check", action="store_true", help="measure a model of 1B size beside the prediction")
    parser.add_argument("--small", action="store_true", help="with --check: a small one, on any machine")
    given = parser.parse_args()
    if given.check:
        check(given.small)
        return
    print(f"At {given.efficiency:g} of {given.peak:g} TFLOP/s, {given.bandwidth:g} GB/s:\n")
    print("\n".join(table(given.efficiency * given.peak * 1e12, given.bandwidth * 1e9, given.efficiency * PEAK64)))


if __name__ == "__main__":
    main()
