"""Measures on the ranks what a profile is made of: the times of cases, and those of a stage at many numbers of rows.

::

    record_cases    round 0    case 0: warm-up ─► steps    case 1: warm-up ─► steps ...    ─► case0.round0.rank0.npz
                    round 1    case 0: warm-up ─► steps    case 1: ...

    record_rows     ms  │            ┌─ 24           a product of matrices works in blocks of rows: 23 rows take longer
                        │       ┌────┘               than 24, and a line from 16 to 32 misses that
                        │  ┌────┘
                        └──16────20────24── rows

All cases run in one launch, with the trainer, the engine and the transport of a run. A machine's speed drifts within
a minute; the rounds spread every case over the whole time, so that no case is slower because of when it was run. A
slow model is measured with fewer cases: one that would not fit `rounds` times, and those after it, are left out, but
never one of the first `needed`.

For the rows every rank times its own stage while the others time theirs. Nothing is sent.
"""

from __future__ import annotations

import gc
import random
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import mean, median
from typing import Any

import numpy as np
import torch

from microp.comms import Comms
from microp.device import Device, open_device
from microp.job import Job
from microp.model import Batch, Stage, build_model
from microp.settings import NEVER
from microp.worker.trainer import Trainer

WARMUP = 2  # steps of a round before those that count
FEWEST, MOST = 2, 50  # steps of a round that count
CHUNKS = 4  # microbatches of one measurement of rows; the first is not counted
ROUNDS = 3  # that the time has to suffice for: a number of rows that does not fit is left out


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
    """Run cases on this rank, as many as fit into `seconds` (see `Budget`), and write their times into `folder`.

    Args:
        cases: jobs for the ranks of this launch, the most important ones first.
        needed: how many of them are run even if that takes longer.
        rounds: how often every case should be run.
        folder: gets `case<n>.round<i>.rank<r>.npz`: `times` and `steps` as in `profiling.Case`.

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
        for step in range(WARMUP):
            _, moments = _step(trainer, step)
        now = time.monotonic()
        slowest = torch.tensor([now - began, now - case_began, (moments[-1] - moments[0]) / 1e9], device=comms.device)
        elapsed, before, took = comms.all_reduce(slowest, "max").tolist()  # over the ranks
        taken = [_step(trainer, WARMUP + step) for step in range(budget.steps(elapsed, before, took))]
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

    def steps(self, elapsed: float, before: float, step: float) -> int:
        """Return how many steps of a case are counted.

        Seconds have `elapsed` since the first case began; `before`, since this one did, were its warm-up's.
        """
        if self._is_first:
            self._least.append(before + FEWEST * step)
        self._left -= 1
        share = (self._seconds - elapsed - self._left * before) / (self._left + 1)  # the others need their warm-up too
        return int(min(MOST, max(FEWEST, share / max(1e-6, step))))


# --- numbers of rows -----------------------------------------------------------------------------


def record_rows(
    rows: Sequence[int], seconds: float, job: Job, comms: Comms, local_rank: int, folder: Path
) -> list[int]:
    """Time this rank's stage and write the medians into `folder/rows.rank<r>.npz`; return the numbers of rows.

    The most important numbers of rows come first: the last ones are left out if they take more than `seconds`. The job
    has one stage per rank. The file has `rows`, and for each of `forward`, `full`, `backward` and `weight` the
    milliseconds.
    """
    device = open_device(job.device, job.workload, comms, local_rank)
    began = time.monotonic()
    whole = _StageTimer(job, comms.rank, device, divided=False).medians(rows, began + seconds / 2)
    divided = _StageTimer(job, comms.rank, device, divided=True).medians(rows, began + seconds)
    kept = [count for count in rows if count in whole and count in divided]
    columns: dict[str, Any] = {"rows": np.array(kept)}
    for medians in (whole, divided):
        columns |= {op: np.array([medians[count][op] for count in kept]) for op in medians[kept[0]]}
    np.savez(folder / f"rows.rank{comms.rank}.npz", **columns)
    comms.barrier()
    return kept


class _StageTimer:
    """Times the ops of one rank's stage, which is given random inputs."""

    def __init__(self, job: Job, rank: int, device: Device, *, divided: bool) -> None:
        self._job, self._device, self._divided = job, device, divided
        self._first, self._last = rank == 0, rank == job.schedule.stages - 1
        self._indices = job.partition.layers_of(rank)
        self._model, place = build_model(job.model), device.torch_device
        layers = [layer.to(place) for layer in self._model.build(self._indices, job.seed)]
        split, loss = range(CHUNKS) if divided else (), self._model.loss if self._last else None
        self._stage = Stage(
            layers,
            loss,
            NEVER,
            CHUNKS,
            split,
            device.mark,
            job.computing,
            place,
            is_reached=self._indices[0] > job.model.first_trained,
        )

    def medians(self, rows: Sequence[int], until: float) -> dict[int, dict[str, float]]:
        """Return the median milliseconds of each op by number of rows."""
        began = time.monotonic()
        taken: dict[int, dict[str, list[float]]] = {}
        for count in rows:  # the first round is the warm-up
            if taken and (time.monotonic() - began) * (ROUNDS + 1) > until - began:
                break
            self._times(count)
            taken[count] = defaultdict(list)
        order, turns = random.Random(0), 0
        while time.monotonic() < until or turns < ROUNDS:
            turns += 1
            for count in order.sample(list(taken), len(taken)):  # a machine's speed drifts
                for op, ms in self._times(count).items():
                    taken[count][op].append(ms)
        return {count: {op: median(values) for op, values in ops.items()} for count, ops in taken.items()}

    def _times(self, rows: int) -> dict[str, float]:
        """Return the mean milliseconds of each op, each after what it usually follows."""
        stage = self._stage
        inputs, targets = ([each.to(self._device.torch_device)] * CHUNKS for each in self._model.some_rows(rows))
        stage.load(Batch(0, inputs if self._first else None, targets if self._last else None, [1 / CHUNKS] * CHUNKS))
        entering = None if self._first else self._random(rows, self._indices[0])
        gradient = None if self._last else self._random(rows, self._indices[-1] + 1)
        forward = [(stage.forward, microbatch, entering) for microbatch in range(CHUNKS)]
        backward = [(stage.backward, microbatch, gradient) for microbatch in range(CHUNKS)]
        if not self._divided:
            taken = self._milliseconds([*forward, *backward])
            return {"forward": mean(taken[1:CHUNKS]), "full": mean(taken[CHUNKS + 1 :])}
        weight = [(stage.weight_gradient, microbatch, None) for microbatch in range(CHUNKS)]
        in_turn = zip(forward, backward, weight, strict=True)
        taken = self._milliseconds([action for actions in in_turn for action in actions])
        return {"backward": mean(taken[4::3]), "weight": mean(taken[5::3])}

    def _milliseconds(self, actions: Sequence[tuple[Any, int, torch.Tensor | None]]) -> list[float]:
        """Run actions and return the milliseconds of each."""
        self._device.prepare_step()
        marks = [self._device.mark()]
        for run, microbatch, tensor in actions:
            run(microbatch, tensor)
            marks.append(self._device.mark())
        return [float(ms) for ms in np.diff(self._device.read(marks)) / 1e6]

    def _random(self, rows: int, layer: int) -> torch.Tensor:
        dtype = getattr(torch, self._job.model.entering(layer, self._job.computing))
        return torch.randn(self._job.model.boundary(rows, layer), device=self._device.torch_device).to(dtype)
