"""Runs the cases of a profile on the ranks and writes the times of every action of every step.

::

    round 0    case 0: warm-up ─► steps    case 1: warm-up ─► steps ...    ─► case0.round0.rank0.npz, ...
    round 1    case 0: warm-up ─► steps    case 1: ...

A slow model is measured with fewer cases: one that would not fit `rounds` times, and those after it, are left out, but
never one of the first `needed`.

All cases run in one launch, with the trainer, the engine and the transport of a run. A machine's speed drifts within
a minute; the rounds spread every case over the whole time, so that no case is slower because of when it was run.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import torch

from microp.comms import Comms
from microp.job import Job
from microp.worker.trainer import Trainer

WARMUP = 2  # steps of a round before those that count
FEWEST, MOST = 2, 50  # steps of a round that count


def record_cases(
    cases: Sequence[Job],
    needed: int,
    rounds: int,
    seconds: float,
    _job: Job,
    comms: Comms,
    local_rank: int,
    folder: Path,
) -> list[int]:
    """Run cases on this rank, as many as fit into the time, and write their times into `folder`.

    Args:
        cases: jobs for the ranks of this launch, the most important ones first.
        needed: how many of them are run even if that takes longer.
        rounds: how often every case should be run.
        seconds: the time for all of them, see `Budget`.
        comms: this rank's transport.
        local_rank: the rank's index on its host.
        folder: the folder that gets `case<n>.round<i>.rank<r>.npz`: `times`, one row per step with the wait's start,
            the start and the end of every action, and `steps`, with the step's beginning, the end of the actions,
            that of the sum over the replicas, and that of the optimizer; in nanoseconds.

    Returns:
        the bytes of this rank's weights in every case that was run.
    """
    gc.collect()
    gc.disable()
    budget = Budget(len(cases), needed, rounds, seconds)
    began = time.monotonic()
    weights = {}
    for turn, number in budget.turns():
        case_began = time.monotonic()
        trainer = Trainer(cases[number], comms, local_rank)
        [took] = _slowest(comms, _seconds(_step(trainer, 0)))
        warmup = 1 + budget.warmup(took)
        warm = [_seconds(_step(trainer, step)) for step in range(1, warmup)]
        now = time.monotonic()
        elapsed, before, took = _slowest(comms, now - began, now - case_began, *(warm[-1:] or [took]))
        taken = [_step(trainer, warmup + step) for step in range(budget.steps(elapsed, before, took))]
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
    return [weights[number] for number in range(len(weights))]


def _slowest(comms: Comms, *seconds: float) -> list[float]:
    """Return the largest of each of these times over the ranks."""
    return comms.all_reduce(torch.tensor(seconds, device=comms.device), "max").tolist()


def _seconds(step: tuple[np.ndarray, list[int]]) -> float:
    _, moments = step
    return float(moments[-1] - moments[0]) / 1e9


def _step(trainer: Trainer, number: int) -> tuple[np.ndarray, list[int]]:
    """Run one step; return the times of its actions, and those of its parts."""
    trainer.load(number)
    row = trainer.step(number)
    spans = trainer.trace.spans
    times = np.stack([spans.wait_start, spans.start, spans.end], axis=1)
    ended, began = row["ended_ns"], row["began_ns"]
    reduced = ended - round(row["optimizer_ms"] * 1e6)
    return times, [began, reduced - round(row["exposed_ms"] * 1e6), reduced, ended]


class Budget:
    """Decides how many cases, rounds and steps are run in a given time.

    The most important cases come first, and those `needed` are run in any case. A budget has no clock: every rank gives
    it the same times and so comes to the same decisions.
    """

    def __init__(self, cases: int, needed: int, rounds: int, seconds: float) -> None:
        self._cases, self._needed, self._rounds, self._seconds = cases, needed, rounds, seconds
        self._least: list[float] = []  # of each case of round 0, seconds
        self._left = cases * rounds
        self._fewest, self._is_first = FEWEST, True

    def turns(self) -> Iterator[tuple[int, int]]:
        """Yield (round, case) of what is run next; `steps` has to be asked in each of them."""
        for number in range(self._cases):
            if number >= self._needed and sum(self._least) / number * (number + 1) * self._rounds > self._seconds:
                break
            yield 0, number
        kept, self._is_first = len(self._least), False
        rounds = min(self._rounds, max(1, round(self._seconds / max(1e-9, sum(self._least)))))
        self._left = kept * (rounds - 1)
        for turn in range(1, rounds):
            for number in range(kept):
                yield turn, number

    def warmup(self, first: float) -> int:
        """Return how many steps more are not counted, after one that took `first` seconds."""
        if self._needed * (WARMUP + FEWEST) * first > self._seconds:
            self._fewest = 1
            return 0
        return WARMUP - 1

    def steps(self, elapsed: float, before: float, step: float) -> int:
        """Return how many steps of a case are counted.

        Seconds have `elapsed` since the first case began; `before`, since this one did, were its warm-up's.
        """
        if self._is_first:
            self._least.append(before + self._fewest * step)
        self._left -= 1
        share = (self._seconds - elapsed - self._left * before) / (self._left + 1)  # the others need their warm-up too
        return int(min(MOST, max(self._fewest, share / max(1e-6, step))))
