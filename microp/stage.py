"""Consecutive layers run as a unit, and what they keep from a forward for its backward.

::

    keep everything     F  x ═ layer ═ layer ═ layer ═► y      the graph is kept
                        B  ◄═════════════════════════ gradient

    n segments          F  x ─ layer ─ layer │ x' ─ layer ─► y  only x and x' are kept
    (here 2)            B                      x' ═ layer ═► y  run again, then
                                             ◄═════ gradient    backward, then
                        B  x ═ layer ═ layer ═►                 the segment before it

Checkpointing is one number for each microbatch: how many segments of the stage are run
again in the backward (0: none, everything is kept; 1: the whole stage at once).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from time import perf_counter_ns
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.autograd.graph import GradientEdge, get_gradient_edge

from microp.model import Dropout
from microp.partition import spread
from microp.split import Deferred, SplitBackward, run_together


@dataclass
class Checkpointing:
    """Which microbatches are recomputed, and in how many segments of a stage.

    Attributes:
        name: `never`, `except_last`, `always` or `segments`.
        segments: into how many runs of layers a stage is cut, each of which keeps only its
            input (Chen et al., arXiv 1604.06174); 0 keeps every activation. More than the
            stage has layers means one a layer. Unlike `torch.utils.checkpoint.checkpoint_sequential`,
            the last segment is recomputed too: in a pipeline its activations would be kept
            for every microbatch in flight.
        spare_last: keep everything for the last microbatch (GPipe's except_last: the
            backward that comes at once has nothing to save).
    """

    name: str
    segments: int
    spare_last: bool

    def segments_of(self, microbatch: int, chunks: int) -> int:
        """How many segments of `microbatch` are recomputed."""
        return 0 if self.spare_last and microbatch == chunks - 1 else self.segments

    def problems(self) -> list[str]:
        """What is wrong with these numbers, a sentence each."""
        if self.segments < 0 or (self.name == "segments" and self.segments < 1):
            return [f"checkpointing.segments={self.segments} is below 1: use at least 1"]
        return []


class Batch(NamedTuple):
    """What a stage gets from the outside for a step: a tensor a microbatch.

    Attributes:
        step: the step's index.
        inputs: for the first stage, (rows, context) int64 each; else None.
        targets: for the last stage, (rows, context) int64 each; else None.
        weights: each microbatch's share of the batch's rows; its loss counts that much, so
            that the gradients add up to the batch's.
        first: the number of the first microbatch in the whole batch, which other replicas share.
    """

    step: int
    inputs: Sequence[Tensor] | None
    targets: Sequence[Tensor] | None
    weights: Sequence[float]
    first: int = 0


class _Held(NamedTuple):
    """One segment of one microbatch between its forward and its backward."""

    segment: int
    input: Tensor
    root: GradientEdge | None  # None: to be run again


class Stage:
    """The forward and the backward of some layers, one microbatch at a time.

    Args:
        layers: the stage's layers, in order, on their device.
        loss: on the model's last stage, (output, targets) -> mean loss.
        checkpointing: what is kept, and what is run again.
        chunks: M.
        split: the microbatches whose backward is divided into B and W.
    """

    def __init__(
        self,
        layers: Sequence[nn.Module],
        loss: Callable[[Tensor, Tensor], Tensor] | None,
        checkpointing: Checkpointing,
        chunks: int,
        split: Collection[int] = (),
    ) -> None:
        self.layers = nn.ModuleList(layers)
        self.losses: list[Tensor] = []
        self.kept: dict[int, list[_Held]] = {}
        self.recompute_ns = 0
        self._loss, self._checkpointing, self._chunks = loss, checkpointing, chunks
        self._segments = [checkpointing.segments_of(microbatch, chunks) for microbatch in range(chunks)]
        self._cuts = {count: self._cut(max(count, 1)) for count in set(self._segments)}
        self._dropouts = [m for m in self.layers.modules() if isinstance(m, Dropout) and m.probability]
        self.batch = Batch(0, None, None, ())
        self._split = SplitBackward(self.layers) if split else None
        self._deferred = {microbatch: Deferred() for microbatch in split}

    def _cut(self, segments: int) -> list[list[nn.Module]]:
        layers = iter(self.layers)
        sizes = spread(len(self.layers), min(segments, len(self.layers)))
        return [[module for _ in range(size) for module in _unwrapped(next(layers))] for size in sizes]

    def load(self, batch: Batch) -> None:
        """Take the step's batch; forget the last one's losses."""
        self.batch = batch
        self.losses, self.recompute_ns = [], 0

    @property
    def segments(self) -> list[list[nn.Module]]:
        """What a recomputation runs, one segment after the other."""
        return self._cuts[max(self._segments)]

    def weighted_loss(self, output: Tensor, target: Tensor) -> Tensor:
        """The loss of a microbatch, times its share of the batch's rows (equal microbatches)."""
        assert self._loss is not None
        return self._loss(output, target) * self.batch.weights[0]

    def unsplit(self) -> Stage:
        """A stage of the same layers that never divides a backward."""
        return Stage(list(self.layers), self._loss, self._checkpointing, self._chunks)

    def tensors(self) -> Iterator[Tensor]:
        """Weights, buffers and the loaded batch."""
        yield from self.layers.parameters()
        yield from self.layers.buffers()
        yield from (*(self.batch.inputs or ()), *(self.batch.targets or ()))

    def forward(self, microbatch: int, x: Tensor | None) -> Tensor:
        """Run the layers. `x` is the activation (None on the first stage: the batch's input).

        Returns:
            The activation for the next stage; on the last one the weighted loss.
        """
        if x is None:
            assert self.batch.inputs is not None
            x = self.batch.inputs[microbatch]
        count = self._segments[microbatch]
        held = self.kept[microbatch] = []
        for segment in range(len(self._cuts[count])):
            if count:
                held.append(_Held(segment, x, None))
                with torch.no_grad():
                    x = self._run(microbatch, segment, x)
            else:
                leaf, x = self._tape(microbatch, segment, x)
                held.append(_Held(segment, leaf, get_gradient_edge(x)))
        x = x.detach()
        if self._loss is not None:
            self.losses.append(x)
        return x

    def backward(self, microbatch: int, gradient: Tensor | None) -> Tensor | None:
        """The full backward, or for a microbatch that is split the input's gradient alone.

        Args:
            microbatch: the one whose forward has been run.
            gradient: the output's; None on the last stage, whose output is the loss.

        Returns:
            The gradient of the stage's input; None on the first stage.
        """
        kept = self.kept[microbatch]
        while kept:
            held = kept.pop()
            leaf, root = held.input, held.root
            if root is None:
                start = perf_counter_ns()
                leaf, output = self._tape(microbatch, held.segment, leaf)
                root = get_gradient_edge(output)
                del output  # not needed for the backward, and its memory is
                self.recompute_ns += perf_counter_ns() - start
            if self._split is None or microbatch not in self._deferred:
                torch.autograd.backward(root, gradient)
                gradient = leaf.grad
            else:
                gradient = self._deferred[microbatch].backward(root, gradient, leaf, self._split.anchor)
        del self.kept[microbatch]
        return gradient

    def weight_gradient(self, microbatch: int, _: Tensor | None) -> None:
        """Add what the backward of a microbatch that is split has left to the weights' gradients."""
        self._deferred[microbatch].run()

    def weight_gradients(self, microbatches: Sequence[int]) -> None:
        """The same for several microbatches at once, each Linear's as one product over their rows."""
        run_together([self._deferred[microbatch] for microbatch in microbatches])

    def held(self) -> Iterator[Tensor]:
        """What is kept for later outside of autograd: segments' inputs, and gradients that wait for W."""
        yield from (held.input for kept in self.kept.values() for held in kept)
        for deferred in self._deferred.values():
            yield from deferred.tensors()

    def _tape(self, microbatch: int, segment: int, x: Tensor) -> tuple[Tensor, Tensor]:
        """Run a segment with its graph recorded, from a leaf that will hold x's gradient."""
        leaf = x.detach().requires_grad_(x.is_floating_point())
        return leaf, self._run(microbatch, segment, leaf)

    def _run(self, microbatch: int, segment: int, x: Tensor) -> Tensor:
        for dropout in self._dropouts:
            dropout.at(self.batch.step, self.batch.first + microbatch)
        if self._split is not None:
            self._split.deferred = self._deferred.get(microbatch)
        cuts = self._cuts[self._segments[microbatch]]
        for module in cuts[segment]:
            x = module(x)
        if self._loss is not None and segment == len(cuts) - 1:
            assert self.batch.targets is not None
            x = self._loss(x, self.batch.targets[microbatch]) * self.batch.weights[microbatch]
        if self._split is not None:
            self._split.deferred = None
        return x


def _unwrapped(layer: nn.Module) -> Iterator[nn.Module]:
    """The modules that `layer` calls one after the other, if it does nothing else (a Sequential costs 1.5 µs)."""
    if type(layer) is nn.Sequential and not (layer._forward_hooks or layer._forward_pre_hooks or layer._backward_hooks):
        for child in layer:
            yield from _unwrapped(child)
    else:
        yield layer
