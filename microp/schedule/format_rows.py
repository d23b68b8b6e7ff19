"""Formats a schedule's rows around some of its actions, as text that fits a terminal.

::

    rank 0   0F0 [0F1][0B0] 0B1  …  0W1        marked actions are in brackets; actions far from
    rank 1   1F0  1B0  1F1  1B1  …  1W1        all of them are left out

A column is an index into the rows, the same for every rank; it does not stand for a time.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from microp.schedule.schedule import Action, Schedule

MOST_RANKS = 8
NEAR = 4  # actions drawn on each side of a marked one, if there is room
GAP = " … "


def format_rows(schedule: Schedule, marked: Collection[Action], width: int = 100) -> str:
    """Return the rows with marked actions and the neighbouring ranks' rows, cut to the actions near a marked one.

    ::

        rank 1  …  1F3 [1F4] 1B0  1W0  …
        rank 2  …  2F2  2B0 [2W1] 2B1  …

    Args:
        marked: the actions to mark; each is marked wherever it occurs.
        width: the most characters in a line. At least one column is drawn, even if it is wider.

    Returns:
        One line per rank; an empty string if no marked action is in the schedule.
    """
    places: dict[int, set[int]] = {}  # rank -> the indices of marked actions in its row
    for rank, row in enumerate(schedule.ranks):
        if found := {place for place, action in enumerate(row) if action in marked}:
            places[rank] = found
    if not places:
        return ""
    shown = _with_neighbours(list(places), len(schedule.ranks))
    rows = {f"rank {rank}": schedule.ranks[rank] for rank in shown}
    wanted = set().union(*(places.get(rank, ()) for rank in shown))
    longest = max(map(len, rows.values()))
    for near in range(NEAR, -1, -1):
        around = {column for place in wanted for column in range(place - near, place + near + 1)}
        columns = sorted(column for column in around if 0 <= column < longest)[:width]  # more cannot fit
        lines = _lines(rows, columns, marked)
        if max(map(len, lines)) <= width:
            break
    while max(map(len, lines)) > width and len(columns) > 1:
        columns.pop()
        lines = _lines(rows, columns, marked)
    return "\n".join(lines)


def _with_neighbours(ranks: Sequence[int], count: int) -> list[int]:
    """Return the ranks and those next to them; if these are too many, the first `MOST_RANKS` of the ranks."""
    near = sorted({near for rank in ranks for near in (rank - 1, rank, rank + 1) if 0 <= near < count})
    return near if len(near) <= MOST_RANKS else list(ranks[:MOST_RANKS])


def _lines(rows: Mapping[str, Sequence[Action]], columns: Sequence[int], marked: Collection[Action]) -> list[str]:
    """Return each row's label and its cells in the columns; a cell has room for the longest action in brackets."""
    size = 2 + max(len(str(row[column])) for row in rows.values() for column in columns if column < len(row))
    margin = max(map(len, rows)) + 1
    return [f"{label:{margin}}{_line(row, columns, size, marked)}".rstrip() for label, row in rows.items()]


def _line(row: Sequence[Action], columns: Sequence[int], size: int, marked: Collection[Action]) -> str:
    line, before = "", -1
    for column in columns:
        line += GAP if column > before + 1 else ""
        action = row[column] if column < len(row) else None
        cell = "" if action is None else f"[{action}]" if action in marked else f" {action} "
        line, before = line + cell.ljust(size), column
    return line + (GAP if before + 1 < len(row) else "")
