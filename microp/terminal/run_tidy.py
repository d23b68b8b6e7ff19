"""Deletes listed runs: shows what would go, asks, and does it.

::

    run                   attempts  W&B runs    size
    gpipe-m4-k2-55b3113b      1, 2         3  41 KiB
    kept, it runs: outputs/runs/1f1b-m4-k2-1f5e3a7b/attempt-2
    delete 1 run (2 attempts, 3 W&B runs, 41 KiB)? [y/N]
"""

from __future__ import annotations

import sys
from pathlib import Path

from microp.settings import size_text
from microp.store import Belongings, Runs, attempts, belongings, is_running, remove
from microp.terminal import columns
from microp.terminal.columns import Column
from microp.terminal.console import error, note, out


def tidy(runs: Runs, single: bool, yes: bool) -> int:
    """Delete runs and return the exit code: 0; 1 if not everything was deleted; 2 if there is nobody to ask.

    Args:
        runs: the rows of runs or attempts.
        single: a row stands for its attempt alone, and not for all attempts of its run.
        yes: do not ask.
    """
    doomed: dict[str, list[Belongings]] = {}
    for folder in map(Path, runs.rows["folder"]):
        siblings = [folder] if single else attempts(folder.parent)
        running = [attempt for attempt in siblings if is_running(attempt)]
        for attempt in running:
            note(f"kept, because it runs or may run: {attempt}")
        if not running:
            doomed.setdefault(folder.parent.name, []).extend(map(belongings, siblings))
    if not doomed:
        error("nothing to delete: all of these runs run")
        return 1
    summary = _show(doomed)
    if not yes:
        if not sys.stdin.isatty():
            error(f"nothing was deleted, because nobody can be asked here: add --yes to delete {summary}")
            return 2
        if input(f"delete {summary}? [y/N] ").strip().lower() not in ("y", "yes"):
            note("nothing was deleted")
            return 1
    flat = [attempt for run in doomed.values() for attempt in run]
    try:
        left = [attempt.attempt for attempt in flat if not remove(attempt)]
    except OSError as problem:
        error(f"{problem}: what comes after it was not deleted")
        return 1
    for attempt in left:
        note(f"kept, because it has been started or deleted meanwhile: {attempt}")
    note(f"deleted {_count(len(flat) - len(left), 'attempt')}; a sweep that planned them runs them again")
    return 1 if left else 0


def _show(doomed: dict[str, list[Belongings]]) -> str:
    """Print what would go, a line per run, and return a summary of it."""
    numbers = [", ".join(attempt.attempt.name.removeprefix("attempt-") for attempt in run) for run in doomed.values()]
    wandb = [sum(len(attempt.wandb) for attempt in run) for run in doomed.values()]
    sizes = [sum(attempt.size for attempt in run) for run in doomed.values()]
    table = [
        Column("run", list(doomed), "left", 100),
        Column("attempts", numbers),
        Column("W&B runs", list(map(str, wandb))),
        Column("size", list(map(size_text, sizes))),
    ]
    columns.show(out, table, "the run's folder")
    counts = [_count(sum(map(len, doomed.values())), "attempt"), _count(sum(wandb), "W&B run"), size_text(sum(sizes))]
    return f"{_count(len(doomed), 'run')} ({', '.join(counts)})"


def _count(number: int, what: str) -> str:
    return f"{number} {what}{'' if number == 1 else 's'}"
