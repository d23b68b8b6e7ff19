"""Runs the cases of a profile on the ranks and writes the times of every action of every step.

::

    case 0    GPipe, 4 microbatches    warm-up ─► steps ─► case0.rank0.npz, case0.rank1.npz
    case 1    1F1B, 4 microbatches     warm-up ─► steps ─► case1.rank0.npz, ...

All cases run in one launch, with the trainer, the engine and the transport of a run.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch

from microp.comms import Comms
from microp.job import Job
from microp.worker.trainer import Trainer

WARMUP = 3  # steps before those that count
FEWEST, MOST = 3, 100  # steps that count


def record_cases(
    cases: Sequence[Job], seconds: float, _job: Job, comms: Comms, local_rank: int, folder: Path
) -> list[int]:
    """Run every case on this rank, and write its times into `folder`.

    Args:
        cases: jobs for the ranks of this launch.
        seconds: the time that all cases should take; at least `FEWEST` steps of each are run.
        comms: this rank's transport.
        local_rank: the rank's index on its host.
        folder: the folder that gets `case<n>.rank<r>.npz`: `times`, one row per step with the wait's start, the
            start and the end of every action, and `steps`, with the step's beginning, the end of the actions, that
            of the sum over the replicas, and that of the optimizer; in nanoseconds.

    Returns:
        the bytes of this rank's weights in every case.
    """
    weights = []
    gc.collect()
    gc.disable()
    ends = time.monotonic() + seconds
    for number, case in enumerate(cases):
        trainer = Trainer(case, comms, local_rank)
        warm = [_step(trainer, step)[1] for step in range(WARMUP)]
        share = max(0.0, ends - time.monotonic()) / (len(cases) - number)  # of the time that is left
        slow = torch.tensor([float(warm[-1][-1] - warm[-1][0]) / 1e9, -share])
        comms.all_reduce(slow, "max")
        took, share = slow[0].item(), -slow[1].item()
        count = int(min(MOST, max(FEWEST, share / max(1e-6, took))))
        taken = [_step(trainer, WARMUP + step) for step in range(count)]
        np.savez(
            folder / f"case{number}.rank{comms.rank}.npz",
            times=np.array([times for times, _ in taken]),
            steps=np.array([steps for _, steps in taken]),
        )
        weights.append(sum(p.nbytes for stage in trainer.stages.values() for p in stage.layers.parameters()))
        del trainer
        gc.collect()
    gc.enable()
    comms.barrier()
    return weights


def _step(trainer: Trainer, number: int) -> tuple[np.ndarray, list[int]]:
    """Run one step; return the times of its actions, and those of its parts."""
    trainer.load(number)
    row = trainer.step(number)
    spans = trainer.trace.spans
    times = np.stack([spans.wait_start, spans.start, spans.end], axis=1)
    ended, began = row["ended_ns"], row["began_ns"]
    reduced = ended - round(row["optimizer_ms"] * 1e6)
    return times, [began, reduced - round(row["exposed_ms"] * 1e6), reduced, ended]
