"""What lenses cost beside the model's own head: `python benchmarks/lens.py MODEL TEXT [--tokens 2048] [--threads 1]`.

Every batch is timed in turn: the head alone on the states of the last block that the lens reads (its matrix product, as the
model calls it), the logit lens reading the same tokens at every site, the forward, and the forward with moments at every
block, without and with the lens. The ratios are of the lens to the head on as many states, and of all that the lens adds to
a pass to the head on all tokens of the text.
"""

import argparse
import json
import statistics
import time
from pathlib import Path

import torch

from layerlaw.capture.hooks import Capture
from layerlaw.data import load_text
from layerlaw.lm import anatomy, find_blocks, load, pieces_of
from layerlaw.lm.blocks import run
from layerlaw.lm.lens import Lens, StateReader
from layerlaw.lm.loss import Head, every_nth
from layerlaw.lm.stream import MomentPass, TextPlan
from layerlaw.lm.tasks import NextToken, targets_of
from layerlaw.lm.weights import vocabulary_of

CPU = torch.device("cpu")


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("model")
    parser.add_argument("text")
    parser.add_argument("--tokens", type=int, default=8192)
    parser.add_argument("--length", type=int, default=256)
    parser.add_argument("--batch-size", type=int, default=8)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--out", type=Path)
    asked = parser.parse_args()
    torch.set_num_threads(asked.threads)
    torch.set_grad_enabled(False)
    loaded = load(asked.model, dtype="float32")
    model = loaded.model.eval()
    dry = anatomy.dry_inputs(model, CPU)
    blocks, head = find_blocks(model, dry), Head.of(model, dry)
    readout = StateReader.of(model, blocks, head, dry)
    cut = pieces_of(load_text(asked.text), loaded.tokenizer, length=asked.length).cut(wanted=asked.tokens)
    pieces = cut.spread(asked.tokens).dealt(1)
    plan = TextPlan(blocks, tuple(targets_of(["id"], vocabulary_of(model), None, torch.ones(vocabulary_of(model)), 0)))
    task, times = NextToken((1,)), {name: [] for name in ("head", "lens", "forward", "plain", "read")}
    plain, read = MomentPass(plan, 1), MomentPass(plan, 1, lens=Lens.of("logit", readout, plan, pieces, "next", None))
    step, states, tokens = read.lens.step, 0, 0
    with head:
        for at in range(0, len(pieces.ids), asked.batch_size):
            numbers = range(at, min(at + asked.batch_size, len(pieces.ids)))
            batch = task.batch([pieces.ids[i] for i in numbers], numbers)
            chosen = batch.rows[every_nth(batch, numbers, step)]
            times["forward"].append(timed(lambda b=batch: model(**b.inputs, use_cache=False)))
            rows = head.last.reshape(-1, blocks.width)[chosen]
            times["head"].append(timed(lambda r=rows: alone(head, r)))
            told = batch.around[1][: len(rows)]
            times["lens"].append(timed(lambda r=rows, t=told: readout.read(r, t)))
            for name, way in (("plain", plain), ("read", read)):
                times[name].append(timed(lambda w=way, b=batch, n=numbers: pass_over(model, plan, w, b, n)))
            states, tokens = states + len(rows), tokens + len(batch.rows)
        times["read"][-1] += timed(lambda: read.lens.settle(blocks.width, CPU))
    assert not read.lens.failed, read.lens.failed
    sites, each = len(plan.sites), sum(times["head"]) / states
    added = sum(times["read"]) - sum(times["plain"])
    result = {
        "tokens": tokens,
        "states read at each of the sites": [states, sites],
        "threads": asked.threads,
        "head, µs per state": round(1e6 * each),
        "lens, µs per state": round(1e6 * sum(times["lens"]) / states),
        "lens over head, on the same states": round(statistics.median(ratio(times, "lens", "head")), 3),
        "lens in the pass over head, on the same states": round(added / (sites * sum(times["head"])), 3),
        "lens in the pass over the head on all tokens": round(added / (tokens * each), 3),
        "lens in the pass over forward": round(added / sum(times["forward"]), 3),
    }
    print(json.dumps(result, indent=1, ensure_ascii=False))
    if asked.out:
        asked.out.write_text(json.dumps(result, indent=1, ensure_ascii=False))


def alone(head, rows) -> None:
    with head.whole():
        head.module(rows[None])


def pass_over(model, plan, way, batch, numbers) -> None:
    way.begin(0, batch)
    if way.lens is not None:
        way.lens.begin(0, batch, numbers)
    capture = plan.capture()
    with Capture(model, capture, capture.sites, reduce=None, consume=way.consume) as hooks:
        run(hooks, {**batch.inputs, "use_cache": False}, where="the benchmark")


def ratio(times, a, b) -> list[float]:
    return [x / y for x, y in zip(times[a], times[b], strict=True)]


def timed(work) -> float:
    """Seconds of a processor: other programs do not count."""
    began = time.process_time()
    work()
    return time.process_time() - began


if __name__ == "__main__":
    main()
