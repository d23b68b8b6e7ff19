"""Times a stage at many numbers of rows, also those between the ones that a profile's cases have.

::

    ms  │            ┌─ 24           a product of matrices works in blocks of rows: 23 rows take longer
        │       ┌────┘               than 24, and a line from 16 to 32 misses that
        │  ┌────┘
        └──16────20────24── rows

Every rank times its own stage while the others time theirs. Nothing is sent.
"""

from __future__ import annotations

import random
import time
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import torch

from microp.comms import Comms
from microp.device import Device, open_device
from microp.job import Job
from microp.model import Batch, Stage, build_model
from microp.settings import NEVER

CHUNKS = 4  # microbatches of one measurement; the first is not counted
ROUNDS = 3  # that the time has to suffice for: a number of rows that does not fit is left out


def record_rows(
    rows: Sequence[int], seconds: float, job: Job, comms: Comms, local_rank: int, folder: Path
) -> list[int]:
    """Time this rank's stage and write the medians into `folder/rows.rank<r>.npz`.

    Args:
        rows: numbers of rows, the most important ones first: the last ones are left out if they take too long.
        seconds: how long to measure.
        job: with one stage per rank.
        comms: this rank's transport.
        local_rank: the rank's index on its host.
        folder: gets the file: `rows`, and for each of `forward`, `full`, `backward` and `weight` the milliseconds.

    Returns:
        the numbers of rows that were timed.
    """
    device = open_device(job.device, job.workload, comms, local_rank)
    subject = _Subject(job, comms.rank, device)
    began = time.monotonic()
    whole = _taken(subject, rows, False, began + seconds / 2)
    divided = _taken(subject, rows, True, began + seconds)
    kept = [count for count in rows if count in whole and count in divided]
    times = {name: [found[count][name] for count in kept] for found in (whole, divided) for name in found[kept[0]]}
    columns: dict[str, Any] = {"rows": np.array(kept), **{name: np.array(values) for name, values in times.items()}}
    np.savez(folder / f"rows.rank{comms.rank}.npz", **columns)
    comms.barrier()
    return kept


def _taken(subject: _Subject, rows: Sequence[int], divided: bool, until: float) -> dict[int, dict[str, float]]:
    """Return the median milliseconds of each op by number of rows."""
    stage = subject.stage(divided)
    began = time.monotonic()
    taken: dict[int, dict[str, list[float]]] = {}
    for count in rows:  # the first round is the warm-up
        if taken and (time.monotonic() - began) * (ROUNDS + 1) > until - began:
            break
        subject.times(stage, count, divided)
        taken[count] = defaultdict(list)
    order, turns = random.Random(0), 0
    while time.monotonic() < until or turns < ROUNDS:
        turns += 1
        for count in order.sample(list(taken), len(taken)):  # a machine's speed drifts
            for name, ms in subject.times(stage, count, divided).items():
                taken[count][name].append(ms)
    return {count: {name: median(values) for name, values in own.items()} for count, own in taken.items()}


class _Subject:
    """One rank's layers, which are given random inputs."""

    def __init__(self, job: Job, rank: int, device: Device) -> None:
        self._job, self._device = job, device
        self._first, self._last = rank == 0, rank == job.schedule.stages - 1
        indices = job.partition.layers_of(rank)
        self._enters, self._leaves = indices[0], indices[-1] + 1
        model = build_model(job.model)
        self._layers = [layer.to(device.torch_device) for layer in model.build(indices, job.seed)]
        self._loss = model.loss if self._last else None

    def stage(self, divided: bool) -> Stage:
        """Return the layers as a stage; one that divides its backwards changes the layers for good."""
        split = range(CHUNKS) if divided else ()
        computing, place = self._job.computing, self._device.torch_device
        return Stage(self._layers, self._loss, NEVER, CHUNKS, split, self._device.mark, computing, place)

    def times(self, stage: Stage, rows: int, divided: bool) -> dict[str, float]:
        """Return the mean milliseconds of each op, each after what it usually follows."""
        window = torch.randint(0, self._job.model.vocabulary, (rows, self._job.model.row_bytes))
        given = [window.to(self._device.torch_device)] * CHUNKS
        stage.load(Batch(0, given if self._first else None, given if self._last else None, [1 / CHUNKS] * CHUNKS))
        entering = None if self._first else self._random(rows, self._enters)
        gradient = None if self._last else self._random(rows, self._leaves)
        forward = [(stage.forward, microbatch, entering) for microbatch in range(CHUNKS)]
        backward = [(stage.backward, microbatch, gradient) for microbatch in range(CHUNKS)]
        if not divided:
            moments = self._moments([*forward, *backward])
            return {"forward": _mean(moments[1:CHUNKS]), "full": _mean(moments[CHUNKS + 1 :])}
        weight = [(stage.weight_gradient, microbatch, None) for microbatch in range(CHUNKS)]
        moments = self._moments([each for three in zip(forward, backward, weight, strict=True) for each in three])
        return {"backward": _mean(moments[4::3]), "weight": _mean(moments[5::3])}

    def _moments(self, actions: Sequence[tuple[Any, int, torch.Tensor | None]]) -> list[float]:
        """Run actions and return the milliseconds of each."""
        marks = [self._device.mark()]
        for run, microbatch, tensor in actions:
            run(microbatch, tensor)
            marks.append(self._device.mark())
        return [float(ms) for ms in np.diff(self._device.read(marks)) / 1e6]

    def _random(self, rows: int, layer: int) -> torch.Tensor:
        dtype = getattr(torch, self._job.model.entering(layer, self._job.computing))
        return torch.randn(self._job.model.boundary(rows, layer), device=self._device.torch_device).to(dtype)


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)
