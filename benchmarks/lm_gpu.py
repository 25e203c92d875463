"""What measuring a language model costs on a GPU, and how exact it is: `python benchmarks/lm_gpu.py [FOLDER]`.

Random models of Llama's kind (bfloat16 and float32), batches of 64 × 512 random tokens. Time: median over batches of the
bare forward (without the head) and of the forward with moments at every block, interleaved. Error: the largest relative
difference of PR between this measurement and products in float64 of the same hidden states; random tokens have PR ≈ 1, so
SmolLM2 on wikitext-2 is measured too where LAYERLAW_DATA has both.
"""

import json
import statistics
import sys
import time
from dataclasses import replace
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

SIZES = ((576, 30, 9), (2048, 16, 32), (4096, 8, 32))  # width, depth, heads
VOCABULARY, BATCH, LENGTH, BATCHES = 32_000, 64, 512, 8
CUDA, CUDA_0 = torch.device("cuda"), torch.device("cuda:0")
TASK = NextToken((1,))


class Doubled(TextPlan):
    """The same in float64: what the products are compared with."""

    def normalized(self, X):
        return super().normalized(X.double())


def main() -> None:
    rows = []
    for dtype in (torch.bfloat16, torch.float32):
        rows += [random_model(*size, dtype) for size in SIZES]
        rows.append(real_text(dtype))
    if len(sys.argv) > 1:
        about = {"device": torch.cuda.get_device_name(), "torch": torch.__version__, "tokens": BATCH * LENGTH}
        Path(sys.argv[1], "lm_gpu.json").write_text(json.dumps({**about, "rows": rows}, indent=1))


def random_model(width: int, depth: int, heads: int, dtype: torch.dtype) -> dict:
    torch.manual_seed(0)
    sizes = {"hidden_size": width, "intermediate_size": 4 * width, "num_hidden_layers": depth}
    attention = {"num_attention_heads": heads, "num_key_value_heads": heads}
    with CUDA:
        model = tf.LlamaModel(tf.LlamaConfig(vocab_size=VOCABULARY, **sizes, **attention)).to(dtype).eval()
    generator = torch.Generator().manual_seed(0)
    texts = [list(torch.randint(0, VOCABULARY, (BATCH, LENGTH), generator=generator)) for _ in range(BATCHES)]
    return compared(model, f"random, {depth} blocks of {width}", texts, VOCABULARY)


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
    mine, exact = MomentPass(TextPlan(blocks, targets), 1), MomentPass(Doubled(blocks, targets), 1)
    plain, measured = [], []
    plan = mine.plan.capture()
    for pieces in texts:
        batch = TASK.batch(pieces, range(BATCH)).to(CUDA)
        plain.append(timed(forward, model, batch))
        for collecting, times in ((mine, measured), (exact, [])):
            with Capture(model, plan, plan.sites, reduce=None, consume=collecting.consume) as capture:
                times.append(timed(step, collecting, capture, batch))
    a, b = statistics.median(plain[2:]), statistics.median(measured[2:])
    row = {
        "model": name,
        "dtype": str(next(model.parameters()).dtype).removeprefix("torch."),
        "forward_ms": round(1e3 * a, 2),
        "with_moments_ms": round(1e3 * b, 2),
        "overhead": round(b / a - 1, 4),
        "worst_error_of_PR": worst(mine, exact),
        "moments_mib": round(sum(site.nbytes for site in mine.sites.values()) / 2**20),
        "parts_ms": parts(mine, blocks.width, next(model.parameters()).dtype),
    }
    print(row, flush=True)
    return row


def parts(collecting, width: int, dtype: torch.dtype) -> dict:
    """Milliseconds at all blocks together of what a measurement is made of, each alone."""
    hidden = torch.randn(BATCH * LENGTH, width, device=CUDA).to(dtype)
    rows, columns, site = collecting._rows[CUDA_0], collecting._values[CUDA_0], list(collecting.sites.values())[1]
    X = collecting.plan.normalized(hidden.index_select(0, rows))
    product, cross = torch.zeros(width, width, device=CUDA), torch.zeros(width, columns.width, device=CUDA)
    site = replace(site, packed=torch.zeros_like(site.packed), cross=torch.zeros_like(site.cross))
    works = {
        "rows": lambda: hidden.index_select(0, rows),
        "norm": lambda: collecting.plan.normalized(X),
        "products": lambda: site.update(0, X, columns),
        "of which added": lambda: site._add(0, product, cross),
    }
    return {name: round(1e3 * len(collecting.sites) * repeated(work), 3) for name, work in works.items()}


def repeated(work, times: int = 20) -> float:
    work()
    return timed(lambda: [work() for _ in range(times)]) / times


def forward(model, batch) -> None:
    with torch.no_grad():
        model(**batch.inputs, use_cache=False)


def step(collecting, capture, batch) -> None:
    collecting.begin(0, batch)
    run(capture, {**batch.inputs, "use_cache": False}, where="the benchmark")


def timed(work, *arguments) -> float:
    torch.cuda.synchronize()
    began = time.perf_counter()
    work(*arguments)
    torch.cuda.synchronize()
    return time.perf_counter() - began


def worst(mine, exact) -> float:
    errors = []
    for pair in zip(mine.sites.values(), exact.sites.values(), strict=True):
        values = []
        for moments, owner in zip(pair, (mine, exact), strict=True):
            moments = replace(moments, packed=moments.packed.clone(), cross=moments.cross.clone())
            moments.settle(owner.targets)
            values.append(prediction_residuals(moments, owner.targets, owner.columns, where="here")["id"].in_sample)
        errors.append(abs(values[0] / values[1] - 1))
    return max(errors)


if __name__ == "__main__":
    main()
