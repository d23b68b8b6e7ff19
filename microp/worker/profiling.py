"""Runs the cases of a profile on the ranks and writes the times of every action of every step.

::

    round 0    case 0: warm-up ─► steps    case 1: warm-up ─► steps ...    ─► case0.round0.rank0.npz, ...
    round 1    case 0: warm-up ─► steps    case 1: ...

All cases run in one launch, with the trainer, the engine and the transport of a run. A machine's speed drifts within
a minute; the rounds spread every case over the whole time, so that no case is slower because of when it was run.
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

WARMUP = 2  # steps of a round before those that count
FEWEST, MOST = 2, 50  # steps of a round that count


def record_cases(
    cases: Sequence[Job], rounds: int, seconds: float, _job: Job, comms: Comms, local_rank: int, folder: Path
) -> list[int]:
    """Run every case on this rank, and write its times into `folder`.

    Args:
        cases: jobs for the ranks of this launch.
        rounds: how often every case is run.
        seconds: the time that all cases should take; at least `FEWEST` steps of each are run in a round.
        comms: this rank's transport.
        local_rank: the rank's index on its host.
        folder: the folder that gets `case<n>.round<i>.rank<r>.npz`: `times`, one row per step with the wait's start,
            the start and the end of every action, and `steps`, with the step's beginning, the end of the actions,
            that of the sum over the replicas, and that of the optimizer; in nanoseconds.

    Returns:
        the bytes of this rank's weights in every case.
    """
    gc.collect()
    gc.disable()
    ends = time.monotonic() + seconds
    turns = [(turn, number) for turn in range(rounds) for number in range(len(cases))]
    weights = {}
    for done, (turn, number) in enumerate(turns):
        trainer = Trainer(cases[number], comms, local_rank)
        warm = [_step(trainer, step)[1] for step in range(WARMUP)]
        share = max(0.0, ends - time.monotonic()) / (len(turns) - done)  # of the time that is left
        slow = torch.tensor([float(warm[-1][-1] - warm[-1][0]) / 1e9, -share])
        comms.all_reduce(slow, "max")
        took, share = slow[0].item(), -slow[1].item()
        count = int(min(MOST, max(FEWEST, share / max(1e-6, took))))
        taken = [_step(trainer, WARMUP + step) for step in range(count)]
        np.savez(
            folder / f"case{number}.round{turn}.rank{comms.rank}.npz",
            times=np.array([times for times, _ in taken]),
            steps=np.array([steps for _, steps in taken]),
        )
        weights[number] = sum(p.nbytes for stage in trainer.stages.values() for p in stage.layers.parameters())
        del trainer
        gc.collect()
    gc.enable()
    comms.barrier()
    return [weights[number] for number in range(len(cases))]


def _step(trainer: Trainer, number: int) -> tuple[np.ndarray, list[int]]:
    """Run one step; return the times of its actions, and those of its parts."""
    trainer.load(number)
    row = trainer.step(number)
    spans = trainer.trace.spans
    times = np.stack([spans.wait_start, spans.start, spans.end], axis=1)
    ended, began = row["ended_ns"], row["began_ns"]
    reduced = ended - round(row["optimizer_ms"] * 1e6)
    return times, [began, reduced - round(row["exposed_ms"] * 1e6), reduced, ended]
