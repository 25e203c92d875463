"""PR of many targets from one pass, by code of its own: `python scripts/class_sums.py MODEL` (ten minutes on one core).

Every target is a function of the next token, so XᵀX and the sum of the features over each next token are enough for all of
them, exactly. MODEL is a folder with a model of Llama's kind; the text is wikitext-2 (in LAYERLAW_DATA), 240 pieces of 512
tokens spread over it. An independent check of `layerlaw reproduce lm_targets`, and what was tried about its misses.
"""

import sys

import numpy as np
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from layerlaw.data import load_text

PIECES, LENGTH, AT_ONCE = 240, 512, 4


def main() -> None:
    model = AutoModelForCausalLM.from_pretrained(sys.argv[1], dtype=torch.float32).eval()
    grams, sums, counts = collected(model, pieces(sys.argv[1]))
    used = counts > 0
    law = Law(grams, sums[:, used], counts[used])
    everything = model.lm_head.weight.detach().double().numpy()
    E = everything[used]
    spread = np.cov(everything.T)
    directions = np.linalg.svd(E - law.p @ E, full_matrices=False)[2]
    law.tell("id", np.flatnonzero(used)[:, None].astype(float))
    law.tell("embedding", E)
    law.tell("embedding, entries weighing the same", E, same=True)
    law.tell("embedding, rows of length one", E / np.linalg.norm(E, axis=1, keepdims=True))
    law.tell("embedding, whitened", (E - everything.mean(0)) @ np.linalg.cholesky(np.linalg.inv(spread)))
    for count in (1, 8, 64, 256):
        law.tell(f"embedding, {count} leading directions", E @ directions[:count].T)
    law.tell_one_hot("one-hot", len(E))
    law.tell_one_hot("one-hot, tokens weighing the same", len(E), same=True)
    for count in (10, 100, 500, 2000):
        law.tell_one_hot(f"one-hot of the {count} most frequent", count)


def pieces(folder: str) -> torch.Tensor:
    """Evenly spread over the text (pieces, LENGTH)."""
    (text,) = load_text("wikitext-2").documents
    ids = torch.tensor(AutoTokenizer.from_pretrained(folder)(text, add_special_tokens=False)["input_ids"])
    whole = ids[: len(ids) // LENGTH * LENGTH].reshape(-1, LENGTH)
    return whole[torch.linspace(0, len(whole) - 1, PIECES).long()]


def collected(model, ids: torch.Tensor) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """XᵀX (L, d, d) of every block, sums of X over each next token (L, V, d), and how often it comes (V,)."""
    blocks, (V, d) = model.model.layers, model.lm_head.weight.shape
    grams = torch.zeros(len(blocks), d, d, dtype=torch.float64)
    sums, counts = torch.zeros(len(blocks), V, d), torch.zeros(V, dtype=torch.float64)
    following = torch.zeros(0, dtype=torch.long)

    def add(block: int, output) -> None:
        X = (output[0] if isinstance(output, tuple) else output)[:, :-1].reshape(-1, d)
        X = X * torch.rsqrt(X.square().mean(1, keepdim=True) + model.config.rms_norm_eps)
        grams[block] += (X.mT @ X).double()
        sums[block].index_add_(0, following, X)

    for i, block in enumerate(blocks):
        block.register_forward_hook(lambda _module, _inputs, output, i=i: add(i, output))
    for i in range(0, len(ids), AT_ONCE):
        some = ids[i : i + AT_ONCE]
        following = some[:, 1:].reshape(-1)
        counts += following.bincount(minlength=V)
        with torch.no_grad():
            model.model(some, use_cache=False)
    return grams.numpy(), sums.numpy(), counts.numpy()


class Law:
    """Residuals of any target at every block from class sums."""

    def __init__(self, grams: np.ndarray, sums: np.ndarray, counts: np.ndarray) -> None:
        self.n, self.p = counts.sum(), counts / counts.sum()
        self.centered, self.inverses = [], []
        for gram, of_class in zip(grams, sums.astype(float), strict=True):
            total = of_class.sum(0)
            self.centered.append(of_class - np.outer(self.p, total))
            self.inverses.append(np.linalg.inv(gram - np.outer(total, total) / self.n))

    def tell(self, name: str, codes: np.ndarray, *, same: bool = False) -> None:
        """The target is a vector (V, q), one row for each token."""
        variation = self.n * (self.p @ (codes - self.p @ codes) ** 2)
        explained = []
        for centered, inverse in zip(self.centered, self.inverses, strict=True):
            cross = centered.T @ codes
            explained.append((cross * (inverse @ cross)).sum(0))
        self._print(name, explained, variation, same)

    def tell_one_hot(self, name: str, most: int, *, same: bool = False) -> None:
        """The target is 1 at the next token, of which the most frequent count."""
        chosen = np.argsort(-self.p)[:most]
        variation = (self.n * self.p * (1 - self.p))[chosen]
        pairs = zip(self.centered, self.inverses, strict=True)
        explained = [((centered[chosen] @ inverse) * centered[chosen]).sum(1) for centered, inverse in pairs]
        self._print(name, explained, variation, same)

    def _print(self, name: str, explained: list[np.ndarray], variation: np.ndarray, same: bool) -> None:
        PR = [np.mean(1 - e / variation) if same else 1 - e.sum() / variation.sum() for e in explained]
        blocks, height = np.arange(len(PR)), np.log(PR)
        r, short = np.corrcoef(blocks, height)[0, 1], np.corrcoef(blocks[:-1], height[:-1])[0, 1]
        rho = np.exp(np.polyfit(blocks, height, 1)[0])
        print(
            f"{name:40} r {r:.3f}, without the last {short:.3f}, ρ {rho:.4f}, PR {PR[0]:.3f} … {PR[-1]:.3f}", flush=True
        )


if __name__ == "__main__":
    main()
