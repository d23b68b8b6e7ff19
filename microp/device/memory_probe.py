"""Measures the memory of a model's stages by running a microbatch through each of them.

::

    bytes alive    │            ╭╮ in_backward
                   │         ╭──╯╰╮        ╭╮ in_weight
                   │         │    ╰────────╯╰╮
                   │ ────────╯               ╰────
                   └────┬──────┬───────┬──────┬───
                        F  activation  B  pending  W

A large model is measured with fewer rows, and the result is scaled up.
"""

from __future__ import annotations

from typing import NamedTuple

import torch

from microp.device.meters import MemoryMeter
from microp.job import Workload
from microp.model import Batch, Model, Stage, build_model
from microp.settings import BYTES, NEVER, Checkpointing, ModelSettings
from microp.simulator import StageMemory

STATE = 3  # tensors of the weights' size that persist between steps: the weights and Adam's two moments
LARGEST = 200_000_000  # weights; a larger model is not built for a measurement
WORK = 1_000_000_000  # multiplications per microbatch; a larger microbatch is measured with fewer rows


class Measured(NamedTuple):
    """The memory of one microbatch on one stage, in bytes: the four sizes of the module's picture."""

    activation: float
    in_backward: float
    pending: float
    in_weight: float


def probe_stages(settings: ModelSettings, workload: Workload) -> tuple[StageMemory, list[int]]:
    """Return the memory of a microbatch of average size on each stage, and of each stage's weights and Adam's state.

    Returns:
        The memory of each stage, and the bytes of its weights and of Adam's two moments.

    Raises:
        ValueError: the model has more than `LARGEST` weights.
    """
    if settings.weights > LARGEST:
        raise ValueError(f"the model has more than {LARGEST:,} weights: too many to be built and measured here")
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # the work is small; on busy cores, threads that wait for each other take seconds
    try:
        return _probe_stages(settings, workload)
    finally:
        torch.set_num_threads(threads)


def _probe_stages(settings: ModelSettings, workload: Workload) -> tuple[StageMemory, list[int]]:
    model = build_model(settings)
    rows = sum(workload.rows) / len(workload.rows)
    kept: list[Measured] = []
    recomputed: list[Measured] = []
    weights: list[int] = []
    again = Checkpointing("segments", workload.checkpointing.segments, False)
    for stage, size in enumerate(workload.layers):
        first = sum(workload.layers[:stage])
        layers = [model.layer(index, 0) for index in range(first, first + size)]
        weights.append(sum(p.nbytes for layer in layers for p in layer.parameters()))
        split = any(split_stage == stage for split_stage, _ in workload.schedule.split)
        probe = _Probe(settings, model, layers, stage, stage == len(workload.layers) - 1, split)
        kept.append(probe.measure(NEVER, rows))
        recomputed.append(probe.measure(again, rows) if again.segments else kept[-1])
    segments = tuple(min(again.segments, size) for size in workload.layers)
    # A recomputed stage holds `segments` boundaries from F to B, and one segment's activations during B.
    per_segment = [every.activation / count if count else 0 for every, count in zip(kept, segments, strict=True)]
    stage_memory = StageMemory(
        activation=tuple(every.activation for every in kept),
        boundary=tuple(r.activation / count if count else 0 for r, count in zip(recomputed, segments, strict=True)),
        pending=tuple(r.pending for r in recomputed),
        in_backward=tuple(max(0, r.in_backward - rebuilt) for r, rebuilt in zip(recomputed, per_segment, strict=True)),
        in_weight=tuple(r.in_weight for r in recomputed),
        gradients=tuple(weights),
        segments=segments if again.segments else (),
        spared=workload.checkpointing.spared(workload.schedule.chunks),
    )
    return stage_memory, [STATE * size for size in weights]


class _Probe:
    """One stage, built to run microbatches under a memory meter."""

    def __init__(
        self,
        settings: ModelSettings,
        model: Model,
        layers: list[torch.nn.Module],
        stage: int,
        last: bool,
        split: bool,
    ) -> None:
        self._settings, self._dtype = settings, model.dtype
        self._layers, self._first, self._split = layers, stage == 0, split
        self._loss = model.loss if last else None
        parameters = [p for layer in layers for p in layer.parameters()]
        self._largest = max((p.nbytes for p in parameters), default=0)
        self._work = sum(p.numel() for p in parameters) * torch.Size(settings.boundary(1)).numel() // settings.dim

    def measure(self, checkpointing: Checkpointing, rows: float) -> Measured:
        """Return the memory of a microbatch of `rows` rows.

        It is proportional to the rows except for the gradient of one weight, which exists until it is added.
        """
        sent = max(1, min(round(rows), WORK // max(1, self._work)))
        found, scale = self._send(checkpointing, sent), rows / sent

        def grown(working: float) -> float:
            fixed = min(self._largest, working)
            return fixed + (working - fixed) * scale

        backward, weight = grown(found.in_backward), grown(found.in_weight)
        return Measured(found.activation * scale, backward, found.pending * scale, weight)

    def _send(self, checkpointing: Checkpointing, rows: int) -> Measured:
        """Run two microbatches of `rows` rows and return the memory of the second, which adds to existing gradients."""
        split = (0, 1) if self._split else ()
        subject = Stage(self._layers, self._loss, checkpointing, 2, split)
        window = torch.randint(0, BYTES, (rows, self._settings.row_bytes))
        given = [window, window]
        subject.load(Batch(0, given if self._first else None, given if self._loss else None, [0.5, 0.5]))
        gradient = None if self._loss else torch.zeros(self._settings.boundary(rows), dtype=self._dtype)
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
        """Undo what a stage changed in its layers."""
        layers.zero_grad()
        for module in layers.modules():
            vars(module).pop("forward", None)  # a stage that divides its backward replaces `forward`

    def _input(self, rows: int) -> torch.Tensor | None:
        return None if self._first else torch.zeros(self._settings.boundary(rows), dtype=self._dtype)
