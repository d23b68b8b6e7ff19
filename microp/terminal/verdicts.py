"""Says in a few sentences which of a command's runs are faster: faster, slower, or too noisy to say.

::

    schedule  repeat  step ms
    gpipe     0       50.2
    1f1b      0       48.1     ──►  1f1b is 4.1 % faster than gpipe [2.2 %, 6.0 %], 3 launches each
    ...

Runs are compared if one thing differs between them, besides the launch: the first value is what the others are
compared with. Engines, or ways to sum, that ran in turn in one launch are compared with each other.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import reduce
from operator import getitem
from typing import NamedTuple

from microp.store import compare
from microp.terminal.run_rows import Row
from microp.terminal.swept import swept

LINES = 4  # of comparisons; `python -m microp.runs` compares any two groups
BRACKETS = "[ ]: 95 % interval of the difference or of the ratio, over launches"
LAUNCH = "repeat"
_TURNS = {  # what ran in turn in one launch: where its times are in the summary
    ("torch", "microp"): ("engines", "pipeline_ms"),
    ("ddp", "torch_ddp"): ("syncs", "step_ms"),
}


def verdicts(rows: Sequence[Row]) -> list[str]:
    """Return what the launches say about which is faster, as sentences; none if there is nothing to compare."""
    rows = [row for row in rows if row.summary["step_ms"]]
    keys = swept([row.config for row in rows]) if rows else {}
    keys.pop(LAUNCH, None)
    points: dict[str, list[Row]] = {}
    for row, *values in zip(rows, *keys.values(), strict=True):
        points.setdefault(" ".join(_names(row, dict(zip(keys, values, strict=True)))), []).append(row)
    found = [each for name, own in points.items() for each in _in_turn(name, own)]
    if not found and len(keys) == 1:
        (base, first), *others = points.items()
        found = [_Pair(name, base, _times(own, "step_ms"), _times(first, "step_ms")) for name, own in others]
    return _sentences(found)


class _Pair(NamedTuple):
    """Two groups of launches: what they are called, and their times."""

    name: str
    other: str
    times: dict[int, float]
    others: dict[int, float]
    of: str = ""


def _sentences(pairs: Sequence[_Pair]) -> list[str]:
    compared = [compare(pair.times, pair.others) for pair in pairs]
    if compared and all(1 in each.launches for each in compared):  # the same sentence for all
        names = list(dict.fromkeys(pair.name for pair in pairs))
        some = ", ".join([*names[:LINES], *["..."] * (len(names) > LINES)])
        return [compared[0].sentence(some, pairs[0].other)]
    found = [f"{pair.of}{each.sentence(pair.name, pair.other)}" for pair, each in zip(pairs, compared, strict=True)]
    if (more := len(found) - LINES) > 0:
        found[LINES:] = [f"{more} more comparisons: python -m microp.runs"]
    return [*found, BRACKETS] if any("[" in each for each in found) else found


def _names(row: Row, values: Mapping[str, str]) -> Iterator[str]:
    """Yield what a point is called: the option of a group, `key=value` of another key."""
    return (value if isinstance(row.config.get(key), Mapping) else f"{key}={value}" for key, value in values.items())


def _times(rows: Sequence[Row], *keys: str) -> dict[int, float]:
    """Return the median time of each launch, by its number; the keys lead to it in the summary."""
    return {int(row.config[LAUNCH]): reduce(getitem, keys, row.summary)["median"] for row in rows}


def _in_turn(point: str, rows: Sequence[Row]) -> Iterator[_Pair]:
    """Yield what ran in turn within each launch of a point."""
    for (name, other), (key, part) in _TURNS.items():
        both = [row for row in rows if {name, other} <= (row.summary.get(key) or {part: {}})[part].keys()]
        if both:
            times, others = (_times(both, key, part, each) for each in (name, other))
            yield _Pair(name, other, times, others, f"{point}: " if point else "")
