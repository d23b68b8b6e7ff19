"""Runs all steps of one rank and writes its rows.

::

    warm-up steps ─► measured steps ─► one step for memory
                     the spans of the
                     last are kept

A step whose loss is not finite is the last one: every rank writes its row of it, and the rank with the loss raises
`DivergedError`.
"""

from __future__ import annotations

import gc
import math
import time
import traceback
from functools import partial
from pathlib import Path
from time import perf_counter_ns

from microp.comms import Comms, Place, last_awaited
from microp.engine import ActionError, describe_failure
from microp.job import Job
from microp.records import RankRecorder, Row, WriteError
from microp.worker.failure import DivergedError, remedy
from microp.worker.snapshot import Snapshots
from microp.worker.trainer import Trainer


def run_rank(job: Job, comms: Comms, local_rank: int, attempt: Path, clock_offset_ns: int = 0) -> None:
    """Train for the job's steps and write this rank's files into `attempt`.

    `local_rank` is its index on its host. `clock_offset_ns` is added to a moment of this host's clock, to have it on
    the clock of rank 0's host.

    Raises:
        Exception: any error of a step, after it has been written to `error.rank<r>.json`.
    """
    recorder = RankRecorder(attempt, comms.world_rank, comms.replica, clock_offset_ns)
    at = partial(comms.heartbeats.at, comms.world_rank)
    gc.disable()  # a collection inside a step would count as step time
    try:
        # 1. build the training
        trainer = Trainer(job, comms, local_rank)
        snapshots = Snapshots(job, comms, trainer, attempt)
        phases = list(job.of(comms.replica).phases())
        traced = max(step for step, phase, engine in phases if phase == "measured" and engine == job.engines[0])
        diverged: str | None = None  # what this rank says of its loss, once the others have written their rows
        for step, phase, engine in phases:
            # 2. save or load the training, load the batch, run the step
            saved = snapshots.before(step, diverged)
            trainer.load(step)
            row = trainer.memory_step(step) if phase == "memory" else trainer.step(step, engine)

            # 3. write its row, and of the last measured step the trace
            at(Place.RECORDING)
            ended = time.time() - (perf_counter_ns() - row["ended_ns"]) / 1e9
            recorder.step({"phase": phase, **saved, **row, "ended": ended})
            if step == traced:
                recorder.spans(step, trainer.trace.spans)
                recorder.reductions(step, trainer.reductions)

            # 4. collect garbage between steps, and look at the loss
            gc.collect(1)
            if row["loss"] is not None and not math.isfinite(row["loss"]):
                replica = f" of replica {comms.replica}" if job.replicas > 1 else ""
                where = f"rank {comms.rank}{replica}, {phase} step"
                diverged = f"loss is {row['loss']} at step {step} ({where}): {remedy(job, step)}"

        # 5. end when all ranks have written their rows
        at(Place.BARRIER)
        comms.barrier()
        if diverged:
            raise DivergedError(diverged)
        at(Place.ENDED)
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # a layer may be the user's own, and exit
        recorder.error(_error_row(error, job, comms))
        raise
    finally:
        gc.enable()
        recorder.close()


def _error_row(error: BaseException, job: Job, comms: Comms) -> Row:
    """Return what is recorded of an error; some messages name the rank and the step themselves."""
    is_described = isinstance(error, ActionError | DivergedError)
    cause = (error.__cause__ or error) if is_described else error
    is_late = isinstance(cause, TimeoutError)
    return {
        "rank": comms.rank,
        "replica": comms.replica,
        "world_rank": comms.world_rank,
        "guilty_rank": last_awaited(comms.heartbeats, job.schedule, comms.world_rank) if is_late else comms.world_rank,
        "message": str(error) if is_described else describe_failure(comms, job.schedule, error),
        "diverged": isinstance(error, DivergedError),
        "lost_peer": isinstance(cause, ConnectionError | TimeoutError),
        "cannot_write": isinstance(error, WriteError),
        "time": time.time(),
        "traceback": traceback.format_exc(),
    }
