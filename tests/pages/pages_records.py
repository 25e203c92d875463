"""Synthetic records for the pages' tests: like real ones, but made in a millisecond."""

from __future__ import annotations

import math

import numpy as np

from layerlaw.record import PartRow, Record, SiteRow

FASHION = ["T-shirt/top", "Trouser", "Pullover", "Dress", "Coat", "Sandal", "Shirt", "Sneaker", "Bag", "Ankle boot"]
ADAM_8 = [36.814, 15.455, 9.480, 5.550, 3.197, 1.652, 0.742, 0.467]
NASTY = "<script>window.__pwned=1;alert(1)</script>"
NASTIER = '</script><img src=x onerror="window.__pwned=2">\'"&amp;$x$%{x}[bold]\x1b[31m'


def falling(count: int, first: float = 36.8, last: float = 0.4, seed: int = 0) -> list[float]:
    """D along so many sites, with a little noise about the law."""
    noise = np.random.default_rng(seed).normal(0, 0.35 * abs(math.log(last / first)) / count, count)
    line = np.linspace(math.log(first), math.log(last), count)
    return [float(v) for v in np.exp(line + noise)]


def full_record(
    name: str = "8-layer FNN, Adam, Fashion-MNIST",
    *,
    separation: list[float] | None = None,
    sites: list[str] | None = None,
    classes: list[str] | None = None,
    logits: bool = True,
    seed: int = 0,
) -> Record:
    """Every column filled; the last site is the logits and no point of the law, if asked."""
    rng = np.random.default_rng(seed)
    D = list(separation or ADAM_8)
    L = len(D)
    names = sites or ["input", *(f"layers.{i}.relu" for i in range(1, L))]
    classes = classes or FASHION
    K = len(classes)
    labels = [int(k) for k in rng.integers(0, K, 500)]
    if logits:
        names, D = [*names, "classifier"], [*D, D[-1] * 0.7]
    hardness = np.exp(rng.normal(0, 0.45, K))
    centers = rng.normal(0, 1, (K, 2))
    rows = []
    for i, d in enumerate(D):
        depth = i / max(1, len(D) - 1)
        error = 0.55 * (1 - depth) ** 2.2
        values: dict[str, float | None] = {
            "separation": d,
            "separation_log_se": 0.02 + 0.05 * depth,
            "separation_corrected": d * 1.05,
            "separation_permuted": 95.0 - 40 * depth,
            "separation_untrained": 36.8 * math.exp(0.12 * i),
            "rank": float(K - 1),
            "full_rank": 0.0 if i == 1 else 1.0,
            "nc1": d / K,
            "nc2_norms": 0.4 * math.exp(-1.2 * depth),
            "nc2_angles": 0.5 * math.exp(-2.2 * depth),
            "ncc_accuracy": 1 - error,
            "ncc_mismatch": error * 0.97,
            "cdnv": d / 11,
            "compression": d / 5,
            "discrimination": 0.1 + 0.8 * depth,
            "test_separation": d * (1.1 + 2.4 * depth),
            "test_nc1": d * (1.1 + 2.4 * depth) / K,
            "test_ncc_accuracy": 0.4 + 0.39 * depth,
            "test_ncc_mismatch": error + 0.03,
            "test_cdnv": d / 7,
        }
        if i == len(D) - 1:
            values |= {"nc2_norms_classifier": 0.081, "nc2_angles_classifier": 0.142, "nc3": 0.213, "nc4": 0.0}
        spread = 0.15 + 1.6 * math.sqrt(d) / 6
        plane = centers[labels] * (1 + 4 * depth) + rng.normal(0, spread, (500, 2))
        by_class: dict[str, list[float | None]] = {
            "separation": [float(v) for v in d * hardness * np.exp(rng.normal(0, 0.1, K))],
            "ncc_accuracy": [float(v) for v in 1 - error * np.clip(hardness / 2, 0, 1)],
        }
        rows.append(
            SiteRow(
                names[i], "Flatten" if i == 0 else "ReLU" if i < L else "Linear", (100,), 100 if i < L else K,
                in_fit=i < L, values=values, by_class=by_class, plane=[[float(x), float(y)] for x, y in plane],
            )
        )  # fmt: skip
    return Record(
        name=name,
        sites=rows,
        classes=classes,
        counts=[100] * K,
        test_counts=[1000] * K,
        accuracy=1.0,
        test_accuracy=0.7921,
        plane_labels=labels,
        settings={
            "weighting": "samples", "batchnorm": "batch", "reduce": "flatten", "batch_size": 100, "sites": names,
            "sites_why": "outputs of ReLU modules", "jackknife_groups": 10, "seed": 666, "recalibrate": False,
        },
        provenance={
            "layerlaw": "0.1.0", "torch": "2.13.0", "python": "3.11.7", "device": "cpu", "seconds": 3.2178,
            "created": "2026-11-15T09:30:00+00:00", "model": "Sequential(20 modules, 74,310 parameters)",
            "data": {"name": "fashion-mnist sample", "sha256": "9f2c" * 16},
        },
        notes=["Dropout was off in train mode.", "separation_corrected: bias below 12 % at every site."],
    )  # fmt: skip


def minimal_record() -> Record:
    """Nothing but D."""
    rows = [
        SiteRow(f"fc{i}", "Linear", (16,), 16, values={"separation": d}) for i, d in enumerate([4.0, 2.1, 1.0, 0.4])
    ]
    return Record(name="minimal", sites=rows, classes=["a", "b"])


def nasty_record() -> Record:
    """Names that try to be markup, in every place a name can stand."""
    record = full_record(
        NASTY, sites=[NASTY, NASTIER, *(f"{NASTIER}{i}" for i in range(6))], classes=[NASTY, NASTIER, *"abcdefgh"]
    )
    record.notes = [NASTY, NASTIER]
    record.settings = {NASTY: NASTIER, "list": [NASTY], "dict": {NASTIER: NASTY}}
    record.provenance = {NASTIER: NASTY}
    for site in record.sites:
        site.type = NASTY
    return record


def deep_record(count: int = 60) -> Record:
    """A deep residual network with long site names."""
    names = ["input", *(f"layer{1 + i // 16}.{i % 16 // 3}.conv{1 + i % 3}" for i in range(count - 1))]
    return full_record("ResNet, CIFAR-10", separation=falling(count, 120, 0.05, seed=3), sites=names)


def resnet50_record() -> Record:
    """The 54 layers of a ResNet-50 inside another module: long names that begin alike."""
    names = ["input", "backbone.body.conv1"]
    for stage, blocks in enumerate((3, 4, 6, 3), start=1):
        for block in range(blocks):
            inner = ["conv1", "conv2", "conv3", *["downsample.0"] * (block == 0)]
            names += [f"backbone.body.layer{stage}.{block}.{layer}" for layer in inner]
    return full_record("ResNet-50, by layers", separation=falling(55, 120, 0.05, seed=3), sites=[*names, "fc"][:55])


def resnet56_record() -> Record:
    """A ResNet-56 by layers: a stem of too few features, 27 blocks of which the second layer is on a side branch."""
    blocks = [f"layer{stage}.{block}" for stage in (1, 2, 3) for block in range(9)]
    names = ["conv1", *(f"{block}.{layer}" for block in blocks for layer in ("conv1", "conv2"))]
    record = full_record("ResNet-56, by layers", separation=falling(55, 120, 0.05, seed=3), sites=names)
    for site in record.sites:
        site.at, site.branch = "input", site.name.endswith("conv2")
        site.in_fit = not site.branch
    record.sites[0].in_fit, record.sites[0].aside = False, "1 feature does not hold the 9 dimensions of 10 class means"
    record.settings["blocks"] = blocks
    return record


def parts_record() -> Record:
    """The same, with the parts of every layer."""
    record, rng = resnet50_record(), np.random.default_rng(0)
    sizes = {"map": 0.12, "normalization": -0.01, "nonlinearity": -0.3, "other": 0.05}
    for site in record.sites:
        site.values["separation_linear"] = (site.values["separation"] or 1.0) / 3
    for site in record.sites[1:-1]:
        value = site.values["separation"] or 1.0
        for kind, size in sizes.items():
            after = value * math.exp(size * rng.uniform(0.3, 1.7))
            where = (site.name, kind, "" if kind == "other" else f"{site.name}.{kind}", "Part")
            before = {"separation": value, "separation_linear": value / 3}
            record.parts.append(PartRow(*where, before, {"separation": after, "separation_linear": value / 3.001}))
            value = after
    return record


def many_classes_record(K: int = 1000) -> Record:
    """As many classes as ImageNet."""
    names = [f"n{k:08d} a class with a long name" for k in range(K)]
    return full_record("many classes", separation=falling(12, 900, 12, seed=4), classes=names)


def broken_record() -> Record:
    """Holes, infinities and zeros where numbers should be; D rises; no law can be fitted."""
    inf, nan = math.inf, math.nan
    rows = [
        SiteRow(
            "a", "Conv", (3,), 3, values={"separation": 0.0, "cdnv": inf, "nc1": nan}, plane=[[1.0, 1.0], [1.0, 1.0]]
        ),
        SiteRow(
            "b", "Conv", (3,), 3, values={"separation": None, "ncc_accuracy": 1.0}, by_class={"separation": [None]}
        ),
        SiteRow("c", "Conv", (3,), 3, values={"separation": 2.0}, by_class={"separation": [1.0]}, plane=[[nan, 1.0]]),
    ]
    return Record(name="", sites=rows, classes=["only", "two"], plane_labels=[0, 7], notes=["Something went wrong."])


def three_records() -> list[Record]:
    """A shallow, a deeper and an untrained network; two of them of the same name."""
    untrained = full_record("FNN", separation=[36.8, 38.1, 40.4, 44.0, 47.9, 55.0, 58.2, 66.0], seed=2)
    untrained.accuracy, untrained.test_accuracy = 0.101, None
    return [full_record("FNN"), full_record("FNN, 20 layers", separation=falling(20, seed=1)), untrained]


def gated_record() -> Record:
    """An EfficientNet-like network by layers: between points of the law one, two or four rows of gates, one of them of too
    few features, with an enormous D and an interval to match."""
    names = ["stem.0", "stage1.0.dw.0", "stage1.0.se.fc1", "stage1.0.se.fc2", "stage1.0.project.0", "stage1.1.expand.0"]
    names += ["stage2.0.dw.0", "stage2.0.se.fc1", "stage2.0.project.0", "stage3.0.expand.0", "top.0", "fc"]
    aside = {"stage1.0.se.fc1", "stage1.0.se.fc2", "stage1.0.project.0", "stage2.0.se.fc1"}
    line = iter(falling(8, 9, 0.2, seed=1))
    D = [{"stage1.0.se.fc2": 15_470.0}.get(name, 12.0) if name in aside else next(line) for name in names]
    record = full_record("EfficientNet, by layers", separation=D, sites=names, logits=False)
    for site in record.sites:
        site.at = "input"
        site.branch, site.in_fit = site.name in aside, site.name not in aside
    gate = record.sites[3]
    gate.aside, gate.values["separation_log_se"] = "4 features do not hold the 9 dimensions of 10 class means", 1.36
    return record
