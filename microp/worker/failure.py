"""Tells why a launch failed: which rank is guilty, and where to read more.

::

    error.rank<r>.json     ┐
    all ranks' exit codes  ┼─► RankError: one rank failed      WriteError: no rank can write its rows here
    what the watch ended   ┘
"""

from __future__ import annotations

import signal
from pathlib import Path

from torch.distributed.elastic.multiprocessing.errors import ChildFailedError

from microp.store import Row, WriteError, full_disk, read_errors
from microp.worker.forkserver import early_output
from microp.worker.watch import Watch

NO_SERVER = "the process from which the ranks are forked was killed, perhaps for lack of memory"
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

    def failure(rank: int, why: str) -> RankError:
        return RankError(why, log_of(attempt, rank))

    def ended_itself(rank: int, code: int) -> RankError:
        log = log_of(attempt, rank)
        said = (log.read_text(errors="replace") if log.is_file() else early_output()).strip().splitlines()
        last = f": {said[-1]}" if said else ""
        return failure(rank, f"rank {rank} ended with exit code {code} {watch.where(rank)}{last}")

    for rank, why in watch.ended.items():
        if "stopped" in why:
            return failure(rank, f"rank {rank} {why}")
    written = read_errors(attempt)
    known = {each["world_rank"] for each in written}
    codes = {**watch.exits.codes(), **{rank: ended.exitcode for rank, ended in error.failures.items()}}
    if _UNKNOWN in codes.values():
        return no_server(attempt)
    silent = {rank: codes[rank] for rank in sorted(codes.keys() - {*known, *watch.ended, *watch.exits.asked})}
    for rank, code in silent.items():
        if code < 0:
            return failure(rank, f"rank {rank} was killed by {_signal_name(-code)} {watch.where(rank)}")
    for rank, code in silent.items():
        if code > 1 or (code == 0 and not watch.has_finished(rank)):
            return ended_itself(rank, code)
    if all(each["lost_peer"] for each in written) and (no_room := full_disk(attempt / "logs")):
        return no_room  # the guilty rank could not even write its error
    if written:
        return error_of(written[0], log_of(attempt, written[0]["guilty_rank"]))
    rank, ended = next(iter(error.failures.items()))
    return ended_itself(rank, ended.exitcode)


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
