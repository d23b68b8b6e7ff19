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
    named = [rank for rank, row in enumerate(schedule.ranks) if any(action in marked for action in row)]
    if not named:
        return ""
    # 1. the ranks: with their neighbours, if these are not too many
    near_ranks = [rank for rank in range(len(schedule.ranks)) if {rank - 1, rank, rank + 1} & {*named}]
    shown = near_ranks if len(near_ranks) <= MOST_RANKS else named[:MOST_RANKS]
    rows = {rank: schedule.ranks[rank] for rank in shown}
    # 2. the columns: as many around each marked action as fit
    places = sorted({place for row in rows.values() for place, action in enumerate(row) if action in marked})
    longest = max(map(len, rows.values()))
    for near in range(NEAR, -1, -1):
        around = {column for place in places for column in range(place - near, place + near + 1)}
        columns = sorted(around.intersection(range(longest)))[:width]  # more cannot fit
        lines = _lines(rows, columns, marked)
        if max(map(len, lines)) <= width:
            return "\n".join(lines)
    # 3. if not even the marked ones fit, the first of them
    while max(map(len, lines)) > width and len(columns) > 1:
        columns.pop()
        lines = _lines(rows, columns, marked)
    return "\n".join(lines)


def _lines(rows: Mapping[int, Sequence[Action]], columns: Sequence[int], marked: Collection[Action]) -> list[str]:
    """Return each rank's label and its cells in the columns; a cell has room for the longest action in brackets."""
    size = 2 + max(len(str(row[column])) for row in rows.values() for column in columns if column < len(row))
    margin = len(f"rank {max(rows)} ")
    return [f"{f'rank {rank}':{margin}}{_line(row, columns, size, marked)}".rstrip() for rank, row in rows.items()]


def _line(row: Sequence[Action], columns: Sequence[int], size: int, marked: Collection[Action]) -> str:
    line, before = "", -1
    for column in columns:
        line += GAP if column > before + 1 else ""
        action = row[column] if column < len(row) else None
        cell = "" if action is None else f"[{action}]" if action in marked else f" {action} "
        line, before = line + cell.ljust(size), column
    return line + (GAP if before + 1 < len(row) else "")
