"""Schedules as tests draw them."""

from __future__ import annotations

from microp.schedule import Action, Schedule


def read(*rows: str, chunks: int = 1, name: str = "drawn") -> Schedule:
    return Schedule(name, chunks, tuple(tuple(map(Action.parse, row.split())) for row in rows))
