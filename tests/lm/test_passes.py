"""Where second moments of all blocks do not fit the memory, the text is read several times: same record, told before."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from language_models import DEPTH, WIDTH, family, probed, walks

import layerlaw as ll
from layerlaw.lm.recording import passes_over
from layerlaw.lm.text_budget import site_bytes

SITES = DEPTH + 1


def gib(sites: float, groups: int = 8, columns: int = 1, classes: int = 0) -> float:
    """Memory that holds so many sites."""
    half = WIDTH * (WIDTH + 1) // 2
    frequent = half + WIDTH * (1 + classes) if classes else 0
    return sites * 8 * (groups * (half + WIDTH * (columns + 1)) + frequent) / 2**30


def assert_same(one: ll.Record, other: ll.Record) -> None:
    assert [site.name for site in one.sites] == [site.name for site in other.sites]
    for a, b in zip(one.sites, other.sites, strict=True):
        assert a.values.keys() == b.values.keys()
        assert a.values == pytest.approx(b.values, rel=1e-12, abs=1e-14, nan_ok=True)
        assert a.left_out.keys() == b.left_out.keys()
        for name, values in a.left_out.items():
            assert values == pytest.approx(b.left_out[name], rel=1e-12)
        assert a.plane == b.plane
    assert one.counts == other.counts
    assert one.plane_labels == other.plane_labels
    for key in ("tokens", "groups", "loss", "loss_tokens", "lens"):
        assert one.settings.get(key) == other.settings.get(key)
    for a, b in zip(one.parts, other.parts, strict=True):
        assert (a.layer, a.kind, a.module) == (b.layer, b.kind, b.module)
        assert a.before == pytest.approx(b.before, rel=1e-12)
        assert a.values == pytest.approx(b.values, rel=1e-12)


@pytest.mark.parametrize(
    "how",
    [
        {},
        {"targets": "embedding,previous"},
        {"classes": 10},
        {"words": [7, 9]},
        {"lens": "logit"},
        {"null": True, "classes": 5},
        {"sites": "sub-blocks", "lens": "logit", "words": [7]},
        {"normalize": "none"},
    ],
    ids=str,
)
def test_several_passes_give_the_record_of_one(how: dict[str, Any]) -> None:
    model = family("llama")
    whole = probed(model, walks(), groups=8, **how)
    assert not any("passes over the text" in note for note in whole.notes)
    parted = probed(model, walks(), groups=8, memory_gib=gib(1.5, classes=how.get("classes", 0)), **how)
    assert any("passes over the text" in note for note in parted.notes)
    assert_same(whole, parted)


def test_as_many_passes_as_said() -> None:
    labels: list[str] = []

    def progress(items: Any, label: str, total: int | None) -> Iterator[Any]:
        labels.append(label)
        yield from items

    model, calls = family("llama"), []
    model.register_forward_hook(lambda *_: calls.append(1))
    record = probed(model, walks(), groups=8, memory_gib=gib(2), progress=progress, batch_size=64)
    count = -(-SITES // 2)
    assert labels == [f"tokens, pass {i + 1} of {count}" for i in range(count)]
    note = next(note for note in record.notes if "passes over the text" in note)
    assert note.startswith(f"Measured in {count} passes over the text, at most 2 of {SITES} sites in each: ")
    once: list[int] = []
    other = family("llama")
    other.register_forward_hook(lambda *_: once.append(1))
    probed(other, walks(), groups=8, batch_size=64)
    batches = 8  # of 64 pieces, one for each group
    assert len(calls) - len(once) == (count - 1) * batches


def test_a_linear_lens_has_one_pass() -> None:
    record = probed(family("llama"), walks(), groups=8, lens="linear", memory_gib=gib(1))
    assert not any("passes over the text" in note for note in record.notes)


class OfWidth:
    """As much of a plan as its memory depends on."""

    def __init__(self, layers: int, d: int) -> None:
        self.sites = tuple(type("Named", (), {"name": str(i)}) for i in range(layers + 1))
        self.blocks = type("Blocks", (), {"width": d})
        self.targets = (type("Target", (), {"columns": 1}),)
        self.frequent = None


def test_seventy_billion_parameters() -> None:
    plan: Any = OfWidth(80, 8192)
    assert 81 * site_bytes(plan, 1) == pytest.approx(4 * 81 * 8192**2, rel=1e-3)  # 22 GB
    passes = passes_over(plan, 1, 8.0, None)
    assert [len(names) for names in passes] == [27, 27, 27]
    assert [name for names in passes for name in names] == [site.name for site in plan.sites]
    assert len(passes_over(plan, 1, 24.0, None)) == 1
    assert len(passes_over(plan, 8, 24.0, None)) == 8
    assert len(passes_over(plan, 8, 1e-6, None)) == 81


SCRIPT = """
import sys
import torch
from language_models import family, probed, walks
torch.distributed.init_process_group("gloo")
record = probed(family("llama"), walks(), groups=8, classes=5, memory_gib=float(sys.argv[2]))
record.save(f"{sys.argv[1]}/{torch.distributed.get_rank()}.json")
torch.distributed.destroy_process_group()
"""


def test_two_processes_read_the_text_as_often(tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(SCRIPT, encoding="utf-8")
    memory = gib(2, classes=5)
    where = f"{Path(__file__).parent}:{os.environ.get('PYTHONPATH', '')}"
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node=2"]
    done = subprocess.run(
        [*command, str(tmp_path / "script.py"), str(tmp_path), str(memory)],
        env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": where},
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    alone = probed(family("llama"), walks(), groups=8, classes=5, memory_gib=memory)
    for rank in range(2):
        record = ll.Record.load(tmp_path / f"{rank}.json")
        for a, b in zip(alone.sites, record.sites, strict=True):
            assert a.values == pytest.approx(b.values, rel=1e-9)
