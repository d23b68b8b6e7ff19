"""Says in numbers and words how one figure of two questions compares.

::

    step_ms           72.4  71.4 - 73.2   68.1  68.1 - 69.8  1.053  slower [1.007, 1.101]
    peak_memory_mib  35.57               36.69               0.969  1.12 less
    loss.last         3.54                3.54               1.000  equal
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Sequence

from microp.store import FigurePair

_MOST_DIGITS = 6  # after the point


def number(value: float, form: str) -> str:
    """Return a number in a form such as `.1f`, with more digits if it is so small that fewer than two would be left."""
    fixed = re.fullmatch(r",?\.(\d+)f", form)
    if fixed is None or value == 0 or not math.isfinite(value):
        return format(value, form)
    needed = 1 - math.floor(math.log10(abs(value)))
    if needed > _MOST_DIGITS:
        return format(value, ".2g")
    return (
        format(value, f",.{needed}f" if "," in form else f".{needed}f")
        if needed > int(fixed[1])
        else format(value, form)
    )


def _form(value: float, found: FigurePair) -> str:
    """Return a number of a figure; of a fraction, such as a bubble, the digits after the point are what counts."""
    form = found.figure.form
    return format(value, form) if found.figure.kind == "fraction" else number(value, form)


def middle(found: FigurePair | None, side: int) -> str:
    """Return the median of A (side 0) or B (side 1); - if there is no figure."""
    return _form((found.a, found.b)[side].median, found) if found else "-"


def extent(found: FigurePair | None, side: int) -> str:
    """Return the least and the largest value of A (side 0) or B (side 1) over launches; nothing if they are equal."""
    if not found:
        return ""
    low, high = (_form(value, found) for value in (found.a, found.b)[side][1:])
    return "" if low == high else f"{low} - {high}"


def ratio(value: float | None) -> str:
    """Return a ratio to three digits; - if there is none."""
    return "-" if value is None else f"{value:.3f}"


_WORDS = {"time": ("faster", "slower"), "rate": ("faster", "slower"), "fraction": ("smaller", "larger")}


def word(found: FigurePair) -> str:
    """Return the verdict of a timing, or for an exact figure whether A has less or more."""
    if found.is_equal:
        return "equal"
    if found.comparison:
        words = dict(zip(("faster", "slower"), _WORDS[found.figure.kind], strict=True))
        return words.get(found.comparison.verdict, found.comparison.verdict)
    return "less" if found.a.median < found.b.median else "more"


def verdict(found: FigurePair) -> str:
    """Return the verdict of a timing with its interval, or the difference of an exact figure."""
    if found.is_equal:
        return "equal"
    if found.interval:
        return f"{word(found)} [{found.interval[0]:.3f}, {found.interval[1]:.3f}]"
    if found.comparison:
        return f"{word(found)}: 1 launch"
    difference = _form(abs(found.a.median - found.b.median), found)
    return f"{difference} {word(found)}"


def more(found: FigurePair | None) -> str:
    """Return how many more launches would settle a comparison; - if it is settled."""
    if not found or not found.comparison or found.comparison.more == 0:
        return "-"
    return "> 100" if found.comparison.more is None else str(found.comparison.more)


def tally(own: Sequence[FigurePair]) -> str:
    """Return how often each verdict was given; `too noisy to say` comes last."""
    words = Counter(map(word, own))
    return ", ".join(f"{words[each]} {each}" for each in sorted(words, key=lambda each: (" " in each, each)))
