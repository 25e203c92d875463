"""Class counts of the experiments on minority collapse: which are trained on, and the images of each."""

import math
from dataclasses import dataclass

from layerlaw.errors import InputError, check_choice, check_whole
from layerlaw.experiments.setting import Images
from layerlaw.lab import Samples

K = 10  # classes
THEIRS = {"fashion_mnist": 6000, "cifar10": 5000}  # n_A of the authors


@dataclass(frozen=True)
class CountPlan:
    """Class counts and length of a training: `majority` is n_A, `times` how often rare images are shown at the largest R."""

    majority: int = 1000
    K_A: tuple[int, ...] = (5,)  # one after the other
    ratios: tuple[float, ...] = (1, 10, 100, 1000, math.inf)
    times: tuple[int, ...] = (100, 1000)
    epochs: int = 350

    @classmethod
    def published(cls, data: str) -> "CountPlan":
        """The authors' counts."""
        check_choice("data", data, tuple(THEIRS))
        return cls(THEIRS[data], (3, 5, 7), times=(10, 100, 1000))

    def __post_init__(self) -> None:
        check_whole(1, majority=self.majority, epochs=self.epochs)
        for K_A in self.K_A:
            check_whole(1, most=K - 1, K_A=K_A)
        for times in self.times:
            check_whole(1, times=times)
        if not any(map(math.isfinite, self.ratios)):
            raise InputError(f"ratios: expected at least one that leaves rare images, got {self.ratios}.")
        for R in self.ratios:
            if math.isfinite(R) and (R < 1 or self.majority % R):
                whole = f"whole parts of {self.majority}, at most {self.majority}, or math.inf"
                raise InputError(f"ratios: expected {whole}, got {R:g}. Choose other ratios or another majority.")

    @property
    def largest(self) -> float:
        """The largest ratio that leaves rare images."""
        return max(R for R in self.ratios if math.isfinite(R))

    @property
    def cases(self) -> list["Case"]:
        """All class counts that are trained on."""
        again = [(self.largest, w) for w in self.times]
        return [Case(self.majority, a, R, w) for a in self.K_A for R, w in (*((R, 1) for R in self.ratios), *again)]


SCALED, WHOLE = CountPlan(), CountPlan(6000)
QUICK = CountPlan(100, ratios=(1, 10, 100, math.inf), times=(100,), epochs=30)


@dataclass(frozen=True)
class Case:
    """Class counts of one training: the first K_A classes have n_A images, the others n_A/R, each shown `times` times."""

    majority: int
    K_A: int
    ratio: float
    times: int = 1

    @property
    def name(self) -> str:
        """As rows have it."""
        again = f"-shown-{self.times}-times" if self.times > 1 else ""
        return f"K_A-{self.K_A}/R-{self.ratio:g}{again}"

    @property
    def K_B(self) -> int:
        """Rare classes."""
        return K - self.K_A

    @property
    def counts(self) -> tuple[int, ...]:
        """Different images of every class."""
        return (self.majority,) * self.K_A + (round(self.majority / self.ratio),) * self.K_B

    @property
    def copies(self) -> tuple[int, ...]:
        """How often an image of every class is shown in an epoch."""
        return (1,) * self.K_A + (self.times,) * self.K_B

    @property
    def shown(self) -> tuple[int, ...]:
        """Images of every class as the loss sees them: the model's counts."""
        return tuple(count * times for count, times in zip(self.counts, self.copies, strict=True))

    def of(self, images: Images, seed: int) -> Samples:
        """These counts of a balanced draw; with one seed, fewer images are part of more."""
        return images(seed).imbalanced(self.counts).repeated(self.copies)
