"""What a judgment is made of: a headline, findings, advice; and how names are listed in it."""

from __future__ import annotations

from dataclasses import dataclass

from layerlaw.errors import visible
from layerlaw.stats.labels import near_chance


@dataclass(frozen=True)
class Verdict:
    """A headline (does the law hold?), findings (what the numbers say) and advice (what to do about it).

    Sentences quote names of a record, which may be a stranger's: characters that would steer a terminal are written out.
    """

    headline: str
    findings: tuple[str, ...]
    advice: tuple[str, ...]

    def __post_init__(self) -> None:
        object.__setattr__(self, "headline", visible(self.headline))
        object.__setattr__(self, "findings", tuple(map(visible, self.findings)))
        object.__setattr__(self, "advice", tuple(map(visible, self.advice)))

    def __str__(self) -> str:
        return "\n".join([self.headline, *(f"· {line}" for line in (*self.findings, *self.advice))])


def hardly_decides(accuracy: float, classes: int, yet: str, *, cure: str = "scores=") -> list[str]:
    """A warning where a network decides about as by chance, `yet` its features tell the classes apart ("": they do not)."""
    if not yet or not near_chance(accuracy, classes):
        return []
    return [
        f"The network decides hardly better than by chance (accuracy {accuracy:.1%}), yet {yet}: its inputs may be scaled "
        "otherwise than in training, the labels numbered otherwise than its outputs, or its output may be no class scores "
        f"({cure})."
    ]


def listed(names: list[str]) -> str:
    """The first four names in quotes, and how many more there are."""
    shown = [f"'{name}'" for name in names[:4]]
    return ", ".join(shown) + (f" and {len(names) - 4} more" if len(names) > 4 else "")


def blocks(numbers: list[int]) -> str:
    """Up to six blocks by their numbers; of more the first four, and how many more there are.

    >>> blocks([3]), blocks([1, 2, 5]), blocks([1, 2, 3, 4, 6, 7, 8])
    ('block 3', 'blocks 1, 2, 5', 'blocks 1, 2, 3, 4 and 3 more')
    """
    few = len(numbers) <= 6
    shown = ", ".join(map(str, numbers if few else numbers[:4])) + ("" if few else f" and {len(numbers) - 4} more")
    return f"block{'s' * (len(numbers) > 1)} {shown}"
