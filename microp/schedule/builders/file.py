"""Reads a schedule from a user's file."""

from __future__ import annotations

from codecs import BOM_UTF16_BE, BOM_UTF16_LE
from dataclasses import replace
from pathlib import Path

from microp.schedule.schedule import Schedule
from microp.schedule.text import from_text, from_torch_csv


def from_file(ranks: int, chunks: int, path: str, slices: int = 1, copies: int = 1) -> Schedule:
    """Return the schedule in a text file, in microp's form (it starts with the header) or as torch's CSV.

    ::

        # microp schedule mine chunks=2 ranks=2
        0F0 0F1 0B0 0B1
        1F0 1B0 1F1 1B1

    Its name is always "file", not the one in the header: a name stands for a known order, and the
    file may have another.

    Args:
        path: the file; its ranks and chunks must equal those of the configuration.
        slices: of a CSV, which does not tell: the number of slices of each microbatch.
        copies: the same of the copies of the model.

    Raises:
        ValueError: the file cannot be read, a word is not an action (with line and column), or the
            schedule is not for these `ranks` and `chunks`.
    """
    try:
        content = Path(path).read_bytes()
        text = content.decode("utf-16" if content.startswith((BOM_UTF16_LE, BOM_UTF16_BE)) else "utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not text"
        raise ValueError(f"path={path} cannot be read: {reason}: give a text file") from error
    try:
        schedule = (
            from_text(text)
            if text.lstrip("\ufeff\"' ").startswith("#")
            else from_torch_csv(text, "file", slices, copies)
        )
    except ValueError as error:
        raise ValueError(f"path={path}: {error}") from error
    if (len(schedule.ranks), schedule.chunks) != (ranks, chunks):
        given = f"ranks={len(schedule.ranks)} chunks={schedule.chunks}"
        raise ValueError(f"path={path} is a schedule for {given}, not for ranks={ranks} chunks={chunks}: set {given}")
    return replace(schedule, name="file")
