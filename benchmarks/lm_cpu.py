"""What measuring a language model costs on a CPU: `python benchmarks/lm_cpu.py MODEL TEXT [--tokens 20480] [--threads 1]`.

Whole calls of `probe_lm` on the text (tokenizing, trials, eight groups, the model's own loss, the record), of a short
text and of as many tokens as are read by default, each against forwards with the head over the same pieces, half of
them before the call and half after it; `--calls ""` leaves them out. Then, interleaved batch by batch: the forward as
the model is and with the head spared (it sees one place of each piece), the latter with moments at every block (one
group, and two groups), and the usual way: all hidden states collected, scikit-learn's LinearRegression on every layer.
Memory is what each way keeps: the moments; the hidden states in float32. PR of both ways is compared. Times are of the
processor, so that other programs disturb them less.
"""

import argparse
import json
import statistics
import time
from pathlib import Path

import numpy as np
import torch
from sklearn.linear_model import LinearRegression

from layerlaw.capture.hooks import Capture
from layerlaw.data import load_text
from layerlaw.lm import anatomy, load, pieces_of, probe_lm
from layerlaw.lm.blocks import find_blocks, run
from layerlaw.lm.loss import Head
from layerlaw.lm.stream import MomentPass, TextPlan
from layerlaw.lm.tasks import NextToken, targets_of
from layerlaw.lm.text_budget import tokens_wanted
from layerlaw.lm.weights import vocabulary_of
from layerlaw.measures.residual import prediction_residuals

CPU = torch.device("cpu")


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("model")
    parser.add_argument("text")
    parser.add_argument("--tokens", type=int, default=20_480)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--batch-size", type=int, default=8)
    parser.add_argument("--calls", default="4096,default", help="tokens of the whole calls, by commas")
    parser.add_argument("--out", type=Path)
    asked = parser.parse_args()
    torch.set_num_threads(asked.threads)
    loaded = load(asked.model, dtype="float32")
    model = loaded.model.eval()
    dry = anatomy.dry_inputs(model, CPU)
    blocks, head = find_blocks(model, dry), Head.of(model, dry)
    text = load_text(asked.text)
    usual_tokens = tokens_wanted(blocks.width, "next")
    calls = {}
    for said in filter(None, asked.calls.split(",")):
        tokens = usual_tokens if said == "default" else int(said)
        calls[f"{tokens} tokens"] = whole_call(loaded, text, tokens, asked.batch_size)
        print(json.dumps(calls), flush=True)
    pieces = pieces_of(text, loaded.tokenizer).cut(wanted=asked.tokens).spread(asked.tokens)
    vocabulary = vocabulary_of(model)
    plan = TextPlan(blocks, tuple(targets_of(["id"], vocabulary, None, torch.ones(vocabulary), 0)))
    one, two = MomentPass(plan, 1), MomentPass(plan, 2)
    task = NextToken((1,))
    kept: dict[str, list[np.ndarray]] = {site.name: [] for site in plan.sites}
    y: list[np.ndarray] = []
    names = ("forward with head", "forward", "one group", "two groups", "collected")
    times: dict[str, list[float]] = {name: [] for name in names}
    for at in range(0, len(pieces.ids), asked.batch_size):
        members = pieces.ids[at : at + asked.batch_size]
        batch = task.batch(members, range(len(members)))
        times["forward with head"].append(timed(lambda b=batch: forward(model, b)))
        with head:
            times["forward"].append(timed(lambda b=batch: forward(model, b)))
            for name, collecting, group in (("one group", one, 0), ("two groups", two, at // asked.batch_size % 2)):
                with hooks(model, plan, collecting.consume) as capture:
                    times[name].append(timed(lambda b=batch, c=collecting, g=group, h=capture: step(c, g, h, b)))
            times["collected"].append(timed(lambda b=batch: collect(model, b, plan, kept)))
        y.append(batch.around[1].numpy().astype(np.float64))
    bare = sum(times["forward"])
    began = time.process_time()
    solved = residuals(one)
    solve_one = time.process_time() - began
    solve_two = timed(lambda: residuals(two))
    began = time.process_time()
    target = np.concatenate(y)
    theirs = []
    for states in kept.values():
        X = np.concatenate(states)
        theirs.append(1 - LinearRegression().fit(X, target).score(X, target))
    fitted = time.process_time() - began
    ours = [added(times, "one group") + solve_one, added(times, "two groups") + solve_two]
    usual = added(times, "collected") + fitted
    moments = sum(site.nbytes for site in one.sites.values())
    states = sum(part.nbytes for site in kept.values() for part in site)
    result = {
        "tokens": len(target),
        "threads": asked.threads,
        "forward_s": round(bare, 2),
        "forward_with_head_s": round(sum(times["forward with head"]), 2),
        "whole call over the forward with head": calls,
        "overhead of the pass, one group": round(statistics.median(ratios(times, "one group")) - 1, 4),
        "overhead with solving, one group": round(ours[0] / bare, 4),
        "overhead with solving, two groups and held out": round(ours[1] / bare, 4),
        "overhead of collecting and scikit-learn": round(usual / bare, 4),
        "measuring, times faster": round(usual / ours[0], 2),
        "moments_mb": round(moments / 1e6, 1),
        "hidden_states_mb": round(states / 1e6, 1),
        "times less memory": round(states / moments, 1),
        "worst difference of PR": float(max(abs(a.in_sample - b) for a, b in zip(solved, theirs, strict=True))),
    }
    print(json.dumps(result, indent=1))
    if asked.out:
        asked.out.write_text(json.dumps(result, indent=1))


def whole_call(loaded, text, tokens, batch_size) -> dict[str, float]:
    """Processor seconds of the forwards with the head and of one call, and their ratio."""
    pieces = pieces_of(text, loaded.tokenizer).cut(wanted=tokens).spread(tokens)
    parts = [pieces.ids[at : at + batch_size] for at in range(0, len(pieces.ids), batch_size)]
    batches = [NextToken((1,)).batch(part, range(len(part))) for part in parts]
    if len(batches) < 2:  # of so short a text: all before the call, and all after it
        batches = 2 * batches
    half, times = len(batches) // 2, 1 + (len(parts) < 2)
    before = timed(lambda: [forward(loaded.model, batch) for batch in batches[:half]])
    call = timed(lambda: probe_lm(loaded, pieces_of(text, tokens=tokens), batch_size=batch_size, progress=False))
    after = timed(lambda: [forward(loaded.model, batch) for batch in batches[half:]])
    bare = (before + after) / times
    return {"forward_with_head_s": round(bare, 2), "call_s": round(call, 2), "ratio": round(call / bare, 3)}


def forward(model, batch) -> None:
    with torch.no_grad():
        model(**batch.inputs, use_cache=False)


def hooks(model, plan, consume):
    capture = plan.capture()
    return Capture(model, capture, capture.sites, reduce=None, consume=consume)


def step(collecting, group, capture, batch) -> None:
    collecting.begin(group, batch)
    run(capture, {**batch.inputs, "use_cache": False}, where="the benchmark")


def collect(model, batch, plan, kept) -> None:
    with hooks(model, plan, lambda site, hidden: keep(site, hidden, batch, plan, kept)) as capture:
        run(capture, {**batch.inputs, "use_cache": False}, where="the benchmark")


def keep(site, hidden, batch, plan, kept) -> None:
    rows = hidden.reshape(-1, hidden.shape[-1])[batch.rows]
    kept[site.name].append(plan.normalized(rows).float().numpy())


def residuals(owner) -> list:
    """PR of the token's id at every site; ends the pass."""
    owner.settle(CPU)
    found = [prediction_residuals(m, owner.targets, owner.columns, where="here") for m in owner.sites.values()]
    return [one["id"] for one in found]


def added(times, name) -> float:
    """Seconds beyond the forwards: the median batch's, since other programs disturb single ones."""
    more = [a - b for a, b in zip(times[name], times["forward"], strict=True)]
    return statistics.median(more) * len(more)


def ratios(times, name) -> list[float]:
    return [a / b for a, b in zip(times[name], times["forward"], strict=True)]


def timed(work) -> float:
    began = time.process_time()
    work()
    return time.process_time() - began


if __name__ == "__main__":
    main()
