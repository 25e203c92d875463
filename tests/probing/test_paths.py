"""The path of one prediction: D of every sample against NumPy, its mean, decision layers, images, bad input."""

from __future__ import annotations

import json
import math
from dataclasses import asdict
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import layerlaw as ll
from layerlaw.errors import CaptureError, FeatureError, InputError
from layerlaw.measures.separation import auroc
from layerlaw.probing.paths import Paths, as_image, check_decided, sample_paths
from layerlaw.sheet import sheet_from_dict


def network(dtype: torch.dtype = torch.float64) -> nn.Sequential:
    torch.manual_seed(0)
    layers = [part for _ in range(3) for part in (nn.Linear(9, 9), nn.Tanh())]
    return nn.Sequential(*layers, nn.Linear(9, 3)).to(dtype)


def samples(n: int = 90, seed: int = 0, dtype: torch.dtype = torch.float64) -> tuple[Tensor, Tensor]:
    g = torch.Generator().manual_seed(seed)
    y = (torch.arange(n) ** 2) % 3 if seed else torch.arange(n) % 3
    places = torch.randn(3, 9, generator=torch.Generator().manual_seed(5))
    return (places[y] + torch.randn(n, 9, generator=g)).to(dtype), y


def features(net: nn.Sequential, x: Tensor) -> list[np.ndarray]:
    out = [x]
    for part in net:
        x = part(x)
        if isinstance(part, nn.Tanh):
            out.append(x)
    return [f.detach().numpy() for f in out]


def means_of(f: np.ndarray, y: np.ndarray) -> np.ndarray:
    return np.stack([f[y == k].mean(0) for k in range(3)])


@pytest.mark.parametrize("held_out", [False, True])
def test_d_of_a_sample_and_its_nearest_center_are_those_of_numpy(held_out: bool) -> None:
    net, (x, y) = network(), samples()
    xt, yt = samples(50, seed=2) if held_out else (x, y)
    paths = sample_paths(net, (x, y), test=(xt, yt) if held_out else None, progress=False)
    for j, (f, g) in enumerate(zip(features(net, x), features(net, xt), strict=True)):
        means = means_of(f, y.numpy())
        between = sum(
            (y == k).double().mean().item() * np.outer(m - f.mean(0), m - f.mean(0)) for k, m in enumerate(means)
        )
        inverse = np.linalg.pinv(between, rcond=1e-10, hermitian=True)
        r = g - means[yt.numpy()]
        np.testing.assert_allclose(paths.separation[:, j], np.einsum("ni,ij,nj->n", r, inverse, r), rtol=1e-8)
        expected = ((g[:, None] - means) ** 2).sum(-1).argmin(1)
        assert (paths.nearest[:, j].numpy() == expected).all()
    logits = net(xt).detach()
    assert torch.equal(paths.predictions, logits.argmax(1))
    torch.testing.assert_close(paths.confidence, logits.softmax(1).amax(1))


def test_what_the_classifier_reads_is_a_site_and_tokens_are_noted() -> None:
    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm, self.up, self.down = nn.LayerNorm(3), nn.Linear(3, 6), nn.Linear(6, 3)

        def forward(self, x: Tensor) -> Tensor:
            return x + self.down(self.up(self.norm(x)).relu())

    class Tokens(nn.Module):
        def __init__(self, norm: nn.Module) -> None:
            super().__init__()
            self.blocks, self.norm, self.head = nn.Sequential(*(Block() for _ in range(4))), norm, nn.Linear(3, 3)

        def forward(self, x: Tensor) -> Tensor:
            return self.head(self.norm(self.blocks(x.unflatten(1, (3, 3)))).mean(1))

    torch.manual_seed(0)
    net = Tokens(nn.LayerNorm(3)).double()
    found = sample_paths(net, samples(), progress=False)
    record = ll.probe(net, samples(), progress=False)
    assert found.sites == tuple(site.name for site in record.sites if not site.branch)
    assert found.sites[-1] == "head"
    assert found.notes[0] in record.notes
    assert found.notes[0].startswith("Tokens were flattened, while the classifier reads the mean over tokens")
    assert found.notes[0] in str(found)
    again = sample_paths(Tokens(nn.Identity()).double(), samples(), reduce="mean", progress=False)
    assert again.sites[-1] == "blocks.3"  # whose mean is what the classifier reads


def test_how_many_samples_and_how_many_right_are_told() -> None:
    found = sample_paths(network(), samples(), progress=False)
    right = float((~found.wrong).double().mean())
    assert f"; 90 samples, {100 * right:.1f}% predicted rightly)" in found.sentence
    assert (found.to_dict()["samples"], found.to_dict()["accuracy"]) == (90, right)


def test_no_decisions_and_no_site_but_the_logits_are_answered() -> None:
    with pytest.raises(InputError, match=r"scores: expected .* got None"):
        sample_paths(network(), samples(), scores=None, progress=False)
    with pytest.raises(CaptureError, match="expected one before the class scores, got '6': these are the logits"):
        sample_paths(network(), samples(), sites=["6"], progress=False)


@pytest.mark.parametrize("spoilt", ["data", "test"])
def test_samples_that_are_no_numbers_are_an_error_with_their_batch(spoilt: str) -> None:
    given = {"data": samples(), "test": samples(50, seed=2)}
    given[spoilt][0][45, 2] = math.nan
    with pytest.raises(
        FeatureError, match=f"site '0': expected finite features, got NaN or infinity in {spoilt}, batch 2"
    ):
        sample_paths(network(), given["data"], test=given["test"], batch_size=20, progress=False)


def test_a_network_that_fails_on_test_data_or_gives_no_numbers_is_told() -> None:
    x, y = samples(50, seed=2)
    with pytest.raises(CaptureError, match=r"the model failed in test, batch 0 \(inputs: \(50, 9\) torch.float16\)"):
        sample_paths(network(), samples(), test=(x.half(), y), progress=False)
    with pytest.raises(FeatureError, match="class scores: expected numbers, got NaN in test, batch 1"):
        check_decided(torch.tensor([0, -1]), "test, batch 1")


@pytest.mark.parametrize(("dtype", "tight"), [(torch.float64, 1e-12), (torch.float32, 1e-6)])
def test_d_of_the_samples_averages_to_d(dtype: torch.dtype, tight: float) -> None:
    net, data = network(dtype), samples(dtype=dtype)
    record = ll.probe(net, data, progress=False)
    paths = sample_paths(net, data, progress=False, batch_size=7)
    assert paths.sites == tuple(site.name for site in record.sites)
    for j, site in enumerate(record.sites):
        assert float(paths.separation[:, j].mean()) == pytest.approx(site.values["separation"], rel=tight)


def made(nearest: list[list[int]], predictions: list[int], labels: list[int], confidence: list[float]) -> Paths:
    n = len(labels)
    tensors = [torch.tensor(v) for v in (labels, predictions, confidence)]
    rest = (torch.ones(n, len(nearest[0])), torch.tensor(nearest), (), (), {})
    sites = tuple(f"s{j}" for j in range(len(nearest[0])))
    return Paths(sites, ("a", "b", "c"), *tensors, *rest)


def test_the_decision_layer_is_the_first_from_which_on_all_agree() -> None:
    paths = made([[0, 0, 0], [1, 0, 1], [1, 1, 2], [0, 1, 1]], [0, 1, 1, 1], [0, 1, 1, 0], [0.9, 0.8, 0.6, 0.5])
    assert paths.decided.tolist() == [0, 2, 3, 1]
    assert [row["decided_at"] for row in paths.rows()] == ["s0", "s2", "never", "s1"]
    assert paths.wrong.tolist() == [False, False, False, True]


def test_the_samples_that_are_decided_last_come_first_with_their_inputs() -> None:
    net, (x, y) = network(), samples()
    paths = sample_paths(net, (x, y), progress=False, batch_size=8)
    order = sorted(range(len(y)), key=lambda i: (-int(paths.decided[i]), float(paths.confidence[i])))
    assert list(paths.last) == order[:10]
    assert all(torch.equal(kept, x[i]) for kept, i in zip(paths.inputs, paths.last, strict=True))


def test_auroc_is_that_of_scikit_learn() -> None:
    from sklearn.metrics import roc_auc_score

    g = torch.Generator().manual_seed(0)
    scores, positive = torch.randint(6, (200,), generator=g).double(), torch.rand(200, generator=g) > 0.6
    assert auroc(scores, positive) == pytest.approx(roc_auc_score(positive.numpy(), scores.numpy()))
    assert math.isnan(auroc(scores, torch.zeros(200, dtype=torch.bool)))


def test_the_decision_layer_adds_to_confidence_where_it_knows_more() -> None:
    g = torch.Generator().manual_seed(0)
    n = 600
    wrong = torch.rand(n, generator=g) < 0.3
    late = (wrong.long() + torch.randint(2, (n,), generator=g)).clamp_max(2)
    nearest = torch.stack([torch.where(late > j, 1, 0) for j in range(3)], 1).tolist()
    confidence = (0.9 - 0.1 * wrong.double() + 0.1 * torch.rand(n, generator=g, dtype=torch.float64)).clamp_max(1.0)
    noise = confidence + 0.2 * torch.rand(n, generator=g, dtype=torch.float64) - 0.2
    paths = made(nearest, [0] * n, wrong.long().tolist(), noise.tolist())
    found = paths.finds_errors()
    assert found["both"] > found["confidence"] + 0.02
    assert "with the decision layer" in paths.findings[0]
    many = int(wrong.sum())
    assert paths.findings[0].startswith(f"The {many} wrong predictions of 600 are found with an AUROC (0.5 by chance")
    assert "too few" not in paths.findings[0]
    table = paths.error_table
    assert [row[0] for row in table.rows] == ["low confidence", "a late decision", "both"]
    assert all(row[2:] == (many, 600 - many) for row in table.rows)
    assert "too few" not in table.note


@pytest.mark.parametrize(
    ("wrong", "few"), [(9, "9 wrong predictions, fewer than 10"), (55, "5 right predictions, fewer")]
)
def test_an_auroc_of_few_errors_is_told_to_be_no_number_to_trust(wrong: int, few: str, tmp_path: Path) -> None:
    labels, g = [1] * wrong + [0] * (60 - wrong), torch.Generator().manual_seed(0)
    paths = made([[i % 2, 0] for i in range(60)], [0] * 60, labels, torch.rand(60, generator=g).tolist())
    assert paths.to_dict()["wrong"] == wrong
    (said,) = paths.findings
    assert said.startswith(f"The {wrong} wrong predictions of 60 are found with an AUROC")
    assert few in said
    assert said.endswith(": too few to trust an AUROC.")
    assert said in str(paths)
    page = paths.page(tmp_path / "paths.html").read_text()
    assert said in page
    assert "Finding wrong predictions" in page
    alone = made([[0, 0]] * 4, [0] * 4, [1, 0, 0, 0], [0.9] * 4)
    told = "How well errors are found is not told: 1 wrong prediction, fewer than 10: too few to trust an AUROC."
    assert alone.findings == [told]
    none = made([[0, 0]] * 4, [0] * 4, [0] * 4, [0.9] * 4)
    assert none.findings == []
    assert "Finding wrong predictions" not in none.page(tmp_path / "none.html").read_text()


def test_the_sentence_names_sites_and_says_plainly_where_nothing_is_decided() -> None:
    nearest = [[0, 0, 0], [0, 0, 0], [1, 0, 0], [1, 1, 1], [1, 1, 1]]  # the first three are right, the others wrong
    paths = made(nearest, [0] * 5, [0, 0, 0, 1, 1], [0.9] * 5)
    first, last = paths.sites[0], paths.sites[-1]
    assert paths.decided.tolist() == [0, 0, 1, 3, 3]
    assert paths.sentence.startswith(
        f"Where predictions are decided (of 3 sites, '{first}' to '{last}'; 5 samples, 60.0% predicted rightly): "
        f"at least half of the right ones from '{first}' on; "
        f"at least half of the wrong ones are never decided: at '{last}', the last site, another class center is nearer."
    )


def test_inputs_become_images() -> None:
    gray = as_image(torch.arange(9.0))
    assert np.shape(gray) == (3, 3)
    assert (gray[0][0], gray[2][2]) == (0.0, 1.0)
    assert np.shape(as_image(torch.rand(3, 4, 5))) == (4, 5, 3)
    assert np.shape(as_image(torch.rand(3 * 16))) == (4, 4, 3)
    assert as_image(torch.rand(2, 4, 5)) is None
    assert as_image(torch.rand(7)) is None


def test_it_can_be_saved_drawn_and_put_on_a_page(tmp_path: Path) -> None:
    paths = sample_paths(network(), samples(), progress=False, classes=["cat", "dog", "cow"])
    rows = json.loads(paths.save(tmp_path / "paths.json").read_text())["rows"]
    assert len(rows) == 90
    assert rows[0]["label"] == "cat"
    table = paths.to_pandas()
    assert table["label"][0] == "cat"
    unnamed = sample_paths(network(), samples(), progress=False).to_pandas()
    assert unnamed["label"].tolist() == samples()[1].tolist()  # numbers, not "0", "1", …
    assert unnamed["prediction"].dtype.kind == "i"
    assert table["D classifier" if "D classifier" in table else table.columns[-1]].notna().all()
    figure = paths.plot()
    assert len([ax for ax in figure.axes if ax.images]) == 10
    sheet = paths.sheet()
    assert sheet_from_dict(json.loads(json.dumps(asdict(sheet)))) == sheet
    page = paths.page(tmp_path / "paths.html").read_text()
    assert page.count("<image") == 10
    assert "The 10 that were decided last" in page


def test_bad_input_is_answered() -> None:
    backbone = nn.Sequential(nn.Linear(9, 9), nn.Tanh(), nn.Unflatten(1, (3, 3)))
    with pytest.raises(InputError, match="expected"):
        sample_paths(backbone, samples(dtype=torch.float32), classes=3, progress=False)
    odd = nn.Sequential(nn.Linear(7, 9), nn.Tanh(), nn.Linear(9, 3))
    x, y = torch.randn(30, 7), torch.arange(30) % 3
    paths = sample_paths(odd, (x, y), progress=False)
    with pytest.raises(InputError, match="expected inputs that are images"):
        paths.sheet()
    assert not paths.pictured
