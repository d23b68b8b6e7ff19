"""How the time of an action at any number of rows differs from a line between those of a profile's cases.

::

    ms │          x 23 rows: factor 1.05
       │     x  ·   ·
       │  ·          x 24 rows: factor 1.00       ── the line from 16 to 32 rows
       └─16────────────32── rows
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from microp.planner.profile import interpolate


def numbers_of_rows(batch: int) -> list[int]:
    """Return every number of rows that a microbatch of a batch can have, ascending."""
    return sorted({rows for chunks in range(1, batch + 1) for rows in (batch // chunks, -(-batch // chunks))})


def row_factors(
    rows: Sequence[int], times: Mapping[str, Sequence[float]], places: Sequence[float]
) -> dict[str, tuple[float, ...]]:
    """Return, by op, the factor at each number of rows; none where there are no two places to draw a line through.

    Args:
        rows: the numbers of rows, ascending.
        times: by op, the time at each of them.
        places: the numbers of rows of a profile, at which the factor is 1; those within `rows` count.
    """
    inside = [place for place in places if rows[0] <= place <= rows[-1]]
    if len(inside) < 2:
        return {}
    found = {}
    for op, own in times.items():
        known = [interpolate(rows, own, place) for place in inside]
        lines = [interpolate(inside, known, count) if count <= inside[-1] else 0.0 for count in rows]
        found[op] = tuple(time / line if line > 0 else 1.0 for time, line in zip(own, lines, strict=True))
    return found
