"""Data that change between the two passes are found out; data that do not are left in peace."""

import pytest
import torch
from capture_networks import FNN, clouds, seeded
from torch import nn
from torch.utils.data import DataLoader, Dataset, TensorDataset

import layerlaw as ll
from layerlaw.errors import PassError

K = 4


def streaming(network: nn.Module, example: torch.Tensor, classes: int = K) -> float:
    """A budget in GiB that holds the statistics but not the features."""
    plan = ll.sites(network, example, sites="layers")
    return (sum(40 * classes * site.features for site in plan.sites) + 200) / 2**30


def probe(network: nn.Module, data: object, example: torch.Tensor, classes: int = K, **how: object) -> ll.Record:
    memory = streaming(network, example, classes)
    record = ll.probe(network, data, sites="layers", memory_gib=memory, progress=False, **how)
    assert not record.settings["one_forward"]
    return record


class Changing:
    """Batches that are changed by a function of the number of the pass (0: the dry run)."""

    def __init__(self, x, y, change, size: int = 250) -> None:
        self.x, self.y, self.change, self.size, self.passes = x, y, change, size, -1

    def __iter__(self):
        self.passes += 1
        x, y = self.change(self.x.clone(), self.y.clone(), self.passes)
        for i in range(0, len(y), self.size):
            yield x[i : i + self.size], y[i : i + self.size]


X, Y = clouds(2000, 12, classes=K)


@pytest.mark.parametrize("classes", [2, K])
@pytest.mark.parametrize("at", [0, 777, 1999])
def test_one_replaced_sample_in_two_thousand_is_caught(at: int, classes: int) -> None:
    y = Y % classes

    def replaced(x, y, turn):
        if turn == 2:
            other = int((y == y[at]).nonzero()[-1 if at < 1000 else 0])
            x[at] = x[other]
        return x, y

    network = seeded(FNN, (12, 8, 8, classes))
    with pytest.raises(
        PassError, match=r"site 'layers.0': the data changed between the two passes: the class means moved by"
    ):
        probe(network, Changing(X, y, replaced), X, classes)
    assert probe(network, Changing(X, y, lambda x, y, turn: (x, y)), X, classes).counts == torch.bincount(y).tolist()


def test_a_changed_label_a_missing_batch_and_a_batch_too_many_are_caught() -> None:
    def relabeled(x, y, turn):
        if turn == 2:
            y[5] = (y[5] + 1) % K
        return x, y

    def shorter(x, y, turn):
        return (x[:-250], y[:-250]) if turn == 2 else (x, y)

    def longer(x, y, turn):
        return (x[:-250], y[:-250]) if turn == 1 else (x, y)

    for change in (relabeled, shorter, longer):
        with pytest.raises(
            PassError, match=r"changed between the two passes: class counts \[.*\] in pass 1, \[.*\] in pass 2"
        ):
            probe(seeded(FNN, (12, 8, 8, K)), Changing(X, Y, change), X)


def test_random_augmentation_is_caught_and_a_larger_budget_is_the_way_out() -> None:
    generator = torch.Generator().manual_seed(0)  # one that no loader knows of

    class Augmented(Dataset):
        def __len__(self) -> int:
            return 400

        def __getitem__(self, i):
            return X[i] + 0.1 * torch.randn(12, generator=generator), Y[i]

    network = seeded(FNN, (12, 8, 8, K))
    with pytest.raises(
        PassError, match=r"Random augmentation, dropout left on by hand.*raise memory_gib so that one forward"
    ):
        probe(network, Augmented(), X)
    assert ll.probe(network, Augmented(), progress=False).settings["one_forward"]


def test_random_augmentation_from_the_global_generators_is_the_same_in_both_passes() -> None:
    class Augmented(Dataset):
        def __len__(self) -> int:
            return 400

        def __getitem__(self, i):
            return X[i] + 0.1 * torch.randn(12), Y[i]

    assert probe(seeded(FNN, (12, 8, 8, K)), Augmented(), X).counts


def test_dropout_left_on_by_hand_is_caught() -> None:
    class Wet(FNN):
        def forward(self, x):
            generator[0] += 1
            torch.manual_seed(generator[0])
            return super().forward(nn.functional.dropout(x, 0.5))

    generator = [0]
    with pytest.raises(PassError, match="the data changed between the two passes"):
        probe(seeded(Wet, (12, 8, 8, K)), (X, Y), X)


def test_changed_samples_are_told_when_standard_errors_are_asked_for() -> None:
    def swapped(x, y, turn):
        if turn == 2:
            first, second = (y == 0).nonzero()[:2].flatten().tolist()
            x[[first, second]] = x[[second, first]]
        return x, y

    network = seeded(FNN, (12, 8, 8, K))
    memory = 12 * streaming(network, X)
    with pytest.raises(
        PassError, match="the samples or their order changed between the two passes, which standard errors"
    ):
        ll.probe(network, Changing(X, Y, swapped), memory_gib=memory, uncertainty=True, progress=False)
    assert probe(network, Changing(X, Y, swapped), X).counts  # without them the order does not matter


@pytest.mark.parametrize(
    "features",
    [
        "offset 1e3",
        "half",
        "bfloat16",
        "spread 1e-6",
        "scale 1e6",
        "scale 1e-6",
        "imbalanced",
        "offset and collapse",
        "many",
    ],
)
def test_deterministic_data_are_left_in_peace(features: str) -> None:
    x, y = clouds(2000, 40, classes=K, seed=5)
    means = clouds(K, 40, classes=K, seed=6)[0]
    network: nn.Module = seeded(FNN, (40, 30, 30, K))
    if features == "offset 1e3":
        x = x + 1e3
    elif features == "spread 1e-6":
        x = means[y] + 1e-6 * x
    elif features == "scale 1e6":
        x = x * 1e6
    elif features == "scale 1e-6":
        x = x * 1e-6
    elif features == "imbalanced":
        y = torch.zeros(2000, dtype=torch.long)
        y[:6] = torch.tensor([1, 1, 2, 2, 3, 3])
        x = means[y] + x
    elif features == "offset and collapse":
        x = 1e3 + means[y] + 1e-4 * x
    elif features == "many":
        x, y = x.repeat(10, 1), y.repeat(10)
    if features in ("half", "bfloat16"):
        dtype = torch.float16 if features == "half" else torch.bfloat16
        network, x = network.to(dtype), x.to(dtype)
    for data in ((x, y), DataLoader(TensorDataset(x, y), batch_size=300, shuffle=True)):
        record = probe(network, data, x)
        assert record.counts == torch.bincount(y).tolist()


def test_a_network_that_collapses_its_classes_is_left_in_peace() -> None:
    class Collapses(nn.Module):
        """Features 100 + class mean + 1e-6 of what they were."""

        def __init__(self) -> None:
            super().__init__()
            self.one, self.two, self.last = nn.Linear(40, K), nn.Linear(40, 40), nn.Linear(40, K)
            self.table = nn.Parameter(torch.randn(K, 40))

        def forward(self, x):
            h = 100 + self.table[self.one(x).argmax(1)] + 1e-6 * self.two(x)
            return self.last(h)

    network = seeded(Collapses)
    x = clouds(2000, 40, classes=K)[0]
    with torch.no_grad():
        y = network.one(x).argmax(1)
    assert probe(network, DataLoader(TensorDataset(x, y), batch_size=300, shuffle=True), x).counts
