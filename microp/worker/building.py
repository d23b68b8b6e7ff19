"""Builds what one rank trains: its stages, their optimizer, their batches, and what runs a step of them.

::

    job, rank ─► layers ─► stages ─► optimizer, runner, batches ─► compiled, if that is asked for
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from microp.comms import Comms, Message
from microp.device import Device, Run
from microp.engine import Boundary, Engine, Limit, Runner, TorchEngine
from microp.job import Job
from microp.model import Model, Stage, open_batches
from microp.settings import AdamSettings, OptimizerSettings, SgdSettings
from microp.worker.shared_weights import checksum_of

PAUSE_S = 0.2  # between two meetings of ranks that compile


def build_stages(job: Job, model: Model, rank: int, device: Device) -> dict[int, Stage]:
    """Build a rank's layers, each from the seed and its index, and return them as stages by their index."""
    held = {stage: job.layers_of(stage) for stage in job.schedule.stages_of(rank)}
    indices = [index for layers in held.values() for index in layers]
    made = dict(zip(indices, model.build(indices, job.seed), strict=True))
    model.sample(0, 2, job.computing)  # on every rank, so that what own data keep of it is the same on all
    facts, stages = job.model.facts, {}
    # Layers with numbers were tried before, with inputs of their own; a forward more might count for what they keep.
    is_known = facts.as_one is not None and not facts.undivided
    is_known &= job.computing.dtype is None or facts.changes_buffers
    for stage, layers in held.items():
        stages[stage] = Stage(
            [made[index].to(device.torch_device) for index in layers],
            model.loss if stage in job.schedule.ends[1] else None,
            job.checkpointing,
            job.schedule.units,
            [microbatch for divided, microbatch in job.schedule.input_gradients if divided == stage],
            device.mark,
            job.computing,
            device.torch_device,
            job.schedule.slices,
            layers[0] > job.model.first_trained,
        )
        examples = (model.sample(index, 2, job.computing).to(device.torch_device) for index in layers)
        stages[stage].divide([None] * len(layers) if is_known else [*examples], layers, facts.as_one or ())
    return stages


def open_optimizer(
    settings: OptimizerSettings, parameters: Iterable[nn.Parameter], rate: float
) -> torch.optim.Optimizer:
    """Return the optimizer of these weights, of which there may be none, with this learning rate."""
    groups: list[dict[str, Any]] = [{"params": []}, {"params": [], "fused": False}]
    for weight in parameters:  # fused optimizers go through its memory, which may be a part of a larger tensor
        groups[torch.empty_like(weight, device="meta").stride() != weight.stride()]["params"].append(weight)
    if isinstance(settings, SgdSettings):
        make = partial(torch.optim.SGD, momentum=settings.momentum)
    else:
        assert isinstance(settings, AdamSettings)
        kind = {"adam": torch.optim.Adam, "adamw": torch.optim.AdamW}[settings.name]
        make = partial(kind, betas=(settings.betas[0], settings.betas[1]))
    optimizer = make(groups, lr=rate, weight_decay=settings.weight_decay, fused=True)
    optimizer.register_step_pre_hook(_make_ready)
    return optimizer


def _make_ready(optimizer: torch.optim.Optimizer, *_: Any) -> None:
    """Prepare a step for fused optimizers, which go through the memory of a weight and of its gradient at once.

    Each gradient is laid out as its weight, as autograd does. A weight that has its first gradient later than others
    needs a momentum that is there: of zeros, with which the step is the same.
    """
    group = optimizer.param_groups[0]
    for weight in group["params"]:
        if weight.grad is not None and weight.grad.stride() != weight.stride():
            weight.grad = torch.empty_like(weight).copy_(weight.grad)
        if weight.grad is not None and group.get("momentum") and "momentum_buffer" not in optimizer.state[weight]:
            optimizer.state[weight]["momentum_buffer"] = torch.zeros_like(weight)


def boundary_of(job: Job, device: Device) -> Boundary:
    """Return the shapes and the types of the tensors between the job's stages."""
    first = [job.layers_of(stage)[0] for stage in range(job.schedule.stages)]
    model = job.model.of_slice(job.schedule.slices)
    return Boundary(
        lambda rows, stage: model.boundary(rows, first[stage]),
        lambda stage: getattr(torch, job.model.entering(first[stage], job.computing)),
        device.torch_device,
    )


def open_runner(
    engine: str,
    job: Job,
    stages: Mapping[int, Stage],
    comms: Comms,
    device: Device,
    last: Callable[[int, Run], Run],
    sums: Sequence[Message],
) -> Runner:
    """Return the runner that an engine's name stands for; `last` and `sums` are those of `Engine`."""
    boundary = boundary_of(job, device)
    if engine == "limit":
        return Limit(job.schedule, stages, boundary, job.rows)
    if engine == "torch":
        order, planned = job.torch_schedule, job.schedule
        return TorchEngine(order, planned, stages, comms, device, boundary, job.rows, job.checkpointing)
    return Engine(job.schedule, stages, comms, device, boundary, job.rows, job.engine.batch_weights, last, sums)


class BatchLoader:
    """Loads the rows of one replica, by its job (`Job.of`) and index, for a rank that holds some of the stages.

    `inputs` of the step that was loaded last are (rows, context) int64 per microbatch, or what the model's own data
    have, and `targets` the same, one token later; None without the first, without the last stage.
    """

    def __init__(self, job: Job, model: Model, replica: int, stages: Collection[int], device: torch.device) -> None:
        before, count = sum(job.shares[:replica]), job.shares[replica]
        self._rows = slice(before, before + count)
        self._batches = open_batches(job.data, model, job.batch_size, job.model.row_bytes, job.seed)
        self._held: list[Tensor | None] = [  # inputs and targets
            torch.empty(count, *shape, dtype=getattr(torch, dtype), device=device)
            if any(end in stages for end in ends)
            else None
            for ends, (shape, dtype) in zip(job.schedule.ends, job.model.row_forms, strict=True)
        ]
        self.inputs, self.targets = (None if held is None else job.units_of(held) for held in self._held)
        self.has_own = model.data is not None
        self.checksums: list[int] | None = None  # of the whole batch, if it is of the model's own data

    def draw(self, step: int) -> tuple[Tensor, ...]:
        """Return the inputs and the targets of a step's whole batch; none on a rank that needs neither."""
        batch = self._batches(step) if self.inputs or self.targets else ()
        if batch and self.has_own:
            self.checksums = [checksum_of(tensor) for tensor in batch]
        return batch

    def load(self, step: int) -> None:
        """Load the batch of a step in place of the last one."""
        for held, drawn in zip(self._held, self.draw(step), strict=False):
            if held is not None:
                held.copy_(drawn[self._rows])


# --- compiling -----------------------------------------------------------------------------------


def compile_stages(job: Job, stages: Mapping[int, Stage], comms: Comms, device: Device) -> None:
    """Compile a rank's layers, and return when all ranks have done so; it takes seconds or minutes.

    ::

        rank 0   compiles ───────────┤ waits ····· ├─ step 0      a thread of each rank meets those of the others all
        rank 1   compiles ─────────────────────────┤─ step 0      the while, so that nobody waits longer than PAUSE_S

    Layers are compiled in their first calls. Every rank makes those for itself, an F and a B of each microbatch of the
    loaded batch: within a step each rank would wait for the one before it. The gradients are to be discarded.
    """
    shape, dtype, place = boundary_of(job, device)

    def zeros(rows: int, stage: int) -> Tensor:
        return torch.zeros(shape(rows, stage), dtype=dtype(stage), device=place)

    with _beside_the_others(comms):
        for index, stage in stages.items():
            for microbatch, rows in enumerate(job.rows):
                stage.forward(microbatch, None if index == 0 else zeros(rows, index))
                stage.backward(microbatch, None if index == job.schedule.stages - 1 else zeros(rows, index + 1))


@contextmanager
def _beside_the_others(comms: Comms) -> Iterator[None]:
    """Let each rank take its own time in the block, and leave it together, without a limit of time."""
    done = threading.Event()

    def meet() -> None:
        while any(comms.gather_all(not done.is_set())):
            done.wait(PAUSE_S)

    with ThreadPoolExecutor(1) as thread:
        meeting = thread.submit(meet)
        try:
            yield
        finally:
            done.set()
        meeting.result()
