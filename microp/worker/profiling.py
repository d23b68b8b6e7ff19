"""Measures on the ranks what a profile is made of: the times of cases.

::

    measure_cases    round 0    case 0: warm-up ─► steps    case 1: warm-up ─► steps ...
                     round 1    case 0: warm-up ─► steps    case 1: ...

All cases run in one launch, with the trainer, the engine and the transport of a run. A machine's speed drifts within
a minute; the rounds spread every case over the whole time, so that no case is slower because of when it was run. A
slow model is measured with fewer cases: one that would not fit `rounds` times, and those after it, are left out, but
never one of the first `needed`.
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


def measure_cases(
    cases: Sequence[Job],
    needed: int,
    rounds: int,
    seconds: float,
    _job: Job,
    comms: Comms,
    local_rank: int,
    _folder: Path,
) -> list[tuple[np.ndarray, np.ndarray, int]]:
    """Run cases on this rank, as many as fit into `seconds` (see `Budget`).

    Args:
        cases: jobs for the ranks of this launch, the most important ones first.
        needed: how many of them are run even if that takes longer.
        rounds: how often every case should be run.

    Returns:
        of every case that was run `times` and `steps`, as in `profiling.Case`, and the bytes of this rank's weights.
    """
    gc.collect()
    gc.disable()
    budget = Budget(len(cases), needed, rounds, seconds)
    began = time.monotonic()
    taken: dict[int, list[tuple[np.ndarray, list[int]]]] = {}
    weights = {}
    for number in budget.turns():
        case_began = time.monotonic()
        trainer = Trainer(cases[number], comms, local_rank)
        for step in range(WARMUP):
            _, moments = _step(trainer, step)
        now = time.monotonic()
        slowest = torch.tensor([now - began, now - case_began, (moments[-1] - moments[0]) / 1e9], device=comms.device)
        elapsed, before, took = comms.all_reduce(slowest, "max").tolist()  # over the ranks
        counted = [_step(trainer, WARMUP + step) for step in range(budget.steps(elapsed, before, took))]
        taken.setdefault(number, []).extend(counted)
        weights[number] = sum(p.nbytes for stage in trainer.stages.values() for p in stage.layers.parameters())
        del trainer
        gc.collect()
    gc.enable()
    comms.barrier()
    return [
        (np.array([times for times, _ in counted]), np.array([steps for _, steps in counted]), weights[number])
        for number, counted in taken.items()
    ]


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
        self._is_first = True

    def turns(self) -> Iterator[int]:
        """Yield the case that is run next, round after round; `steps` has to be asked for each of them."""
        for number in range(self._cases):
            if number >= self._needed and sum(self._least) / number * (number + 1) * self._rounds > self._seconds:
                break
            yield number
        kept, self._is_first = len(self._least), False
        rounds = min(self._rounds, max(1, round(self._seconds / max(1e-9, sum(self._least)))))
        self._left = kept * (rounds - 1)
        for _ in range(1, rounds):
            yield from range(kept)

    def steps(self, elapsed: float, before: float, step: float) -> int:
        """Return how many steps of a case are counted.

        Seconds have `elapsed` since the first case began; `before`, since this one did, were its warm-up's.
        """
        if self._is_first:
            self._least.append(before + FEWEST * step)
        self._left -= 1
        share = (self._seconds - elapsed - self._left * before) / (self._left + 1)  # the others need their warm-up too
        return int(min(MOST, max(FEWEST, share / max(1e-6, step))))
