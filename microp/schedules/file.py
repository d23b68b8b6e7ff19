"""A schedule that a user wrote down."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from microp.schedule import Schedule
from microp.schedule_io import from_text, from_torch_csv


def from_file(ranks: int, chunks: int, path: str) -> Schedule:
    """The schedule in a text file, in our form (it starts with our header) or as torch's CSV.

    ::

        # microp schedule mine chunks=2 ranks=2
        0F0 0F1 0B0 0B1
        1F0 1B0 1F1 1B1

    It is named "file" whatever its header says: a name stands for an order, which a file may
    have changed.

    Raises:
        ValueError: the file cannot be read, an action cannot (with line and column), or the
            schedule is for other ranks and chunks than these.
    """
    try:
        text = Path(path).read_text()
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not text"
        raise ValueError(f"path={path} cannot be read: {reason}") from error
    try:
        schedule = from_text(text) if text.lstrip().startswith("#") else from_torch_csv(text, "file")
    except ValueError as error:
        raise ValueError(f"path={path}: {error}") from error
    if (len(schedule.ranks), schedule.chunks) != (ranks, chunks):
        found = f"ranks={len(schedule.ranks)} chunks={schedule.chunks}"
        raise ValueError(f"path={path} is a schedule for {found}, not for ranks={ranks} chunks={chunks}: set {found}")
    return replace(schedule, name="file")
