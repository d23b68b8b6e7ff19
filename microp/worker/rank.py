"""Runs all steps of one rank and writes its rows.

::

    warm-up steps ─► measured steps ─► one step for memory
                     the spans of the
                     last are kept
"""

from __future__ import annotations

import gc
import time
import traceback
from pathlib import Path

from microp.comms import Comms
from microp.engine import ActionError
from microp.job import Job
from microp.store import RankRecorder, Row
from microp.worker.trainer import Trainer


def run_rank(job: Job, comms: Comms, local_rank: int, attempt: Path) -> None:
    """Train for the job's steps and write this rank's files into `attempt`.

    Args:
        job: the job of all ranks.
        comms: this rank's transport.
        local_rank: the rank's index on its host.
        attempt: the folder into which the rank writes.

    Raises:
        Exception: any error of a step, after it has been written to `error.rank<r>.json`.
    """
    recorder = RankRecorder(attempt, comms.world_rank, comms.replica)
    gc.collect()
    gc.disable()  # a collection inside a step would count as step time
    try:
        trainer = Trainer(job, comms, local_rank)
        phases = list(job.of(comms.replica).phases())
        traced = max(step for step, phase, engine in phases if phase == "measured" and engine == job.engines[0])
        for step, phase, engine in phases:
            trainer.load(step)
            row = trainer.memory_step(step) if phase == "memory" else trainer.step(step, engine)
            recorder.step({"phase": phase, **row})
            if step == traced:
                recorder.spans(step, trainer.trace.spans)
                recorder.reductions(step, trainer.reductions)
            gc.collect(1)
        comms.barrier()
    except Exception as error:
        recorder.error(_error_row(error, comms))
        raise
    finally:
        gc.enable()
        recorder.close()


def _error_row(error: Exception, comms: Comms) -> Row:
    message = str(error) or type(error).__name__
    if not isinstance(error, ActionError):  # an action's error names the rank itself
        message = f"rank {comms.rank}: {message}"
    return {
        "rank": comms.rank,
        "replica": comms.replica,
        "world_rank": comms.world_rank,
        "message": message,
        "lost_peer": isinstance(error.__cause__ or error, ConnectionError | TimeoutError),
        "time": time.time(),
        "traceback": traceback.format_exc(),
    }
