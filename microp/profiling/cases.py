"""Chooses what is run for a profile of a model.

::

    together   ranks that all compute: 7 orders and partitions x up to 6 numbers of microbatches
    alone      one rank with all layers
    crowded    twice as many ranks as there are cores
    gloo       some of them over the other transport
    torch      some of them run by torch's own pipeline runtime, for its time between actions
    rows       every number of rows that a microbatch of this batch can have, without a pipeline

A slow model is measured with fewer cases, in fewer rounds, so that the time that was asked for is kept. What is left
out first are the largest numbers of microbatches, then unequal and looped partitions. The cases that show every op at
two numbers of microbatches are always run, with at least 2 steps each (one of them counts).
"""

from __future__ import annotations

import os
from dataclasses import replace
from typing import Any, NamedTuple

from microp.job import Job
from microp.profiling.fit import numbers_of_rows
from microp.profiling.profile import TORCH
from microp.schedule import Partition, Schedule, partition
from microp.schedule.builders import breadth_first, gpipe, one_f_one_b, zb_h1
from microp.settings import NEVER, Checkpointing

ALWAYS = Checkpointing("always", 1, False)
MOST_CHUNKS = 6  # numbers of microbatches: 1, 2, 4, ... 32


class Plan(NamedTuple):
    """The cases of a profile, the most important ones first."""

    together: list[Job]  # ranks that all compute
    needed: int  # how many of these show every op at two numbers of microbatches
    alone: list[Job]  # one rank
    crowded: list[Job]  # twice as many ranks as there are cores; none if the model has fewer layers
    transports: dict[str, list[Job]]  # the other transports, with their cases
    rows: list[int]  # the numbers of rows at which a stage is timed by itself, in the order in which they count


def make_plan(job: Job) -> Plan:
    """Return the cases of a profile of the job's model and device."""
    layers, batch, cores = job.model.layers, job.batch_size, os.cpu_count() or 1
    places = cores  # the ranks that can compute at once, each on a core or a GPU of its own
    if job.device.name == "cuda":
        import torch  # takes half a second

        places = torch.cuda.device_count()
    ranks = min(places, layers, 8)
    counts = [2**power for power in range(MOST_CHUNKS) if 2**power <= batch]
    even = partition.uniform(layers, ranks)

    def case(schedule: Schedule, cut: Partition, checkpointing: Checkpointing = NEVER, **others: Any) -> Job:
        return replace(job, schedule=schedule, partition=cut, checkpointing=checkpointing, **others)

    def every_op(chunks: int) -> list[Job]:
        checkpointed = case(one_f_one_b(ranks, chunks), even, ALWAYS)
        return [case(gpipe(ranks, chunks), even), case(zb_h1(ranks, chunks), even), checkpointed]

    def others(chunks: int) -> list[Job]:
        found = [case(one_f_one_b(ranks, chunks), even)]
        if ranks > 1:
            heavy = partition.skewed(layers, ranks, (1 + 1 / ranks) / 2, 0)
            found[:0] = [case(build(ranks, chunks), heavy) for build in (one_f_one_b, zb_h1)]
        if layers >= 2 * ranks > 2:
            found.append(case(breadth_first(ranks, chunks, 2), partition.uniform(layers, 2 * ranks)))
        return found

    some = counts[1::2] or counts
    first = (counts[1::2] + counts[::2])[:2]  # 2 and 8 microbatches
    needed = [job for chunks in first for job in every_op(chunks)]
    together = [*needed, *(job for chunks in first for job in others(chunks))]
    for chunks in counts:
        together += [*every_op(chunks), *others(chunks)] if chunks not in first else []
    whole = partition.uniform(layers, 1)
    alone = [case(gpipe(1, chunks), whole) for chunks in some] if ranks > 1 else []
    crowd = 2 * cores
    crowded = [
        case(build(crowd, chunks), partition.uniform(layers, crowd))
        for chunks in (2 * crowd, 6 * crowd)
        for build in (one_f_one_b, gpipe, zb_h1)
        if crowd <= layers and chunks <= batch and job.device.name == "cpu"
    ]
    transports = {}
    if job.backend == "shm" and ranks > 1 and job.device.name == "cpu":
        for other in ("tcp", "gloo"):
            transports[other] = [case(one_f_one_b(ranks, chunks), even, backend=other) for chunks in some]
    if job.backend in ("shm", "tcp", "gloo") and ranks > 1 and job.device.name == "cpu":
        counts = [chunks for chunks in some if chunks >= ranks and batch % chunks == 0]  # what torch takes
        by_torch = replace(job.engine, name=TORCH)
        transports[TORCH] = [
            case(build(ranks, chunks), even, backend="gloo", engine=by_torch)
            for chunks in counts
            for build in (one_f_one_b, gpipe)
        ]
    transports = {name: cases for name, cases in transports.items() if cases}
    return Plan(together, len(needed), alone, crowded, transports, numbers_of_rows(batch))
