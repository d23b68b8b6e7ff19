"""Names an order that was found in a trace, if it is one that microp builds."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from inspect import signature
from typing import Any

from microp.schedule import Schedule
from microp.schedule.builders import LOOPED, ORDERS

UNKNOWN = "foreign"  # the name of an order that microp does not build


def named(schedule: Schedule) -> Schedule:
    """Return the schedule with the name of the order that it is, or with the name UNKNOWN."""
    ranks = len(schedule.ranks)
    for name, build in ORDERS.items():
        for keys in _keys(name, build, schedule.stages // ranks):
            try:
                built = build(ranks, schedule.chunks, **keys)
            except ValueError:  # not for these ranks and chunks
                continue
            if built.ranks == schedule.ranks:
                return built
    return replace(schedule, name=UNKNOWN)


def _keys(name: str, build: Any, stages_per_rank: int) -> Iterator[dict[str, Any]]:
    """Yield the values of a builder's own keys that are tried."""
    known = signature(build).parameters
    drains: list[Any] = list(type(known["drain"].default)) if "drain" in known else [None]
    for drain in drains:
        keys = {"stages_per_rank": stages_per_rank} if name in LOOPED else {}
        yield keys if drain is None else {**keys, "drain": drain}
