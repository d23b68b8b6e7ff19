"""What a user's own sweep says: which point is fastest, by how much, and which needs least memory."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pandas as pd

from analysis.answers.words import (
    TIME,
    closing,
    doubts,
    figure,
    listed,
    memory,
    middle,
    number,
    points,
    sentence,
    spread,
    versus,
)
from analysis.engine_speed import RATIOS
from microp.store import LAUNCH, records

MEMORY, BUBBLE, EACH = "activation_mib", "bubble.measured", "row_ms"


def answer(rows: pd.DataFrame, keys: Sequence[str]) -> str:
    """Return up to four sentences on the points of a sweep.

    Args:
        rows: one row per run, with the column `activation_mib`.
        keys: the columns that name a point, in words that a reader understands.
    """
    same = rows["batch_size"].nunique() == 1
    rows = rows.assign(**{EACH: rows[TIME] / rows["batch_size"]}, **{"": ""})
    by = list(keys) or [""]
    table = points(rows, by, [TIME, EACH, BUBBLE, MEMORY])
    value = TIME if same else EACH
    found = records(table.sort_values([value, *by]))
    against = _against(rows, found, by, value)
    told = [_fastest(rows, found, by, same), *against, *_engines(rows, by), *_least_memory(found, by)]
    doubt = doubts(table, value, "points").strip(" ()") if len(table) > 1 else ""
    uncertain = [f"{doubt}, so the order of the points is uncertain"] * bool(doubt)
    return " ".join(map(sentence, [*told, *uncertain, closing(rows, by, compared=bool(against))]))


def _fastest(rows: pd.DataFrame, found: list[dict[str, Any]], by: list[str], same: bool) -> str:
    """Return the fastest point, and of several the slowest; per row of the batch where the batches differ."""
    first, last = found[0], found[-1]
    time = f"{spread(first, TIME, 'ms per step')}{_of_steps(_rows_of(first, rows, by))}"
    if len(found) == 1:
        return f"{time}, with a bubble of {figure(first, BUBBLE)}"
    fastest = f"fastest of {len(found)} points: {_name(first, by)} with {time}"
    if same:
        return (
            f"{fastest}, and a bubble of {figure(first, BUBBLE)}; slowest: {_name(last, by)} with "
            f"{spread(last, TIME, 'ms')}"
        )
    return (
        f"{fastest}, which are {spread(first, EACH, 'ms per row of the batch')}; slowest: {_name(last, by)} with "
        f"{spread(last, EACH, 'ms per row')}"
    )


def _engines(rows: pd.DataFrame, by: list[str]) -> list[str]:
    """Return how the engines compare in the runs with engine=compare, whose steps take turns."""
    known = [ratio for ratio in RATIOS if ratio in rows and rows[ratio].notna().any()]
    if not known:
        return []
    table = points(rows.dropna(subset=known, how="all"), by, known)
    ratios = listed([f"{RATIOS[ratio]} {middle(table[ratio])}" for ratio in known])
    over = f", medians over {len(table)} points with their ranges" if len(table) > 1 else ""
    return [f"step times of engines that take turns, as ratios: {ratios}{over}"]


def _of_steps(own: pd.DataFrame) -> str:
    """Return the spread of the steps of a point that has one launch."""
    if len(own) > 1:
        return ""
    [row] = records(own)
    low, high = (number(row[f"step_ms.{part}"], row[TIME]) for part in ("p10", "p90"))
    return f", {low} to {high} ms for 80 % of its steps"


def _rows_of(point: dict[str, Any], rows: pd.DataFrame, by: list[str]) -> pd.DataFrame:
    return rows[(rows[by] == [point[key] for key in by]).all(axis=1)]


def _against(rows: pd.DataFrame, found: list[dict[str, Any]], by: list[str], value: str) -> list[str]:
    """Return the verdict on the two fastest points, if both have several launches."""
    if len(found) < 2 or min(point["launches"] for point in found[:2]) == 1:
        return []
    first, second = (_rows_of(point, rows, by) for point in found[:2])
    if any(own[LAUNCH].duplicated().any() for own in (first, second)):  # a folder of runs that differ in other keys
        return []
    return [f"the two fastest compared: {versus(_name(found[0], by), first, _name(found[1], by), second, value)}"]


def _least_memory(found: list[dict[str, Any]], by: list[str]) -> list[str]:
    known = [point for point in found if point[MEMORY] == point[MEMORY]]
    if len(known) < 2:
        return []
    least, most = (choose(known, key=lambda point: point[MEMORY]) for choose in (min, max))
    if least[MEMORY] == most[MEMORY]:
        return [f"the rank that holds most keeps {memory(least[MEMORY])[0]} of activations at every point"]
    small, large = memory(least[MEMORY], most[MEMORY])
    return [
        f"least memory: {_all(known, least, by)}, where the rank that holds most keeps {small} of activations; "
        f"most: {_all(known, most, by)} with {large}"
    ]


def _all(points: list[dict[str, Any]], like: dict[str, Any], by: list[str]) -> str:
    """Return the name of a point, or how many points have as much memory."""
    equal = sum(point[MEMORY] == like[MEMORY] for point in points)
    return _name(like, by) if equal == 1 else f"{equal} points"


def _name(point: dict[str, Any], by: list[str]) -> str:
    return ", ".join(str(point[key]) for key in by)
