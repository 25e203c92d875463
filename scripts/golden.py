"""Every number of every command on fixed seeds, written once and compared after a change that may not move any.

    python scripts/golden.py write before          # in the old checkout (or with PYTHONPATH=old/src)
    python scripts/golden.py write after           # in the new one
    python scripts/golden.py compare before after  # exit status 1 when a number moved by more than 1e-12 or is gone

`write` runs probe (both BatchNorm modes, layers and blocks), demo, all of `reproduce --quick`, lm on a small random model,
depth and imbalance, and every example, each in a process of its own; a part that is already there is not run again. Names
that changed are in `RENAMED`. Text is compared too, but only reported.
"""

import json
import math
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent.parent
MODEL = """
import torch
from torch import nn

class Block(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.conv1, self.norm1 = nn.Conv2d(c, c, 3, padding=1), nn.BatchNorm2d(c)
        self.conv2, self.norm2 = nn.Conv2d(c, c, 3, padding=1), nn.BatchNorm2d(c)
    def forward(self, x):
        return torch.relu(x + self.norm2(self.conv2(torch.relu(self.norm1(self.conv1(x))))))

def fnn():
    torch.manual_seed(0)
    parts = [nn.Flatten()]
    for i in range(5):
        parts += [nn.Linear(784 if i == 0 else 50, 50), nn.BatchNorm1d(50), nn.ReLU()]
    return nn.Sequential(*parts, nn.Linear(50, 10))

def cnn():
    torch.manual_seed(1)
    return nn.Sequential(nn.Conv2d(1, 8, 3, stride=2), nn.ReLU(), *(Block(8) for _ in range(4)),
                         nn.AdaptiveAvgPool2d(4), nn.Flatten(), nn.Linear(128, 10))

def gpt():
    from transformers import GPT2Config, GPT2LMHeadModel
    torch.manual_seed(2)
    return GPT2LMHeadModel(GPT2Config(vocab_size=257, n_embd=32, n_layer=5, n_head=4, n_positions=64,
                                      bos_token_id=0, eos_token_id=0)).eval(), Bytes()

class Bytes:
    def __call__(self, text, **_):
        return {"input_ids": [1 + b for b in text.encode()]}
    def encode(self, text, **_):
        return [1 + b for b in text.encode()]
    def decode(self, ids, **_):
        return bytes(max(0, int(i) - 1) for i in ids).decode("utf-8", "replace")
"""
# Old name → new name, in keys and in options.
RENAMED = {
    "mode": "batchnorm",
    "normalise": "normalize",
    "colour": "color",
    "optimiser": "optimizer",
    "readings": "measurements",
    "shape": "network",
    "linearised": "linearized",
    "lm_normalisation": "lm_normalization",
    "mean_cosine_centred": "mean_cosine_centered",
}
RENAMED_PARTS = {
    "reproduce-linearised": "reproduce-linearized",
    "reproduce-lm_normalisation": "reproduce-lm_normalization",
}
IGNORED = {"provenance", "version", "wall", "seconds", "commit", "folder", "page", "record", "figure", "forecast"}
NUMBER = re.compile(r"[-−]?\d+(?:\.\d+)?(?:e[-+]?\d+)?")


def commands(new: bool) -> dict[str, list[str]]:
    """What is run, by name; options have other names in the code before the change."""
    found = {}
    for net in ("fnn", "cnn"):
        for old, now in (("eval", "running"), ("train", "batch")):
            mode = f"--batchnorm {now}" if new else f"--mode {old}"
            found[f"probe-{net}-{old}"] = f"probe model.py:{net} --per-class 40 {mode} --null --out record.json"
    blocks = "probe model.py:cnn --per-class 40 --sites blocks --reduce mean --logits"
    found["probe-blocks"] = f"{blocks} --weighting classes --out record.json"
    found["demo"] = "demo --quick --out ."
    lm = "lm model.py:gpt --text text.txt --null --length 64 --batch-size 4"
    found["lm"] = f"{lm} --target id,embedding,onehot,shuffled,rank,previous --classes 8 --out record.json"
    found["lm-plain"] = f"{lm} --{'normalize' if new else 'normalise'} none --no-bos --out record.json"
    found["imbalance"] = "imbalance --counts 5000x5,50x5 --E-W 1 --E-H 5 --json"
    found["imbalance-bias"] = f"{found['imbalance']} --bias"
    found["imbalance-tail"] = "imbalance --counts 900,700,500,90,60,8,5 --E-W 2 --E-H 3 --json"
    found["imbalance-model"] = "imbalance --model model.py:cnn --data fashion_mnist_sample --json"
    found["depth"] = "depth --quick --depths 3,5 --epochs 20 --json"
    found["width"] = "width --quick --widths 20,50 --depth 4 --epochs 20 --json"
    found["shape"] = "shape --quick --shapes '50x3; 100x2,20' --epochs 20 --json"
    return {name: shlex.split(words) for name, words in found.items()}


def write(folder: Path) -> None:
    import layerlaw.experiments

    folder = folder.resolve()
    folder.mkdir(exist_ok=True, parents=True)
    command = [sys.executable, "-m", "layerlaw"]
    options = subprocess.run([*command, "probe", "--help"], capture_output=True, text=True, check=True).stdout
    jobs = {name: [*command, *words] for name, words in commands(new="batchnorm" in options).items()}
    for name in layerlaw.experiments.NAMES:
        jobs[f"reproduce-{name}"] = [*command, "reproduce", name, "--quick", "--out", "."]
    source = Path(layerlaw.experiments.__file__).resolve().parents[3]
    for path in sorted((source / "examples").glob("*.py")):
        jobs[f"example-{path.stem}"] = [sys.executable, str(path)]
    environment = os.environ | {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "COLUMNS": "200", "MPLBACKEND": "agg"}
    for name, job in jobs.items():
        place = folder / name
        if (place / "done").exists():
            continue
        place.mkdir(exist_ok=True)
        (place / "model.py").write_text(MODEL)
        rows = [f"Document {i} tells of {i * i} things, and of {'some' * (i % 3)} more.\n\n" * 9 for i in range(60)]
        (place / "text.txt").write_text("".join(rows))
        run = subprocess.run(job, cwd=place, env=environment, capture_output=True, text=True)
        (place / "stdout.txt").write_text(run.stdout)
        (place / "stderr.txt").write_text(run.stderr)
        if run.returncode:
            print(f"{name}: exit status {run.returncode}\n{run.stderr[-2000:]}")
        else:
            (place / "done").touch()
            print(name, flush=True)


def numbers(data: object, path: str, found: dict[str, object]) -> dict[str, object]:
    """All leaves below `data` by their path."""
    if isinstance(data, dict):
        for key, value in data.items():
            if key not in IGNORED:
                numbers(value, f"{path}/{RENAMED.get(key, key)}", found)
    elif isinstance(data, list):
        for i, value in enumerate(data):
            numbers(value, f"{path}/{i}", found)
    else:
        found[path] = data
    return found


def leaves(folder: Path) -> dict[str, object]:
    """What a part left behind: its JSON files, else the numbers it printed."""
    found: dict[str, object] = {}
    for path in sorted(folder.rglob("*.json")):
        if "sweeps" not in path.parts:
            numbers(json.loads(path.read_text()), RENAMED.get(path.stem, path.stem), found)
    text = (folder / "stdout.txt").read_text()
    if text.lstrip().startswith("{"):
        numbers(json.loads(text), "stdout", found)
    elif not found:
        found |= {f"printed/{i}": float(n.replace("−", "-")) for i, n in enumerate(NUMBER.findall(text))}
    return found


def same(a: object, b: object) -> bool:
    if isinstance(a, float | int) and isinstance(b, float | int) and not isinstance(a, bool):
        return math.isclose(a, b, rel_tol=1e-12, abs_tol=1e-14)
    return a == b


def compare(before: Path, after: Path) -> int:
    moved, words, added, compared = 0, 0, 0, 0
    names = {RENAMED_PARTS.get(p.name, p.name): p for p in before.iterdir()}
    for name, old in sorted(names.items()):
        if not (after / name / "done").exists():
            print(f"{name}: not run")
            moved += 1
            continue
        a, b = leaves(old), leaves(after / name)
        for path in sorted(a.keys() | b.keys()):
            compared += 1
            if path in a and path in b and same(a[path], b[path]):
                continue
            if path not in a:
                added += 1
                continue
            text = isinstance(a.get(path, ""), str) and isinstance(b.get(path, ""), str)
            words += text
            moved += not text
            mark = "text" if text else "MOVED"
            print(f"{mark} {name}: {path}: {str(a.get(path, '(none)'))[:300]} → {str(b.get(path, '(none)'))[:300]}")
    print(f"{compared} values compared, {moved} moved or gone, {words} texts changed, {added} new")
    return int(moved > 0)


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["write", folder]:
            write(Path(folder))
        case ["compare", before, after]:
            sys.exit(compare(Path(before), Path(after)))
        case _:
            sys.exit(__doc__)
