"""Tells why a launch failed: which rank is guilty, and where to read more.

::

    error.rank<r>.json     ┐
    all ranks' exit codes  ┼─► RankError: one rank failed      WriteError: no rank can write its rows here
    what the watch ended   ┘
"""

from __future__ import annotations

import signal
from collections.abc import Collection, Mapping
from pathlib import Path

from torch.distributed.elastic.multiprocessing.errors import ChildFailedError

from microp.store import Row, WriteError, full_disk, read_errors
from microp.worker.forkserver import early_output
from microp.worker.watch import Watch

NO_SERVER = "the process from which the ranks are forked was killed, perhaps for lack of memory"
_BEGINS = "Traceback (most recent call last):"
_UNKNOWN = 255  # the exit code that multiprocessing tells of a process if the one that forked it has gone


class RankError(RuntimeError):
    """A rank failed; the message names the rank, and the action and the step if they are known.

    Attributes:
        log: the file with what the rank printed, or wrote about its error.
    """

    def __init__(self, message: str = "", log: Path | None = None) -> None:
        super().__init__(message)
        self.log = log


def what_failed(attempt: Path, error: ChildFailedError, watch: Watch) -> RankError | WriteError:
    """Return the failure as the guilty rank told it, or as the launcher saw it.

    The rank that elastic names has often failed only because another rank did: the guilty one is a rank that has
    written no error and was ended by a signal that is not the launcher's, or has ended itself before it had finished.
    """
    for rank, why in watch.ended.items():
        if "stopped" in why:
            return RankError(f"rank {rank} {why}", log_of(attempt, rank))
    written = read_errors(attempt)
    codes = {**watch.exits.codes(), **{rank: ended.exitcode for rank, ended in error.failures.items()}}
    if _UNKNOWN in codes.values():
        return no_server(attempt)
    only_lost = all(each["lost_peer"] for each in written)
    if guilty := _silent(attempt, watch, codes, {each["world_rank"] for each in written}, only_lost):
        return guilty
    if only_lost and (no_room := full_disk(attempt / "logs")):
        return no_room  # the guilty rank could not even write its error
    if written:
        return error_of(written[0], log_of(attempt, written[0]["guilty_rank"]))
    rank, ended = next(iter(error.failures.items()))
    return _ended_itself(attempt, watch, rank, ended.exitcode)


def _silent(
    attempt: Path, watch: Watch, codes: Mapping[int, int], told: Collection[int], only_lost: bool
) -> RankError | None:
    """Return the failure of a rank that ended without an error of its own, or None.

    Args:
        attempt: the folder of the ranks' logs.
        watch: knows which ranks were ended, or asked to end.
        codes: rank -> its exit code.
        told: the ranks that wrote their error.
        only_lost: whether these only lost others; then a rank that the launcher asked to end may have been dying.
    """
    others = codes.keys() - {*told, *watch.ended}
    silent = {rank: codes[rank] for rank in sorted(others - watch.exits.asked)}
    dying = [rank for rank in sorted(others & watch.exits.asked) if only_lost and codes[rank] != -signal.SIGTERM]
    for rank in (*silent, *dying):
        if codes[rank] < 0:
            name = _signal_name(-codes[rank])
            return RankError(f"rank {rank} was killed by {name} {watch.where(rank)}", log_of(attempt, rank))
    for rank, code in silent.items():
        if code > 1 or (code == 0 and not watch.has_finished(rank)):
            return _ended_itself(attempt, watch, rank, code)
    return None


def _ended_itself(attempt: Path, watch: Watch, rank: int, code: int) -> RankError:
    log = log_of(attempt, rank)
    text = log.read_text(errors="replace") if log.is_file() else early_output()
    lines = [line for line in text.splitlines() if line and not line[0].isspace() and line != _BEGINS]
    last = f": {lines[-1]}" if lines else ""  # below it may stand the begin of what another rank prints
    return RankError(f"rank {rank} ended with exit code {code} {watch.where(rank)}{last}", log)


def no_server(attempt: Path) -> RankError | WriteError:
    """Return the failure of a launch whose ranks can no longer be forked; a full disk ends that process too."""
    return full_disk(attempt / "logs") or RankError(NO_SERVER)


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:  # a real-time signal
        return f"signal {number}"


def error_of(row: Row, log: Path) -> RankError | WriteError:
    """Return the error that a rank wrote to its file."""
    if row["cannot_write"]:
        return WriteError(row["message"], row["no_room"])
    return RankError(row["message"], log)


def log_of(attempt: Path, rank: int) -> Path:
    """Return the file of what a rank printed, or the folder of the logs if it had not begun."""
    return next((attempt / "logs").glob(f"*/attempt_0/{rank}/stderr.log"), attempt / "logs")
