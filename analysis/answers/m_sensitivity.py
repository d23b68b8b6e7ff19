"""What more microbatches do to the bubble, the speed-up and the memory: from the smallest M to the largest."""

from __future__ import annotations

from typing import Any

import pandas as pd

from analysis import looks
from analysis.answers.words import closing, memory, number, points, sentence, spread, versus
from analysis.exhibit import percent
from analysis.m_sensitivity import NAME, POINT, Part, parts, step_work
from analysis.monolith import speed_ups
from microp.store import Store, records, worst_rank_mib

BUBBLE, FORMULA, SPEED_UP = "bubble.measured", "bubble.closed_form", "speed_up"
GROWING = "per_microbatch_ms"
FAR = 0.1  # of a measured speed-up from its closed form
NEEDS = "a pipelined schedule with at least two values of M"


def answer(store: Store) -> str:
    """Return a sentence per device and K on bubble and speed-up, and one on memory."""
    runs = store.runs(NAME)
    if runs.empty:
        return ""
    runs = runs.assign(work=[step_work(row) for row in records(runs)])
    every = list(parts(runs))
    first: dict[tuple[str, int], Part] = {}
    for part in every:  # the part with a fixed batch comes first
        first.setdefault((part.device, part.ranks), part)
    told = [text for part in first.values() if (text := _of(part, speed_ups(part.rows, runs)))]
    if not told:
        return ""
    rows = pd.concat([part.rows for part in first.values()])
    return " ".join(map(sentence, [*told, *_memory(every), closing(rows, ["device", "ranks", *POINT], compared=True)]))


def _of(part: Part, faster: pd.DataFrame) -> str:
    """Return what happens from the smallest to the largest M under the first pipelined schedule.

    Args:
        part: the runs.
        faster: those of its rows that have a speed-up; without any, times are compared.
    """
    reach = part.rows[part.rows["schedule"] != "naive"].groupby("schedule")["chunks"].nunique()
    names = looks.in_order(sorted(reach[reach > 1].index))
    if not names:
        return ""
    own = part.rows[part.rows["schedule"] == names[0]]
    ends = records(points(own, ["chunks"], [BUBBLE]))
    low, high = ends[0], ends[-1]
    rows = {point["chunks"]: own[own["chunks"] == point["chunks"]] for point in (low, high)}
    formulas = [float(own_rows[FORMULA].iloc[0]) for own_rows in rows.values()]
    known = "" if pd.isna(formulas).any() else f" (closed form: {number(formulas[0])} to {number(formulas[1])})"
    text = (
        f"{part.title}: from M = {low['chunks']} to {high['chunks']} the bubble of {names[0]} goes from "
        f"{spread(low, BUBBLE)} to {spread(high, BUBBLE)}{known}"
    )
    speed_up = _speed_up(faster[faster["schedule"] == names[0]], list(rows), formulas, part.ranks)
    return f"{text}; {speed_up or _time(part, rows)}"


def _speed_up(rows: pd.DataFrame, chunks: list[int], bubbles: list[float], ranks: int) -> str:
    """Return the speed-up over one rank at two M, by measurement and by closed form; empty if it is not known."""
    ends = records(points(rows[rows["chunks"].isin(chunks)], ["chunks"], [SPEED_UP]))
    if len(ends) < len(chunks):
        return ""
    text = f"its speed-up over one rank goes from {' to '.join(spread(point, SPEED_UP) for point in ends)}"
    if pd.isna(bubbles).any():
        return text
    expected = [ranks * (1 - bubble) for bubble in bubbles]
    far = [_far(point, value) for point, value in zip(ends, expected, strict=True)]
    told = "; measured " + " and ".join(filter(None, far)) if any(far) else ""
    return f"{text} (closed form: {' to '.join(map(number, expected))}{told})"


def _far(point: dict[str, Any], expected: float) -> str:
    """Return how far a measured speed-up is from its closed form; empty if it is near."""
    miss = float(point[SPEED_UP]) / expected - 1
    if abs(miss) <= FAR:
        return ""
    return f"{percent(abs(miss), 0)} {'above' if miss > 0 else 'below'} it at M = {point['chunks']}"


def _time(part: Part, rows: dict[int, pd.DataFrame]) -> str:
    """Return the comparison of the step times at two M; with a fixed microbatch, of the times per microbatch."""
    (low, before), (high, after) = rows.items()
    if part.fixed == "batch":
        return versus(f"a step with M = {high}", after, f"one with M = {low}", before)
    each = [own.assign(**{GROWING: own["step_ms.median"] / own["chunks"]}) for own in (after, before)]
    return versus(f"a microbatch with M = {high}", each[0], f"one with M = {low}", each[1], GROWING)


def _memory(found: list[Part]) -> list[str]:
    """Return a sentence on the peak activations under GPipe and 1F1B at the largest common M, if both were run."""
    for part in sorted(found, key=lambda part: part.fixed != "microbatch"):
        rows = part.rows.assign(mib=worst_rank_mib(part.rows)).dropna(subset=["mib"])
        shared = set.intersection(*(set(rows[rows["schedule"] == name]["chunks"]) for name in ("gpipe", "1f1b")))
        if not shared or max(shared) == 1:
            continue
        at = rows[rows["chunks"] == max(shared)]
        gpipe, other = (
            memory(own.min(), own.max())
            for name in ("gpipe", "1f1b")
            if not (own := at[at["schedule"] == name]["mib"]).empty
        )
        where = f"{part.title}, M = {max(shared)}"
        return [
            f"{where}: the rank that holds most keeps {' to '.join(dict.fromkeys(gpipe))} of activations under gpipe, "
            f"{' to '.join(dict.fromkeys(other))} under 1f1b"
        ]
    return []
