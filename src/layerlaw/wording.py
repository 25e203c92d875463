"""How numbers, lists and names are put into words: real minus signs, powers of ten, plurals, safe text."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Callable, Sequence
from itertools import zip_longest
from typing import Any

from layerlaw.errors import shown, visible

ABSENT = "–"
MOST_LISTED, LONGEST_SETTING = 12, 400  # entries, characters
NOTHING = 1e-6  # a residual below this is zero but for rounding
_SUPERSCRIPT = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")
_SCIENTIFIC = re.compile(r"(?<![\w.'=-])(\d+(?:\.\d+)?)e([+-]?\d+)\b")
_HYPHEN_MINUS = re.compile(r"(?<=[\s(=])-(?=\d)")
MOST_SYMMETRIC = 0.5  # an interval from 1/1.5 to 1.5 is still written as ±50%
FEWEST_CUT = 3  # letters that an ellipsis stands for, at least
NameParts = list[list[str]]  # of names: what stands between the dots


def finite(value: float | None) -> float | None:
    """The number, or `None` where there is none (missing, NaN, infinite)."""
    return value if value is not None and math.isfinite(value) else None


def minus(text: str) -> str:
    """A formatted number with a real minus sign instead of a hyphen, and none before a rounded zero.

    >>> minus(f"{-0.5:.2f}"), minus(f"{-0.0001:.2f}"), minus(f"{-3e-5:.1e}")
    ('−0.50', '0.00', '−3.0e−05')
    """
    return (text if text.strip("+-0.,%") else text.lstrip("-")).replace("-", "−")


def number(value: float | None, digits: int = 3) -> str:
    """A number to so many significant digits, with powers of ten only where zeros would have to be counted.

    >>> number(36.814), number(-0.99812), number(0.000047), number(12345.6), number(None)
    ('36.8', '−0.998', '4.70·10⁻⁵', '12,346', '–')
    """
    if value is None or math.isnan(value):
        return ABSENT
    if math.isinf(value):
        return "∞" if value > 0 else "−∞"
    if value == 0:
        return "0"
    mantissa, e = f"{value:.{digits - 1}e}".split("e")
    exponent = int(e)
    if exponent < -3 or exponent > 5:
        return minus(f"{mantissa}·10{power(exponent)}")
    return minus(f"{value:,.{max(0, digits - 1 - exponent)}f}")


def residual(value: float | None, decimals: int = 4) -> str:
    """A residual to four decimals: what a block changes is in the third; of one that is zero but for rounding, only zeros.

    >>> residual(0.83412), residual(-1e-14), residual(0.00012345), residual(None)
    ('0.8341', '0.0000', '1.23·10⁻⁴', '–')
    """
    if value is None or not math.isfinite(value):
        return ABSENT
    if abs(value) < NOTHING:
        return f"{0:.{decimals}f}"
    return f"{value:.{decimals}f}" if 0.001 <= value < 100 else number(value)


def power(exponent: int) -> str:
    """An exponent as superscript: −5 → ⁻⁵."""
    return str(exponent).translate(_SUPERSCRIPT)


def interval_factor(log_error: float, t: float = 1.96) -> float:
    """exp(t · standard error of ln D): D times and over this is a 95% interval."""
    return math.exp(min(t * abs(log_error), 100.0))


def factor_words(factor: float, digits: int = 1) -> str:
    """A multiplicative interval: in percent while that is about the same up and down, else as the factor itself.

    >>> factor_words(1.042), factor_words(1.5, 0), factor_words(14.56)
    ('±4.2%', '±50%', '×/÷ 15')
    """
    return f"±{percent(factor - 1, digits)}" if factor <= 1 + MOST_SYMMETRIC else f"×/÷ {number(factor, 2)}"


def percent(share: float | None, digits: int = 1) -> str:
    """A share as percent.

    >>> percent(0.7921), percent(-0.031, 0), percent(1.0)
    ('79.2%', '−3%', '100%')
    """
    if share is None or not math.isfinite(share):
        return ABSENT
    text = f"{100 * share:.{digits}f}"
    if "." in text and share in (0, 1):
        text = text.split(".")[0]
    return minus(text) + "%"


def points(share: float, digits: int = 1, *, beyond: float | None = None) -> str:
    """A difference of shares: "1 point", "0.2 points"; with so many digits that what is `beyond` a limit looks so.

    >>> points(0.01), points(0.0104), points(0.0104, beyond=0.01), points(-0.0015, 2)
    ('1 point', '1 point', '1.04 points', '−0.15 points')
    """
    text = f"{100 * share:.{digits}f}"
    while beyond is not None and share > beyond and digits < 6 and float(text) <= 100 * beyond:
        digits += 1
        text = f"{100 * share:.{digits}f}"
    text = text.removesuffix(f".{0:0{digits}}")
    return f"{minus(text)} point{'s' * (text != '1')}"


def correlation(r: float | None) -> str:
    """A correlation to three decimals, as papers give it.

    >>> correlation(-0.99986), correlation(None)
    ('−1.000', '–')
    """
    return ABSENT if r is None else f"{r:.3f}".replace("-", "−")


def signed(value: float | None, digits: int = 3) -> str:
    """A number with its sign, also where it is positive: for a correlation, half of what it says.

    >>> signed(-0.9182), signed(0.78, 2), signed(None)
    ('−0.918', '+0.78', '–')
    """
    return ABSENT if value is None else f"{value:+.{digits}f}".replace("-", "−")


def p_value(p: float | None, *, relation: bool = False) -> str:
    """A probability; below a ten-thousandth only that. With `relation` it follows a symbol: "p " + p_value(…).

    >>> p_value(0.0312), p_value(2e-6), p_value(0.0312, relation=True), p_value(2e-6, relation=True)
    ('0.031', '< 0.0001', '= 0.031', '< 0.0001')
    """
    if p is None:
        return ABSENT
    return "< 0.0001" if p < 1e-4 else f"{'= ' if relation else ''}{p:.2g}"


def setting(value: Any) -> str:
    """A setting in words: lists joined and cut, dictionaries as pairs.

    >>> setting([1, 2.5, None]), setting({"lr": 1e-3}), setting(True)
    ('1, 2.50, –', 'lr: 0.00100', 'yes')
    """
    if isinstance(value, bool):
        return "yes" if value else "no"
    if value is None or isinstance(value, float):
        return number(value)
    if isinstance(value, dict):
        value = [f"{key}: {setting(v)}" for key, v in value.items()]
    if isinstance(value, (list, tuple)):
        items = [setting(v) for v in value]
        if len(items) > MOST_LISTED:
            items = [*items[: MOST_LISTED - 1], "…", f"{items[-1]} ({len(items)} in all)"]
        return ", ".join(items)
    text = clean(str(value))
    return text if len(text) <= LONGEST_SETTING else f"{text[:LONGEST_SETTING]}…"


def sentence(text: str) -> str:
    """A sentence with real minus signs and powers of ten.

    >>> sentence("r = -0.998, D = 3.2e-05 at 'conv-1'")
    "r = −0.998, D = 3.2·10⁻⁵ at 'conv-1'"
    """
    text = text.replace("= < ", "< ")
    text = _SCIENTIFIC.sub(lambda m: f"{m[1]}·10{power(int(m[2]))}", text)
    return _HYPHEN_MINUS.sub("−", text)


def clean(text: str) -> str:
    """A name from outside, in one line, with control characters and lone surrogates written out: no output can show them.

    >>> print(clean("a\\x1b[31m\\nb"))
    a\\x1b[31m b
    """
    return visible(str(text)).replace("\n", " ").replace("\t", " ")


def shortened(text: str, longest: int) -> str:
    """A long name with its middle left out; the end of a site name says more than its middle.

    >>> shortened("encoder.layers.11.output.dense", 17)
    'encod…utput.dense'
    """
    text = clean(text)
    if len(text) <= longest:
        return text
    head = (longest - 1) // 3
    return f"{text[:head]}…{text[len(text) - (longest - 1 - head) :]}"


def short_names(names: Sequence[str], longest: int) -> list[str]:
    """Names for a chart that still differ: where one is too long, what tells least apart goes first.

    That is what all names with dots begin with, then what all end with, then words that most of them share, then, in the
    long names alone, the ends of words; what is still too long loses its middle. Behind the beginning an ellipsis stands for
    what was left out; and no name becomes a mere number.

    >>> short_names(["input", "layer3.8.conv2", "fc"], 17)
    ['input', 'layer3.8.conv2', 'fc']
    >>> short_names(["input", "backbone.body.layer3.8.conv1", "backbone.body.layer4.0.conv2"], 17)
    ['input', 'layer3.8.conv1', 'layer4.0.conv2']
    >>> short_names([f"encoder.stages.{i}.layers.8.layer.{j}.convolution" for i in (1, 2) for j in (0, 1)], 10)
    ['1…8…0…', '1…8…1…', '2…8…0…', '2…8…1…']
    >>> short_names(["bert.encoder.layer.0", "bert.encoder.layer.1", "classifier"], 14)
    ['layer.0', 'layer.1', 'classifier']
    >>> short_names([f"denseblock{i}.denselayer{j}.conv{j}" for i in (3, 4) for j in (1, 2)], 17)
    ['den…3.den…1.conv1', 'den…3.den…2.conv2', 'den…4.den…1.conv1', 'den…4.den…2.conv2']
    """
    parts = [clean(name).split(".") for name in names]
    for shorten in (_without_beginning, _without_ending, _without_common_words, *map(_words_cut, (6, 4, 3, 2))):
        too_long = [len(_dotted(part)) > longest for part in parts]
        if not any(too_long):
            break
        shorter = shorten(parts, too_long)
        if len(set(map(tuple, shorter))) == len(set(map(tuple, parts))):  # what was told apart still is
            parts = shorter
    return [re.sub("…[.…]*…", "…", shortened(_dotted(part), longest)) for part in parts]


def _dotted(part: list[str]) -> str:
    return re.sub(r"(?:^|\.)…(?:\.…)*(?:\.|$)", "…", ".".join(part))


def _without_beginning(parts: NameParts, _: list[bool]) -> NameParts:
    dotted = [part[:-1] for part in parts if len(part) > 1]
    same = 0
    while len(dotted) > 1 and all(len(part) > same and part[same] == dotted[0][same] for part in dotted):
        same += 1
    while same and any(len(part) == same + 1 and part[-1].isdecimal() for part in parts):  # a mere number
        same -= 1
    return [part[same:] if len(part) > 1 else part for part in parts]


def _without_ending(parts: NameParts, too_long: list[bool]) -> NameParts:
    ends = [part[::-1] for part in _without_beginning([part[::-1] for part in parts], too_long)]
    return [[*end, "…"] if end != part else part for end, part in zip(ends, parts, strict=True)]


def _without_common_words(parts: NameParts, _: list[bool]) -> NameParts:
    shared = Counter(word for part in parts for word in set(part) if not word.isdecimal())
    common = {word for word, count in shared.items() if 2 * count > len(parts)}
    return [["…" if word in common else word for word in part] if set(part) - common else part for part in parts]


def _words_cut(letters: int) -> Callable[[NameParts, list[bool]], NameParts]:
    """Every run of letters of the long names cut to so many and an ellipsis, where that takes less room."""

    def short(run: re.Match[str]) -> str:
        word, more = run[1], len(run[1]) - letters
        return f"{word[:letters]}…" if more >= (1 if run[2] else FEWEST_CUT) else run[0]

    def cut(part: list[str]) -> list[str]:
        return [re.sub(r"([^\W\d_…]+)(…?)", short, word) for word in part]

    return lambda parts, too_long: [cut(p) if long else p for p, long in zip(parts, too_long, strict=True)]


def beginning(text: str, longest: int) -> str:
    """The beginning of a long name; what a class is called is said first."""
    text = clean(text)
    return text if len(text) <= longest else text[: longest - 1].rstrip() + "…"


def joined(items: Sequence[str], word: str = "and") -> str:
    """A list in words.

    >>> joined(["a"]), joined(["a", "b"]), joined(["a", "b", "c"], "or")
    ('a', 'a and b', 'a, b or c')
    """
    *most, last = items or [""]
    return f"{', '.join(most)} {word} {last}" if most else last


def counted(n: int, one: str, many: str | None = None) -> str:
    """A count with its noun: 1 site, 1,000 samples."""
    return f"{n:,} {one if n == 1 else many or one + 's'}"


def ratio_words(log_ratio: float) -> str:
    """A ratio from its logarithm, at any size.

    >>> ratio_words(2.5), ratio_words(12.0), ratio_words(1000.0), ratio_words(math.inf)
    ('12.2', '1.6·10⁵', '10⁴³⁴', '∞')
    >>> ratio_words(math.log(1e9)), ratio_words(math.log(99960))  # rounding carries over to the power
    ('1.0·10⁹', '1.0·10⁵')
    """
    if math.isinf(log_ratio):
        return "∞"
    digits = log_ratio / math.log(10)
    if digits < 4:
        return number(math.exp(log_ratio))
    if digits >= 15:
        return f"10{power(round(digits))}"
    mantissa, exponent = f"{math.exp(log_ratio):.1e}".split("e")
    return f"{mantissa}·10{power(int(exponent))}"


def with_error(share: float | None, error: float | None) -> str:
    """A share with its standard error, as percent.

    >>> with_error(0.812, 0.004), with_error(0.812, None)
    ('81.2 ± 0.4%', '81.2%')
    """
    return percent(share) if error is None else f"{percent(share)[:-1]} ± {100 * error:.1f}%"


def error_in_words(error: BaseException) -> str:
    """An error in a line: its kind and what it says.

    >>> error_in_words(ValueError("no \\n number"))
    'ValueError: no number'
    """
    return f"{type(error).__name__}: {' '.join(str(error).split())}"


def first_other(here: Any, there: Any) -> tuple[str, str, str]:
    """Two values in words; of tuples the first entries that print differently, and which of them these are.

    >>> first_other((1, "a"), (1, "b")), first_other((1, 2), (1.0, 2))
    (("'a'", "'b'", ' (number 2 of them)'), ('1', '1.0', ' (number 1 of them)'))
    """
    if not (isinstance(here, tuple) and isinstance(there, tuple)):
        return shown(here), shown(there), ""
    nothing = object()
    pairs = enumerate(zip_longest(here, there, fillvalue=nothing), 1)
    at, both = next((at, pair) for at, pair in pairs if repr(pair[0]) != repr(pair[1]))
    one, other = ("nothing" if value is nothing else shown(value) for value in both)
    return one, other, f" (number {at} of them)"
