"""How many bytes a model's stages take, found by sending a microbatch through each of them.

::

    bytes alive    │            ╭╮ in_backward
                   │         ╭──╯╰╮        ╭╮ in_weight
                   │         │    ╰────────╯╰╮
                   │ ────────╯               ╰────
                   └────┬──────┬───────┬──────┬───
                        F  activation  B  pending  W

A large model gets fewer rows, and what it takes is scaled up.
"""

from __future__ import annotations

from typing import NamedTuple

import torch

from microp.device import MemoryMeter, Workload
from microp.memory import Footprint
from microp.model import BYTES, Model
from microp.stage import Batch, Checkpointing, Stage

STATE = 3  # copies of the weights from step to step: themselves, Adam's two moments
LARGEST = 200_000_000  # weights; a model beyond it is not built to be measured
WORK = 1_000_000_000  # multiplications a microbatch; a larger one is measured with fewer rows
NEVER = Checkpointing("never", 0, False)


class Measured(NamedTuple):
    """Bytes of one microbatch on one stage."""

    activation: float
    in_backward: float
    pending: float
    in_weight: float


def count_weights(model: Model, layers: range) -> int:
    """The number of weights of some layers of a model."""
    return sum(p.numel() for index in layers for p in model.layer(index, 0).parameters())


def batch_bytes(model: Model, rows: int) -> int:
    """What a rank holds of a batch, if it has the model's first or last stage: both see the same bytes, as int64."""
    return rows * (model.row_bytes + 1) * torch.int64.itemsize


def stage_footprint(model: Model, workload: Workload) -> tuple[Footprint, list[int]]:
    """What a microbatch of average size holds on each stage, and each stage's weights with Adam's state; in bytes.

    Raises:
        ValueError: the model has more weights than can be built here to be measured.
    """
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # the work is small, and threads that wait for each other on busy cores take seconds
    try:
        return _stage_footprint(model, workload)
    finally:
        torch.set_num_threads(threads)


def _stage_footprint(model: Model, workload: Workload) -> tuple[Footprint, list[int]]:
    rows = sum(workload.rows) / len(workload.rows)
    kept: list[Measured] = []
    recomputed: list[Measured] = []
    weights: list[int] = []
    again = Checkpointing("segments", workload.checkpointing.segments, False)
    for stage, size in enumerate(workload.layers):
        first = sum(workload.layers[:stage])
        layers = [model.layer(index, 0) for index in range(first, first + size)]
        weights.append(sum(p.nbytes for layer in layers for p in layer.parameters()))
        if sum(weights) > LARGEST * model.torch_dtype.itemsize:
            raise ValueError(f"the model has more than {LARGEST:,} weights: too many to be built and measured here")
        split = any(place == stage for place, _ in workload.schedule.split)
        probe = _Probe(model, layers, stage, stage == len(workload.layers) - 1, split)
        kept.append(probe.measure(NEVER, rows))
        recomputed.append(probe.measure(again, rows) if again.segments else kept[-1])
    segments = tuple(min(again.segments, size) for size in workload.layers)
    # The law of a recomputed stage: `segments` boundaries from F to B, a segment's activations inside B.
    law = [every.activation / count if count else 0 for every, count in zip(kept, segments, strict=True)]
    footprint = Footprint(
        activation=tuple(every.activation for every in kept),
        boundary=tuple(r.activation / count if count else 0 for r, count in zip(recomputed, segments, strict=True)),
        pending=tuple(r.pending for r in recomputed),
        in_backward=tuple(max(0, r.in_backward - rebuilt) for r, rebuilt in zip(recomputed, law, strict=True)),
        in_weight=tuple(r.in_weight for r in recomputed),
        gradients=tuple(weights),
        segments=segments if again.segments else (),
        spared=(workload.schedule.chunks - 1,) if workload.checkpointing.spare_last else (),
    )
    return footprint, [STATE * size for size in weights]


class _Probe:
    """One stage, to send microbatches through."""

    def __init__(self, model: Model, layers: list[torch.nn.Module], stage: int, last: bool, split: bool) -> None:
        self._model, self._layers, self._first, self._split = model, layers, stage == 0, split
        self._loss = model.loss if last else None
        parameters = [p for layer in layers for p in layer.parameters()]
        self._largest = max((p.nbytes for p in parameters), default=0)
        self._work = sum(p.numel() for p in parameters) * torch.Size(model.boundary(1)).numel() // model.dim

    def measure(self, checkpointing: Checkpointing, rows: float) -> Measured:
        """Of a microbatch of so many rows; the gradient of a weight, on its way to be added, is the same for any."""
        sent = max(1, min(round(rows), WORK // max(1, self._work)))
        found, scale = self._send(checkpointing, sent), rows / sent

        def grown(working: float) -> float:
            fixed = min(self._largest, working)
            return fixed + (working - fixed) * scale

        backward, weight = grown(found.in_backward), grown(found.in_weight)
        return Measured(found.activation * scale, backward, found.pending * scale, weight)

    def _send(self, checkpointing: Checkpointing, rows: int) -> Measured:
        """The second of two microbatches: it finds the gradients that the first has made."""
        split = (0, 1) if self._split else ()
        subject = Stage(self._layers, self._loss, checkpointing, 2, split)
        window = torch.randint(0, BYTES, (rows, self._model.row_bytes))
        given = [window, window]
        subject.load(Batch(0, given if self._first else None, given if self._loss else None, [0.5, 0.5]))
        gradient = None if self._loss else torch.zeros(self._model.boundary(rows), dtype=self._model.torch_dtype)
        meter = MemoryMeter(subject.tensors())
        with meter:
            for microbatch in (0, 1):
                before = meter.bytes
                subject.forward(microbatch, self._input(rows))
                activation, meter.peak_bytes = meter.bytes - before, meter.bytes
                subject.backward(microbatch, gradient)
                pending, in_backward = meter.bytes - before, meter.peak_bytes - before - activation
                meter.peak_bytes = meter.bytes
                if split:
                    subject.weight_gradient(microbatch, None)
                in_weight = meter.peak_bytes - before - pending
        self._restore(subject.layers)
        return Measured(activation, in_backward, pending if split else 0, in_weight)

    @staticmethod
    def _restore(layers: torch.nn.Module) -> None:
        """As they were before they were a stage's."""
        layers.zero_grad()
        for module in layers.modules():
            vars(module).pop("forward", None)  # a stage that divides its backward has put its own there

    def _input(self, rows: int) -> torch.Tensor | None:
        return None if self._first else torch.zeros(self._model.boundary(rows), dtype=self._model.torch_dtype)
