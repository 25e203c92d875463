"""What measuring a language model costs on a GPU, and how exact it is: `python benchmarks/lm_gpu.py [--out FOLDER]`.

Random models of Llama's kind (bfloat16 and float32), batches of 64 × 512 random tokens. Time: of ten batches one after the
other, as a text is read, the bare forward (without the head) and the forward with moments at every block, in turns; once
more with the product of every batch added in float64, where sums grow in float32 parts. Error: the largest relative
difference of PR between this measurement and products in float64 of the same hidden states; random tokens have PR ≈ 1, so
SmolLM2 on wikitext-2 is measured too where LAYERLAW_DATA has both. `--dtype bfloat16 --width 576 --width 2048` leaves out
the rest (a minute).
"""

import argparse
import copy
import json
import statistics
import time
from dataclasses import replace
from functools import partial
from pathlib import Path

import torch
import transformers as tf

from layerlaw.capture.hooks import Capture
from layerlaw.data import load_text
from layerlaw.errors import DataError
from layerlaw.experiments.next_token.language import real_model
from layerlaw.experiments.setting import Setting
from layerlaw.lm import anatomy, pieces_of
from layerlaw.lm.blocks import find_blocks, run
from layerlaw.lm.stream import MomentPass, TextPlan
from layerlaw.lm.tasks import NextToken, targets_of
from layerlaw.measures.residual import prediction_residuals
from layerlaw.stats.moments import worth_growing

SIZES = (  # width, depth, heads, heads of keys, width of the MLP; the first has SmolLM2-135M's shape, the cheapest forward
    (576, 30, 9, 3, 1536),
    (576, 30, 9, 9, 2304),
    (2048, 16, 32, 32, 8192),
    (4096, 8, 32, 32, 16384),
)
VOCABULARY, BATCH, LENGTH, BATCHES = 32_000, 64, 512, 10
WARM, ROUNDS = 1, 7  # of all batches; the first is not timed
CUDA, CUDA_0 = torch.device("cuda"), torch.device("cuda:0")
TASK = NextToken((1,))


class Doubled(TextPlan):
    """The same in float64: what the products are compared with."""

    def normalized(self, X):
        return super().normalized(X.double())


class Alone(MomentPass):
    """The product of every batch is added in float64."""

    def _grows(self, states):
        return False


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--dtype", action="append", choices=("bfloat16", "float32"))
    parser.add_argument("--width", action="append", type=int, choices=sorted({width for width, *_ in SIZES}))
    parser.add_argument("--only-real", action="store_true", help="SmolLM2 alone")
    parser.add_argument("--out", type=Path)
    asked = parser.parse_args()
    about = {"device": torch.cuda.get_device_name(), "torch": torch.__version__, "tokens": BATCH * LENGTH, "rows": []}
    for name in asked.dtype or ("bfloat16", "float32"):
        dtype = getattr(torch, name)
        sizes = [size for size in SIZES if not asked.only_real and (not asked.width or size[0] in asked.width)]
        for work in (*((random_model, *size) for size in sizes), (real_text,)):
            about["rows"].append(work[0](*work[1:], dtype))
            if asked.out is not None:  # one by one: what is done is not lost
                asked.out.mkdir(parents=True, exist_ok=True)
                (asked.out / "lm_gpu.json").write_text(json.dumps(about, indent=1))


def random_model(width: int, depth: int, heads: int, keys: int, inner: int, dtype: torch.dtype) -> dict:
    torch.manual_seed(0)
    sizes = {"hidden_size": width, "intermediate_size": inner, "num_hidden_layers": depth}
    attention = {"num_attention_heads": heads, "num_key_value_heads": keys}
    with CUDA:
        model = tf.LlamaModel(tf.LlamaConfig(vocab_size=VOCABULARY, **sizes, **attention)).to(dtype).eval()
    generator = torch.Generator().manual_seed(0)
    texts = [list(torch.randint(0, VOCABULARY, (BATCH, LENGTH), generator=generator)) for _ in range(BATCHES)]
    return compared(model, f"random, {depth} blocks of {width}, MLP {inner}", texts, VOCABULARY)


def real_text(dtype: torch.dtype) -> dict:
    try:
        loaded = real_model(Setting(device="cuda"))
        text = load_text("wikitext-2").documents
    except DataError as error:
        return {"model": f"SmolLM2 not measured: {error}"}
    ids = pieces_of(text, loaded.tokenizer, length=LENGTH).cut(wanted=BATCHES * BATCH * LENGTH).ids
    texts = [list(ids[i * BATCH : (i + 1) * BATCH]) for i in range(BATCHES)]
    vocabulary = anatomy.vocabulary_of(loaded.model)
    row = compared(loaded.model.model.to(dtype), "SmolLM2-135M on wikitext-2", texts, vocabulary)
    loaded.model.float()
    return row


def compared(model, name: str, texts: list, vocabulary: int) -> dict:
    blocks = find_blocks(model, anatomy.dry_inputs(model, CUDA))
    targets = tuple(targets_of(["id"], vocabulary, None, torch.ones(vocabulary), 0))
    plan = TextPlan(blocks, targets)
    mine, alone, exact = MomentPass(plan, 1), Alone(plan, 1), MomentPass(Doubled(blocks, targets), 1)
    batches = [TASK.batch(pieces, range(BATCH)) for pieces in texts]
    for collecting in (mine, alone, exact):
        measure(collecting, model, batches)
    ways = [
        partial(forward, model, batches),
        *(partial(measure, kind(plan, 1), model, batches) for kind in (MomentPass, Alone)),
    ]
    times: dict[partial, list[float]] = {way: [] for way in ways}
    for _ in range(WARM + ROUNDS):
        for way, seconds in times.items():
            seconds.append(timed(way) / len(batches))
    bare, together, single = (statistics.median(seconds[WARM:]) for seconds in times.values())
    dtype = next(model.parameters()).dtype
    row = {
        "model": name,
        "dtype": str(dtype).removeprefix("torch."),
        "forward_ms": round(1e3 * bare, 2),
        "with_moments_ms": round(1e3 * together, 2),
        "overhead": round(together / bare - 1, 4),
        "overhead_with_every_product_in_float64": round(single / bare - 1, 4),
        "moments_mib": round(sum(site.nbytes for site in mine.sites.values()) / 2**20),
        "parts_ms": parts(mine, blocks.width, dtype),
    }
    ours, alone_too, reference = map(residuals, (mine, alone, exact))
    row |= {"worst_error_of_PR": worst(ours, reference), "worst_error_alone": worst(alone_too, reference)}
    print(row, flush=True)
    return row


def parts(collecting, width: int, dtype: torch.dtype) -> dict:
    """Milliseconds at all blocks together of what a measurement is made of, each alone."""
    hidden = torch.randn(BATCH * LENGTH, width, device=CUDA).to(dtype)
    here, sites = collecting._here[CUDA_0], [emptied(site) for site in collecting.sites.values()]
    X = collecting.plan.normalized(hidden.index_select(0, here.rows))

    works = {
        "norm": lambda: collecting.plan.normalized(hidden),
        "rows": lambda: hidden.index_select(0, here.rows),
        "products": lambda: sites[1].update(0, X, here.columns),
    }
    if worth_growing(hidden):
        works |= {
            "zeros": lambda: hidden.index_fill_(0, here.unused, 0),
            "products, in parts": lambda: sites[1].grow(0, hidden, here.all_columns, len(sites)),
        }
    found = {name: round(1e3 * len(sites) * repeated(work), 3) for name, work in works.items()}
    batch = collecting._batch
    collecting = copy.copy(collecting)
    collecting.seen = {offset: seen.clone() for offset, seen in collecting.seen.items()}
    found["begin"] = round(1e3 * repeated(lambda: collecting.begin(0, batch)), 3)
    found["codes"] = round(1e3 * repeated(lambda: collecting._on(CUDA_0)), 3)
    return found


def emptied(site):
    return replace(site, packed=torch.zeros_like(site.packed), cross=torch.zeros_like(site.cross), growing=None)


def repeated(work, times: int = 20) -> float:
    work()
    return timed(lambda: [work() for _ in range(times)]) / times


def forward(model, batches) -> None:
    with torch.no_grad():
        for batch in batches:
            model(**batch.to(CUDA).inputs, use_cache=False)


def measure(collecting, model, batches) -> None:
    sites = collecting.plan.capture()
    with Capture(model, sites, sites.sites, reduce=None, consume=collecting.consume) as capture:
        for batch in batches:
            collecting.begin(0, batch)
            run(capture, {**batch.to(CUDA).inputs, "use_cache": False}, where="the benchmark")


def timed(work, *arguments) -> float:
    torch.cuda.synchronize()
    began = time.perf_counter()
    work(*arguments)
    torch.cuda.synchronize()
    return time.perf_counter() - began


def residuals(owner) -> list[float]:
    """PR of the token's id at every site; ends the pass."""
    owner.settle(CUDA)
    found = [prediction_residuals(m, owner.targets, owner.columns, where="here") for m in owner.sites.values()]
    return [one["id"].in_sample for one in found]


def worst(mine: list[float], exact: list[float]) -> float:
    return max(abs(a / b - 1) for a, b in zip(mine, exact, strict=True))


if __name__ == "__main__":
    main()
