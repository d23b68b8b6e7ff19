"""Deletes or archives listed runs: shows what would go, asks, and does it.

::

    run                   attempt  W&B runs    size
    gpipe-m4-k2-55b3113b     1, 2         3  41 KiB
    kept, it runs: outputs/runs/1f1b-m4-k2-1f5e3a7b/attempt-2
    delete 1 run (2 attempts, 3 W&B runs, 41 KiB)? [y/N]
"""

from __future__ import annotations

import sys
from collections import Counter
from pathlib import Path

from microp.settings import size_text
from microp.store import Belongings, archive, attempts, belongings, is_running, remove
from microp.terminal import columns
from microp.terminal.columns import Column
from microp.terminal.console import error, note, out
from microp.terminal.run_search import Found


def tidy(found: Found, single: bool, file: Path | None, yes: bool) -> int:
    """Delete or archive the runs that were found and return the exit code.

    Args:
        found: the rows of runs or attempts.
        single: a row stands for its attempt alone, and not for all attempts of its run.
        file: the archive; None to delete.
        yes: do not ask.

    Returns:
        0; 1 if nothing was done, or not everything; 2 if there is nobody to ask.
    """
    doomed, kept = _doomed(found, single)
    for attempt in kept:
        note(f"kept, because it runs or may run: {attempt}")
    if not doomed:
        error("nothing to delete: all of these runs run")
        return 1
    if file is not None and file.exists():
        error(f"{file} exists: give the archive another name")
        return 2
    _show(doomed)
    summary = _counted(doomed)
    verb = f"archive into {file} and delete" if file else "delete"
    if not yes:
        if not sys.stdin.isatty():
            error(f"nothing was deleted, because nobody can be asked here: add --yes to {verb} {summary}")
            return 2
        if input(f"{verb} {summary}? [y/N] ").strip().lower() not in ("y", "yes"):
            note("nothing was deleted")
            return 1
    return _act(doomed, file)


def _doomed(found: Found, single: bool) -> tuple[list[Belongings], list[Path]]:
    """Return what would go, and the attempts that are kept because their run has one that runs."""
    doomed: list[Belongings] = []
    kept: list[Path] = []
    for folder in [Path(row["folder"]) for row in found.rows]:
        own = [folder] if single else attempts(folder.parent)
        running = [attempt for attempt in own if is_running(attempt)]
        kept += running
        doomed += [] if running else map(belongings, own)
    return doomed, kept


def _show(doomed: list[Belongings]) -> None:
    runs: dict[str, list[Belongings]] = {}
    for each in doomed:
        runs.setdefault(each.attempt.parent.name, []).append(each)
    table = [
        Column("run", list(runs), "left", 100),
        Column(
            "attempts", [", ".join(each.attempt.name.removeprefix("attempt-") for each in own) for own in runs.values()]
        ),
        Column("W&B runs", [str(sum(len(each.wandb) for each in own)) for own in runs.values()]),
        Column("size", [size_text(sum(each.size for each in own)) for own in runs.values()]),
    ]
    columns.show(out, table, "the run's folder")


def _counted(doomed: list[Belongings]) -> str:
    runs = len({each.attempt.parent for each in doomed})
    counts = Counter(attempts=len(doomed)) + Counter({"W&B runs": sum(len(each.wandb) for each in doomed)})
    parts = [f"{count} {name.removesuffix('s') if count == 1 else name}" for name, count in counts.items()]
    size = size_text(sum(each.size for each in doomed))
    return f"{runs} run{'' if runs == 1 else 's'} ({', '.join([*parts, size])})"


def _act(doomed: list[Belongings], file: Path | None) -> int:
    try:
        if file is not None:
            archive(file, doomed)
            print(file)
        left = [each.attempt for each in doomed if not remove(each)]
    except OSError as problem:
        name = f"{problem.filename}: " if problem.filename else ""
        error(f"{name}{problem.strerror or problem}: what comes after it was not deleted")
        return 1
    for attempt in left:
        note(f"kept, because it has been started or deleted meanwhile: {attempt}")
    note(f"deleted {_number(len(doomed) - len(left))}; a sweep that planned them runs them again")
    return 1 if left else 0


def _number(count: int) -> str:
    return f"{count} attempt{'' if count == 1 else 's'}"
