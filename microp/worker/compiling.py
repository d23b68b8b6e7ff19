"""Compiles a rank's layers before the first step, which takes seconds or minutes.

::

    rank 0   compiles ───────────┤ waits ····· ├─ step 0      a thread of each rank meets those of the others all the
    rank 1   compiles ─────────────────────────┤─ step 0      while, so that nobody waits longer than PAUSE_S

The layers are compiled in their first calls. Those are made by every rank for itself, with the microbatches of a
step, and without another rank: within a step each rank would wait for the one before it.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

import torch

from microp.comms import Comms
from microp.engine import Boundary
from microp.model import Stage

PAUSE_S = 0.2


def compile_stages(
    stages: Mapping[int, Stage], last: int, boundary: Boundary, rows: Sequence[int], comms: Comms
) -> None:
    """Run each microbatch's F and B of a rank's stages, which hold a batch, and return when all ranks have done so.

    The gradients that they leave are to be discarded. `last` is the index of the model's last stage, `rows` has the
    number of rows of each microbatch.
    """
    shape, dtype, device = boundary

    def zeros(count: int, stage: int) -> torch.Tensor:
        return torch.zeros(shape(count, stage), dtype=dtype(stage), device=device)

    with _beside_the_others(comms):
        for index, stage in stages.items():
            for microbatch, count in enumerate(rows):
                stage.forward(microbatch, None if index == 0 else zeros(count, index))
                stage.backward(microbatch, None if index == last else zeros(count, index + 1))


@contextmanager
def _beside_the_others(comms: Comms) -> Iterator[None]:
    """Let each rank take its own time in the block, and leave it together, without a limit of time.

    Raises:
        TimeoutError, ConnectionError: a rank has ended, or does not run.
    """
    done, failed = threading.Event(), list[BaseException]()

    def meet() -> None:
        try:
            while _is_any(not done.is_set(), comms):
                done.wait(PAUSE_S)
        except (TimeoutError, ConnectionError) as error:
            failed.append(error)

    meeting = threading.Thread(target=meet, name="meeting", daemon=True)
    meeting.start()
    try:
        yield
    finally:
        done.set()
        meeting.join()
    if failed:
        raise failed[0]


def _is_any(own: bool, comms: Comms) -> bool:
    """Return whether this is true of any rank."""
    found = torch.tensor([int(own)], device=comms.device)
    comms.all_reduce(found, "max")
    if comms.replica_group:
        comms.replica_group.all_reduce(found, "max")
    return bool(found.item())
