"""Says in a few sentences which of a command's runs are faster: faster, slower, or too noisy to say.

::

    schedule  repeat  step ms
    gpipe     0       50.2
    1f1b      0       48.1     ──►  1f1b is 4.1 % faster than gpipe [2.2 %, 6.0 %], 3 launches each
    ...

Runs are compared if one thing differs between them, besides the launch: the first value is what the others are
compared with. Engines, or ways to sum, that ran in turn in one launch are compared by the ratios that the table shows:
each is the median over the turns of a launch, so that what slows down both in a turn is no difference.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from itertools import permutations
from typing import NamedTuple

from microp.results.comparison import compare
from microp.results.run_rows import PointRow
from microp.results.swept import swept

SLOWER, STARVED = 1.03, 1.1  # a step counts as slower, and a row as slower to compute, from these factors on
LINES = 4  # of comparisons; `python -m microp.runs` compares any two groups
BRACKETS = "[ ]: 95 % interval of the difference or of the ratio, over launches"
LAUNCH = "repeat"
_TURNS = {("torch", "microp"): "engines", ("ddp", "torch_ddp"): "syncs"}  # ran in turn: where the summary has them


def verdicts(rows: Sequence[PointRow]) -> list[str]:
    """Return what the launches say about which is faster, as sentences; none if there is nothing to compare."""
    rows = [row for row in rows if row.summary["step_ms"]]
    keys = swept([row.config for row in rows]) if rows else {}
    keys.pop(LAUNCH, None)
    points: dict[str, list[PointRow]] = {}
    for row, *values in zip(rows, *keys.values(), strict=True):
        texts = zip(keys, values, strict=True)  # the option of a group, `key=value` of another key
        names = [value if isinstance(row.config.get(key), Mapping) else f"{key}={value}" for key, value in texts]
        points.setdefault(" ".join(names), []).append(row)
    pairs = [pair for name, launches in points.items() for pair in _in_turn(name, launches)]
    if not pairs and len(keys) == 1:
        (base, first), *others = points.items()
        pairs = [_Pair(name, base, _times(launches), _times(first)) for name, launches in others]
    return _sentences(pairs)


def small_microbatches(rows: Sequence[PointRow]) -> str | None:
    """Return why steps took longer with more microbatches: the same rows took longer to compute; None if none did.

    Runs are compared that differ in nothing but the number of microbatches, by the time that their ranks compute. The
    pair of numbers is named at which a row's time grew most, with all schedules that show it. Nominal times do not know
    how well a core is used, and on a machine with other work a row takes longer whatever its microbatch.
    """
    alike: dict[str, list[PointRow]] = {}
    for row in rows:
        is_alone = all(reason.kind == "spread" for reason in row.disturbed)
        if row.summary["step_ms"] and row.summary["device"] != "emulated" and is_alone:
            question = {key: value for key, value in row.config.items() if key not in ("chunks", LAUNCH)}
            alike.setdefault(json.dumps(question, sort_keys=True, default=str), []).append(row)
    slower = [
        (_busy_ms(many) / _busy_ms(few), few, many)
        for runs in alike.values()
        for few, many in permutations(runs, 2)
        if few.config["chunks"] < many.config["chunks"]
        and many.summary["step_ms"]["median"] > SLOWER * few.summary["step_ms"]["median"]
        and _busy_ms(many) > STARVED * _busy_ms(few)
    ]
    if not slower:
        return None
    _, first, last = max(slower, key=lambda pair: pair[0])
    (rows_of_few, chunks), (rows_of_many, more) = map(_microbatch, (first, last))
    same = [
        pair
        for pair in slower
        if (_microbatch(pair[1]), _microbatch(pair[2])) == (_microbatch(first), _microbatch(last))
    ]
    factors = sorted({f"{factor:.1f}" for factor, _, _ in same}, key=float)
    names = ", ".join(dict.fromkeys(many.summary["schedule"] for _, _, many in same))
    return (
        f"{names} took longer with chunks={more} than with {chunks}: a row of a microbatch of {rows_of_many:g} took "
        f"{' to '.join(dict.fromkeys((factors[0], factors[-1])))} times as long as one of {rows_of_few:g}; the "
        "microbatches are too small for this model"
    )


def _busy_ms(row: PointRow) -> float:
    """Return the time that a rank computes in a step, the mean over the ranks, by the medians over the steps."""
    return float(row.summary["step_ms"]["median"] * (1 - row.summary["bubble"]["measured"]))


def _microbatch(row: PointRow) -> tuple[float, int]:
    """Return the mean rows of a microbatch, and the number of microbatches."""
    chunks = row.config["chunks"]
    return round(row.config["batch_size"] / row.config["replicas"] / chunks, 1), chunks


class _Pair(NamedTuple):
    """Two groups of launches: what they are called, and their times by launch."""

    name: str
    other: str
    times: dict[int, float]
    others: dict[int, float]  # 1 for each launch, if `times` are ratios
    of: str = ""


def _sentences(pairs: Sequence[_Pair]) -> list[str]:
    compared = [compare(pair.times, pair.others) for pair in pairs]
    if compared and all(1 in comparison.launches for comparison in compared):  # the same sentence for all
        names = list(dict.fromkeys(pair.name for pair in pairs))
        some = ", ".join([*names[:LINES], *["..."] * (len(names) > LINES)])
        return [compared[0].sentence(some, pairs[0].other)]
    said = [f"{pair.of}{result.sentence(pair.name, pair.other)}" for pair, result in zip(pairs, compared, strict=True)]
    if (more := len(said) - LINES) > 0:
        said[LINES:] = [f"{more} more comparisons: python -m microp.runs"]
    return [*said, BRACKETS] if any("[" in sentence for sentence in said) else said


def _times(rows: Sequence[PointRow]) -> dict[int, float]:
    """Return the median step time of each launch, by its number."""
    return {int(row.config[LAUNCH]): row.summary["step_ms"]["median"] for row in rows}


def _in_turn(point: str, rows: Sequence[PointRow]) -> Iterator[_Pair]:
    """Yield what ran in turn within each launch of a point."""
    for (name, other), key in _TURNS.items():
        shown = {int(row.config[LAUNCH]): (row.summary.get(key) or {"ratio": {}})["ratio"] for row in rows}
        ratios = {launch: ratio for launch, of in shown.items() if (ratio := of.get(f"{name}/{other}"))}
        if ratios:
            yield _Pair(name, other, ratios, dict.fromkeys(ratios, 1.0), f"{point}: " if point else "")
