"""Tells why a launch failed: which rank is guilty, and where to read more; and that a training can no longer be saved.

::

    error.rank<r>.json, the first that blames no other rank          ┐
    else the first rank that torch's launcher saw end, if it is mute ┼─► RankError: one rank failed
    else the rank that the others waited for, by their heartbeats    ┘   WriteError: no rank can write its rows here
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import torch
from torch import nn
from torch.distributed.elastic.multiprocessing.errors import ProcessFailure

from microp.comms import Heartbeats, last_awaited
from microp.job import Job
from microp.records import Row, WriteError, full_disk, read_errors

_BEGINS = "Traceback (most recent call last):"


class RankError(RuntimeError):
    """A rank failed; the message names the rank, and the action and the step if they are known.

    `log` is the file with what the rank printed, or wrote about its error.
    """

    def __init__(self, message: str = "", log: Path | None = None) -> None:
        super().__init__(message)
        self.log = log


class DivergedError(ArithmeticError):
    """The loss or the weights are not finite; the message names the step, the rank and the remedy."""


def what_failed(
    job: Job, attempt: Path, failures: Mapping[int, ProcessFailure], heartbeats: Heartbeats
) -> RankError | WriteError:
    """Return the failure as the guilty rank told it, or as the launcher saw it.

    `attempt` has the errors and logs of the ranks, `failures` how the first rank ended that torch's launcher saw end.
    """
    errors = read_errors(attempt)
    told = [error["world_rank"] for error in errors]
    if not errors or errors[0]["lost_peer"]:
        if no_room := full_disk(attempt / "logs"):
            return no_room  # the guilty rank could not even write its error
        rank, ended = next(iter(failures.items()))
        if rank not in told:
            return _ended(job, attempt, rank, ended, heartbeats)
        is_late = errors[0]["guilty_rank"] != told[0]  # and may still run
        if not is_late and (lost := last_awaited(heartbeats, job.schedule, told[0])) not in told:
            return _ended(job, attempt, lost, None, heartbeats)
    return _error_of(errors[0], _log_of(attempt, errors[0]["guilty_rank"]))


def _ended(job: Job, attempt: Path, rank: int, ended: ProcessFailure | None, heartbeats: Heartbeats) -> RankError:
    """Return the failure of a rank that has written no error; None: how it ended is not known."""
    beat, log = heartbeats.read(rank), _log_of(attempt, rank)
    where = f"in {beat.where(job.schedule, rank % job.ranks)}, step {beat.step}" if beat.pid else "before its start"
    if ended is None:
        return RankError(f"rank {rank} was lost {where}, and wrote no error", log)
    if ended.exitcode < 0:
        return RankError(f"rank {rank} was killed by {ended.signal_name()} {where}", log)
    text = log.read_text(errors="replace") if log.is_file() else ""
    lines = [line for line in text.splitlines() if line and not line[0].isspace() and line != _BEGINS]
    last = f": {lines[-1]}" if lines else ""
    return RankError(f"rank {rank} ended with exit code {ended.exitcode} {where}{last}", log)


def _log_of(attempt: Path, rank: int) -> Path:
    """Return the file of what a rank printed, or the folder of the logs if it had not begun."""
    return next((attempt / "logs").glob(f"*/attempt_0/{rank}/stderr.log"), attempt / "logs")


def first_error(attempt: Path) -> RankError | WriteError | None:
    """Return the error of the rank that failed first, as it wrote it; None if no rank has written one."""
    errors = read_errors(attempt)
    return _error_of(errors[0], attempt / f"error.rank{errors[0]['world_rank']}.json") if errors else None


def _error_of(row: Row, log: Path) -> RankError | WriteError:
    return WriteError(row["message"]) if row["cannot_write"] else RankError(row["message"], log)


# --- numbers that are not finite ------------------------------------------------------------------


def not_finite(layers: Mapping[int, nn.Module]) -> tuple[int, str] | None:
    """Return the last of these layers with a weight that is not finite, and the weight's name; None if all are.

    A backward passes on what is not finite from layer to layer, to the first one: it came in at the last of them or
    behind it. What is not trained may hold infinities, as an attention mask does, but not NaN.
    """
    for index, layer in sorted(layers.items(), reverse=True):
        for name, tensor in (*layer.named_parameters(), *layer.named_buffers()):
            bad = ~torch.isfinite(tensor) if tensor.requires_grad else torch.isnan(tensor)
            if bad.any():
                return index, name
    return None


def remedy(job: Job, step: int) -> str:
    """Return what to do if a step is the first in which something was not finite."""
    if step == 0:  # nothing has been learned yet
        return "look at the model and the data, for before the first step no learning rate has been used"
    return f"lower learning_rate={job.learning_rate:g}"
