"""How many bytes a model's stages take, found by sending one row through each of them.

::

    a stage, one row   F ─► activation: what autograd keeps      B ─► pending: what waits for W
    times the rows of a microbatch, and once the weights with their gradients and Adam's two moments
"""

from __future__ import annotations

import torch

from microp.device import ActivationMeter, Workload
from microp.memory import Footprint
from microp.model import BYTES, Model
from microp.stage import Batch, Checkpointing, Stage

STATE = 4  # copies of the weights: themselves, their gradients, Adam's two moments
LARGEST = 200_000_000  # weights; a model beyond it is not built to be measured


def count_weights(model: Model, layers: range) -> int:
    """The number of weights of some layers of a model."""
    return sum(p.numel() for index in layers for p in model.layer(index, 0).parameters())


def stage_footprint(model: Model, workload: Workload) -> tuple[Footprint, list[int]]:
    """What a microbatch of average size holds on each stage, and each stage's weights with their state; in bytes.

    Raises:
        ValueError: the model has more weights than can be built here to be measured.
    """
    rows = sum(workload.rows) / len(workload.rows)
    activation, pending, state = [], [], []
    first, total = 0, 0
    for stage, size in enumerate(workload.layers):
        layers = [model.layer(index, 0) for index in range(first, first + size)]
        last = stage == len(workload.layers) - 1
        kept, waits = _one_row(model, layers, stage, last)
        weights = sum(p.nbytes for layer in layers for p in layer.parameters())
        first, total = first + size, total + weights // model.torch_dtype.itemsize
        if total > LARGEST:
            raise ValueError(f"the model has more than {LARGEST:,} weights: too many to be built and measured here")
        activation.append(kept * rows)
        pending.append(waits * rows if workload.schedule.split else 0)
        state.append(STATE * weights)
    boundary = torch.Size(model.boundary(1)).numel() * model.torch_dtype.itemsize * rows
    segments = min(workload.checkpointing.segments, min(workload.layers))
    count = len(workload.layers)
    footprint = Footprint(
        activation=tuple(activation),
        boundary=(0, *((boundary,) * (count - 1))) if segments == 1 else (boundary,) * count,
        pending=tuple(pending),
        segments=(segments,) * count if segments else (),
        spared=(workload.schedule.chunks - 1,) if workload.checkpointing.spare_last else (),
    )
    return footprint, state


def _one_row(model: Model, layers: list[torch.nn.Module], stage: int, last: bool) -> tuple[int, int]:
    """Bytes kept after F, and after B for W, of one row."""
    loss = model.loss if last else None
    subject = Stage(layers, loss, Checkpointing("never", 0, False), 1, [0])
    row = torch.randint(0, BYTES, (1, model.row_bytes))
    subject.load(Batch(0, [row] if stage == 0 else None, [row] if last else None, [1.0]))
    x = None if stage == 0 else torch.randn(model.boundary(1), dtype=model.torch_dtype)
    meter = ActivationMeter([subject])
    with meter:
        y = subject.forward(0, x)
        meter.look()
        kept = meter.peak_bytes
        subject.backward(0, None if last else torch.ones_like(y))
        meter.peak_bytes = 0
        meter.look()
    return kept, meter.peak_bytes
