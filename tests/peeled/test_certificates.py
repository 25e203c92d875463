"""The solver certifies itself: on problems that are hard for it, and whatever the processor rounds like."""

import dataclasses
import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from peeled_oracle import dense_loss

import layerlaw.peeled as lp
from layerlaw.peeled.counts import grouped
from layerlaw.peeled.logits import CERTIFIED, Logits, gap, gap_penalized, slope, with_best_bias

SCRIPT = Path(__file__).resolve().parents[2] / "scripts" / "peeled_certificates.py"
# Problems of the script that the first L-BFGS and Newton leave above 1e-10 with one rounding or another, then others
HARD = [134, 178, 349, 366, 705, 778, 859, 881, 885, 1110, 1130, 1375, 1597, 1783, 1854, 2186, 2219, 2834, 3303, 3667]
PROBLEMS = [*HARD, *range(40, 70)]
# What OpenBLAS and PyTorch take the processor for
PROCESSORS = [
    ("Haswell", "default"),
    ("SkylakeX", "avx2"),
    ("Zen", "default"),
    ("Prescott", "avx2"),
    ("Sandybridge", "default"),
]


def rows(env: dict[str, str]) -> list[dict]:
    """What a process of its own says about all problems."""
    code = (
        f"import json, sys; sys.path.insert(0, {str(SCRIPT.parent)!r}); from peeled_certificates import solved; "
        f"print(json.dumps([solved(i) for i in {PROBLEMS}]))"
    )
    environment = {**os.environ, "OMP_NUM_THREADS": "1", **env}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=False)
    if done.returncode < 0:
        pytest.skip(f"this processor cannot run {env}: the process ended with signal {-done.returncode}")
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.fixture(scope="module")
def here() -> list[dict]:
    return rows({})


@pytest.mark.parametrize(("blas", "aten"), PROCESSORS)
def test_every_processor_certifies_the_same_optimum(here: list[dict], blas: str, aten: str) -> None:
    for one, other in zip(here, rows({"OPENBLAS_CORETYPE": blas, "ATEN_CPU_CAPABILITY": aten}), strict=True):
        assert max(one["gap"], other["gap"]) <= CERTIFIED
        if "budget" in one["kind"]:  # the loss of a penalized problem may give way to the norm
            assert abs(one["loss"] - other["loss"]) <= one["gap"] + other["gap"] + 1e-14
        assert one["phases"] == other["phases"]


def test_the_script_goes_on_where_it_was_stopped(tmp_path: Path) -> None:
    out = tmp_path / "certificates.jsonl"
    command = [sys.executable, str(SCRIPT), "--out", str(out), "--problems"]
    for problems in (4, 9):
        said = subprocess.run([*command, str(problems)], capture_output=True, text=True, check=True).stdout
    assert [json.loads(line)["i"] for line in out.read_text().splitlines()] == list(range(9))
    last = said.splitlines()[-1].split(" | ")
    assert last[0] == "| all"
    assert (last[1], last[3]) == ("9", "0")


def test_a_result_that_is_not_certified_says_so() -> None:
    s = lp.solve([100, 30, 10], E_W=1, E_H=1)
    assert s.certified
    assert s.to_dict()["certified"]
    assert "ertified" not in str(s)
    poor = dataclasses.replace(s, gap=3e-7)
    assert not poor.certified
    assert str(poor).endswith("Not certified: the loss may be up to 3.0e-07 above the minimum.")


@pytest.mark.parametrize("kind", ["ce", "mse"])
@pytest.mark.parametrize("bias", [False, True])
def test_the_certificate_bounds_what_is_left_also_away_from_the_optimum(bias: bool, kind) -> None:
    rng = np.random.default_rng(1)
    for counts in ({9: 2, 5: 1, 2: 3}, {40: 1, 8: 1, 3: 1, 1: 1}):
        best = lp.solve(counts, E_W=0.7, E_H=0.7, loss=kind, bias=bias)
        for shake in 10.0 ** np.arange(-7, 0):
            z, T, b = (x + shake * rng.standard_normal(x.shape) for x in (best.value.z, best.value.T, best.value.b))
            away = Logits(np.where(best.groups.classes > 1, np.abs(z), 0.0), T, b if bias else best.value.b)
            scale = min(1.0, best.K * 0.7 / away.nuclear(best.groups))
            away = Logits(scale * away.z, scale * away.T, away.b)
            left = slope(best.groups, away, kind).loss - best.loss
            assert left <= gap(best.groups, away, 0.7, kind, bias=bias) + 1e-15


@pytest.mark.parametrize("bias", [False, True])
def test_the_penalized_certificate_bounds_what_is_left(bias: bool) -> None:
    rng, groups, penalty = np.random.default_rng(2), grouped({40: 1, 8: 2, 3: 1, 1: 1}), 0.03
    s = lp.solve_penalized({40: 1, 8: 2, 3: 1, 1: 1}, lambda_W=penalty, lambda_H=penalty, bias=bias)

    def value(logits: Logits) -> float:
        return slope(groups, logits).loss + penalty * logits.nuclear(groups)

    for shake in 10.0 ** np.arange(-7, 1):
        z, T, b = (x + shake * rng.standard_normal(x.shape) for x in (s.value.z, s.value.T, s.value.b))
        away = Logits(np.where(groups.classes > 1, np.abs(z), 0.0), T, b if bias else s.value.b)
        assert value(away) - value(s.value) <= gap_penalized(groups, away, penalty, bias=bias) + 1e-15


@pytest.mark.parametrize("far", [0.0, 1.0, 30.0])
def test_the_best_bias_is_found_to_the_last_digit_of_the_rarest_class(far: float) -> None:
    rng, groups = np.random.default_rng(3), grouped({10**7: 3, 5000: 40, 70: 2, 3: 1})
    logits = Logits(rng.uniform(0, 4, 4) * (groups.classes > 1), rng.normal(size=(4, 4)), far * rng.normal(size=4))
    best = with_best_bias(groups, logits)
    assert np.abs(slope(groups, best).bias(groups) / groups.shares).max() < 1e-12
    assert slope(groups, best).loss <= slope(groups, logits).loss
    assert (best.z == logits.z).all()
    assert (best.T == logits.T).all()


def test_a_hard_case_that_needs_a_smaller_face() -> None:
    counts = {15: 7, 11: 4, 29: 1, 17: 3, 19: 7, 4: 2, 26: 4}
    c = 0.04786812252653985
    s = lp.solve(counts, E_W=c, E_H=c, bias=True)
    assert s.certified
    assert s.gap <= 1e-10
    assert s.rank == 4
    assert s.loss == pytest.approx(3.1867745350022534, abs=1e-10)  # no more than the certificate promises
    Z = s.logits
    loss, G = dense_loss(s.groups.sizes[s.groups.members], Z)  # by the definition, without groups
    assert loss == pytest.approx(s.loss, rel=1e-13)
    assert G.sum(0) == pytest.approx(0, abs=1e-10)
