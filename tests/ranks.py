"""What tests let ranks do: these functions are imported by the rank processes."""

from __future__ import annotations

import hashlib
import os
import signal
import time
from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor

from microp import monolith
from microp.comms import Comms
from microp.train import Plan, Trainer

STEPS = 2  # the second one sees the optimizer's work


def digest(tensors: Sequence[Tensor]) -> str:
    """Equal for equal bits."""
    return hashlib.sha256(b"".join(t.numpy().tobytes() for t in tensors)).hexdigest()


def train(plan: Plan, comms: Comms) -> tuple[list[float], dict[int, list[Tensor]]]:
    """Losses (on the last rank, else empty), and the last gradients of this rank's layers."""
    trainer = Trainer(plan, comms, plan.device.open(comms.rank, plan.workload))
    losses = []
    for step in range(STEPS):
        trainer.load(step)
        row = trainer.step(step)
        if row["loss"] is not None:
            losses.append(row["loss"])
    gradients = {
        index: monolith.gradients_of(layer)
        for number, stage in trainer.stages.items()
        for index, layer in zip(plan.partition.layers_of(number), stage.layers, strict=True)
    }
    return losses, gradients


def train_all(plans: Sequence[Plan], _plan: Plan, comms: Comms, _local_rank: int, _attempt: Path):
    """(losses, digest of each layer's gradients) of every plan, one after the other."""
    results = []
    for plan in plans:
        losses, gradients = train(plan, comms)
        results.append((losses, {index: digest(tensors) for index, tensors in gradients.items()}))
    return results


def train_tensors(plan: Plan, comms: Comms, _local_rank: int, _attempt: Path):
    return train(plan, comms)


def verbs(_plan: Plan, comms: Comms, _local_rank: int, _attempt: Path):
    """Every verb of comms once; what came of it."""
    return use_verbs(comms)


def use_verbs(comms: Comms) -> dict[str, object]:
    mine = torch.full((3,), float(comms.rank + 1))
    after, before = (comms.rank + 1) % comms.world_size, (comms.rank - 1) % comms.world_size
    send = comms.isend_tensor(mine, after, tag=5)
    received = comms.irecv_tensor([3], before, tag=5)
    got = received.wait()
    send.wait()
    if comms.rank == 0:
        comms.send_tensor(torch.arange(6, dtype=torch.int64).view(2, 3), after)
        echo = comms.recv_tensor([2, 3], before, dtype=torch.int64)
    else:
        echo = comms.recv_tensor([2, 3], before, dtype=torch.int64)
        comms.send_tensor(echo * 2, after)
    comms.barrier()
    return {
        "next": comms.get_next_rank(),
        "prev": comms.get_prev_rank(),
        "got": got.tolist(),
        "echo": echo.tolist(),
        "aligned": got.data_ptr() % 64 == 0,
        "sum": comms.all_reduce(mine.clone()).tolist(),
        "max": comms.all_reduce(mine.clone(), "max").tolist(),
        "mean": comms.all_reduce_mean(mine.clone()).tolist(),
        "all": comms.all_gather(f"from {comms.rank}"),
    }


def send_short(_plan: Plan, comms: Comms, _local_rank: int, _attempt: Path) -> str:
    """Rank 0 sends 10 numbers, rank 1 asks for 11."""
    if comms.rank == 0:
        comms.send_tensor(torch.ones(10), 1)
        return ""
    try:
        comms.recv_tensor([11], 0)
    except ConnectionError as error:
        return str(error)
    return "nothing was noticed"


def never_send(plan: Plan, comms: Comms, _local_rank: int, _attempt: Path) -> str:
    """Rank 1 runs a step, rank 0 does not."""
    trainer = Trainer(plan, comms, plan.device.open(0, plan.workload))
    trainer.load(0)
    if comms.rank == 0:
        time.sleep(1.5)
        return ""
    try:
        trainer.step(0)
    except RuntimeError as error:
        return str(error)
    return "nothing was noticed"


def different_plans(plan: Plan, comms: Comms, _local_rank: int, _attempt: Path) -> str:
    """Each rank has another seed."""
    from dataclasses import replace

    try:
        Trainer(replace(plan, seed=comms.rank), comms, plan.device.open(0, plan.workload))
    except ConnectionError as error:
        return str(error)
    return "nothing was noticed"


def die(plan: Plan, comms: Comms, _local_rank: int, attempt: Path) -> None:
    """The last rank kills itself in its third step, the others train on."""
    from microp.train import run_rank

    if comms.rank == plan.ranks - 1:
        step = Trainer.step

        def fatal(trainer: Trainer, number: int):
            if number == 2:
                os.kill(os.getpid(), signal.SIGKILL)
            return step(trainer, number)

        Trainer.step = fatal  # type: ignore[method-assign]
    run_rank(plan, comms, comms.rank, attempt)


def raise_in_action(plan: Plan, comms: Comms, _local_rank: int, attempt: Path) -> None:
    """The last rank's forward of microbatch 1 fails in the third step."""
    from microp.stage import Stage
    from microp.train import run_rank

    if comms.rank == plan.ranks - 1:
        forward = Stage.forward

        def failing(stage: Stage, microbatch: int, x: Tensor | None) -> Tensor:
            if microbatch == 1 and stage._batch.step == 2:
                raise ValueError("the layer is broken")
            return forward(stage, microbatch, x)

        Stage.forward = failing  # type: ignore[method-assign]
    run_rank(plan, comms, comms.rank, attempt)


def sleep_on(_plan: Plan, comms: Comms, _local_rank: int, attempt: Path) -> None:
    """Say who I am, then do nothing for a long time."""
    (attempt / f"pid{comms.rank}").write_text(str(os.getpid()))
    time.sleep(600)
