"""A stage: consecutive layers run as a unit, and what they keep between forward and backward.

::

    keep everything     F  x ═ layer ═ layer ═ layer ═► y      the graph is kept
                        B  ◄═════════════════════════ gradient

    n segments          F  x ─ layer ─ layer │ x' ─ layer ─► y  only x and x' are kept
    (here 2)            B                      x' ═ layer ═► y  recomputed, then
                                             ◄═════ gradient    its backward, then
                        B  x ═ layer ═ layer ═►                 the segment before it

Checkpointing is one number per microbatch: the number of segments of the stage that are
recomputed in the backward (0: none, everything is kept; 1: the whole stage at once). What lies before the first
layer that is trained keeps nothing, has no backward and is not run again.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from itertools import accumulate
from operator import or_
from time import perf_counter_ns
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.autograd.graph import GradientEdge, get_gradient_edge

from microp.model.autocast import open_autocast
from microp.model.division import choose_division, undivided_text
from microp.model.randomness import GENERATOR, Reseeded, random_parts
from microp.model.slices import Sliced
from microp.model.split_backward import Deferred, SplitBackward, run_backward, run_together, trained
from microp.model.watch import memory_of
from microp.settings import AS_WRITTEN, Checkpointing, Computing


class Batch(NamedTuple):
    """The data of a step that a stage gets from outside the pipeline: one tensor per microbatch.

    A microbatch's weight is the gradient of its loss, so that the gradients add up to that of the batch's mean loss.
    """

    step: int  # the step's index
    inputs: Sequence[Tensor] | None  # for the first stage, (rows, context) int64 per microbatch; else None
    targets: Sequence[Tensor] | None  # for the last stage, the same; else None
    weights: Sequence[float]  # each microbatch's share of the batch's rows
    first: int = 0  # the index of this replica's first microbatch in the whole batch


_NOTHING = torch.empty(0)
BACKEND = "inductor"
_VARIANTS = 10_000  # that are compiled of one function: each segment, number of rows, and kind of forward is one


class _Held(NamedTuple):
    """One segment of one microbatch between its forward and its backward."""

    segment: int
    input: Tensor  # the tensor that entered it; nothing if it is neither recomputed nor has a gradient
    root: GradientEdge | None  # its output's node in the graph; None if it is recomputed, or has no gradient
    is_recomputed: bool


class Stage:
    """The forward and the backward of some layers, one microbatch at a time.

    Args:
        layers: the stage's layers, in order, on their device.
        loss: on the model's last stage, (output, targets) -> mean loss.
        divided: the microbatches whose backward is divided into I and W.
        slices: the number of units, along the sequence, that a microbatch is; a microbatch is a unit then.
        is_reached: whether a layer before the stage is trained, so that the gradient of the stage's input is wanted.
    """

    def __init__(
        self,
        layers: Sequence[nn.Module],
        loss: Callable[[Tensor, Tensor], Tensor] | None,
        checkpointing: Checkpointing,
        chunks: int,
        divided: Collection[int] = (),
        mark: Callable[[], Any] = perf_counter_ns,
        computing: Computing = AS_WRITTEN,
        device: torch.device | str = "cpu",
        slices: int = 1,
        is_reached: bool = True,
    ) -> None:
        self.layers = nn.ModuleList(layers)
        self.losses: dict[int, Tensor] = {}  # microbatch -> its mean loss, on the last stage
        self.kept: dict[int, list[_Held]] = {}  # microbatch -> what its forward has kept for its backward
        self.recomputations: list[Any] = []  # the marks at the start and the end of each in this step, in turn
        self._mark, self._computing, self._device = mark, computing, device
        self.autocast = open_autocast(computing, device)  # encloses every forward and recomputation
        self._loss, self._checkpointing, self._chunks = loss, checkpointing, chunks
        self._segments = [checkpointing.segments_of(microbatch, chunks) for microbatch in range(chunks)]
        self._random = list(random_parts(self.layers))
        self._sliced = [part for part in self.layers.modules() if isinstance(part, Sliced)] if slices > 1 else []
        self._slices, self._is_reached = slices, is_reached
        self._entered: dict[int, tuple[torch.Size, torch.dtype]] = {}  # microbatch -> the form of an input without one
        for sliced in self._sliced:
            sliced.divide_rows(slices)
        # Ranks may be threads, which share the generators.
        self._generators: AbstractContextManager[Any] = nullcontext()
        if any(isinstance(part, Reseeded) for part in self._random):
            self._generators = GENERATOR
        self._split = SplitBackward(self.layers, computing.dtype is not None) if divided else None
        self._deferred = {microbatch: Deferred() for microbatch in divided}
        self.batch = Batch(0, None, None, ())
        self._cut_layers()

    def divide(self, samples: Sequence[Tensor | None], indices: Sequence[int], as_one: Collection[int] = ()) -> None:
        """Divide the backward of each layer in the quickest way that gives the full backward.

        `samples` has an input of a few rows for each layer (None: unchecked, by its parts, or if it is among those
        `as_one` as one), `indices` its place in the model.

        Raises:
            ValueError: a layer gives other gradients if its backward is divided.
        """
        if self._split is None:
            return
        with GENERATOR:  # torch's checkpoint sets its state back, while another rank that is a thread makes its layers
            for index, layer, sample in zip(indices, self.layers, samples, strict=True):
                if sample is None:
                    (self._split.divide_as_one if index in as_one else self._split.divide)(layer)
                    continue
                try:
                    choose_division(self._split, layer, sample, self._run_alone)
                except ValueError as error:
                    raise ValueError(undivided_text(index, layer, error)) from error
        self._cut_layers()

    def _run_alone(self, layer: nn.Module, x: Tensor) -> Tensor:
        for part in self._random:
            part.at(0, 0)
        for sliced in self._sliced:
            sliced.unit = 0
        with self._generators, self.autocast:
            return layer(x)

    def undo_division(self) -> None:
        """Let the layers compute as they did before they became a stage."""
        if self._split is not None:
            for layer in self.layers:
                self._split.undo(layer)

    def _cut_layers(self) -> None:
        self._cuts: dict[int, list[list[nn.Module]]] = {}
        self._reached: dict[int, list[bool]] = {}  # whether a gradient is wanted of what enters a segment, or leaves
        for count in set(self._segments):
            shares = np.array_split(range(len(self.layers)), min(max(count, 1), len(self.layers)))
            cut = [[self.layers[index] for index in share] for share in shares]
            self._cuts[count] = [[_compiled(modules)] for modules in cut] if self._computing.compile else cut
            is_trained = (any(map(trained, modules)) for modules in cut)
            self._reached[count] = [*accumulate(is_trained, or_, initial=self._is_reached)]
        self.load(self.batch)

    def load(self, batch: Batch) -> None:
        """Set the step's batch; discard the losses and the recomputations of the last step."""
        self.batch = batch
        self.losses, self.recomputations = {}, []
        for sliced in self._sliced:
            sliced.past.clear()
        if self._split is not None:
            self._split.begin_step()

    @property
    def segments(self) -> list[list[nn.Module]]:
        """The modules of each segment that a recomputation runs."""
        return self._cuts[max(self._segments)]

    def weighted_loss(self, output: Tensor, target: Tensor) -> Tensor:
        """Return the next microbatch's loss times its share of the batch's rows, and add it to `losses`."""
        assert self._loss is not None
        microbatch = len(self.losses)
        with self.autocast:
            loss = self._loss(output, target)
            self.losses[microbatch] = loss.detach()
            return loss * self.batch.weights[microbatch]

    def weighted_losses(self) -> list[Tensor]:
        """Return the losses times their microbatches' shares of the batch's rows, which add up to the batch's loss."""
        return [loss * self.batch.weights[microbatch] for microbatch, loss in sorted(self.losses.items())]

    def unsplit(self) -> Stage:
        """Return a stage of the same layers that never divides a backward."""
        layers, policy = list(self.layers), self._checkpointing
        return Stage(
            layers,
            self._loss,
            policy,
            self._chunks,
            computing=self._computing,
            device=self._device,
            slices=self._slices,
            is_reached=self._is_reached,
        )

    def tensors(self) -> Iterator[Tensor]:
        """Yield what is there between two steps: the weights, the buffers, the loaded batch."""
        yield from self.layers.parameters()
        yield from self.layers.buffers()
        yield from (*(self.batch.inputs or ()), *(self.batch.targets or ()))
        yield from (sliced.past.mask for sliced in self._sliced if sliced.past.mask is not None)

    def forward(self, microbatch: int, x: Tensor | None) -> Tensor:
        """Run the layers on one microbatch.

        `x` is the previous stage's activation; None on the first stage, which uses the batch's input.

        Returns:
            The activation for the next stage, in memory of its own; on the last stage the loss.
        """
        if x is None:
            assert self.batch.inputs is not None
            x = self.batch.inputs[microbatch]
        elif not self._is_reached:
            self._entered[microbatch] = x.shape, x.dtype
        given = x
        count = self._segments[microbatch]
        held = self.kept[microbatch] = []
        for segment, is_reached in enumerate(self._reached[count][1:]):
            if not is_reached:
                with torch.no_grad():
                    x = self._run(microbatch, segment, x)
            elif count:
                held.append(_Held(segment, x, None, True))
                with torch.no_grad():
                    x = self._run(microbatch, segment, x)
            else:
                leaf, x = self._tape(microbatch, segment, x)
                held.append(_Held(segment, leaf if leaf.requires_grad else _NOTHING, _root_of(x), False))
        x = _apart(x.detach(), given)
        if self._loss is not None:
            self.losses[microbatch] = x
        return x

    def try_forward(self, microbatch: int, x: Tensor | None) -> None:
        """Run the layers, without the loss, on one microbatch, and keep nothing but what slices keep."""
        for sliced in self._sliced:
            sliced.unit = microbatch
        with torch.no_grad(), self.autocast:
            x = self.batch.inputs[microbatch] if x is None else x  # type: ignore[index]
            for layer in self.layers:
                x = layer(x)

    def backward(self, microbatch: int, gradient: Tensor | None) -> Tensor | None:
        """Run the full backward, or only the input's gradient if the microbatch's backward is divided.

        `gradient` is that of the output; None on the last stage, whose output is the loss.

        Returns:
            The gradient of the stage's input, in memory of its own, zeros if nobody uses it; None on the first stage.

        Raises:
            ValueError: the loss is not one number.
        """
        with self._generators:  # torch's checkpoint in a layer draws again, and sets the generators back
            return self._backward(microbatch, gradient)

    def _backward(self, microbatch: int, gradient: Tensor | None) -> Tensor | None:
        kept, given = self.kept[microbatch], gradient
        current: Any = self._loss_gradient(microbatch) if given is None else given
        while kept:
            held = kept.pop()
            leaf, root = held.input, held.root
            # 1. run a segment again of which only the input was kept
            if held.is_recomputed:
                start = self._mark()
                leaf, output = self._tape(microbatch, held.segment, leaf)
                root = _root_of(output)
                del output  # frees its memory, which the backward does not need
                self.recomputations += (start, self._mark())
            # 2. the full backward
            if root is None:  # of layers whose weights are frozen
                current = None
            elif self._split is None or microbatch not in self._deferred:
                run_backward(root, current)
                current = leaf.grad
            # 3. or B alone, which leaves the weights' gradients for W
            else:
                current = self._deferred[microbatch].backward(root, current, leaf, self._split)
            if current is None and root is not None and leaf.requires_grad:  # the layers do not use their input
                current = torch.zeros_like(leaf)
        del self.kept[microbatch]
        if microbatch in self._entered:
            shape, dtype = self._entered.pop(microbatch)
            return torch.zeros(shape, dtype=dtype, device=self._device)
        return current if current is None or given is None else _apart(current, given)

    def _loss_gradient(self, microbatch: int) -> Tensor:
        """Return the gradient of a microbatch's loss, a new tensor each time: a backward may write into it."""
        loss = self.losses[microbatch]
        if loss.numel() != 1:
            raise ValueError(f"the loss has the shape {list(loss.shape)}: it has to be one number")
        return torch.full_like(loss, self.batch.weights[microbatch])

    def weight_gradient(self, microbatch: int, _: Tensor | None) -> None:
        """Run W: add the weight gradients of a microbatch whose B has been run to the weights' `grad`."""
        with self._generators:
            self._deferred[microbatch].run()

    def weight_gradients(self, microbatches: Sequence[int]) -> None:
        """Run W for several microbatches at once, with one product per Linear over all their rows."""
        with self._generators:
            run_together([self._deferred[microbatch] for microbatch in microbatches])

    def waiting(self, microbatch: int) -> Deferred:
        """Return what the B of a microbatch has left for its W."""
        return self._deferred[microbatch]

    def held(self) -> Iterator[Tensor]:
        """Yield the tensors kept outside autograd's graphs: inputs of segments, and gradients that wait for W."""
        yield from (held.input for kept in self.kept.values() for held in kept)
        for deferred in self._deferred.values():
            yield from deferred.tensors()
        for sliced in self._sliced:
            yield from sliced.past.tensors()

    def _tape(self, microbatch: int, segment: int, x: Tensor) -> tuple[Tensor, Tensor]:
        """Run a segment and record its graph; return the leaf that will hold x's gradient, and the output."""
        is_data = self.batch.inputs is not None and x is self.batch.inputs[microbatch]
        is_reached = self._reached[self._segments[microbatch]][segment] and not is_data
        leaf = x.detach().requires_grad_(x.is_floating_point() and is_reached)
        return leaf, self._run(microbatch, segment, leaf)

    def _run(self, microbatch: int, segment: int, x: Tensor) -> Tensor:
        for part in self._random:
            part.at(self.batch.step, self.batch.first + microbatch)
        for sliced in self._sliced:
            sliced.unit = microbatch
        if self._split is not None:
            self._split.deferred = self._deferred.get(microbatch)
        segments = self._cuts[self._segments[microbatch]]
        with self._generators, self.autocast:
            for module in segments[segment]:
                x = module(x)
            if self._loss is not None and segment == len(segments) - 1:
                assert self.batch.targets is not None
                x = self._loss(x, self.batch.targets[microbatch])
        if self._split is not None:
            self._split.deferred = None
        return x


def _root_of(output: Tensor) -> GradientEdge | None:
    """Return the node of an output in the graph; None if all weights that it depends on are frozen."""
    return get_gradient_edge(output) if output.requires_grad else None


def _apart(result: Tensor, given: Tensor) -> Tensor:
    """Return a result, as a copy if it lies in the memory of what was given, as that of `nn.Flatten` does.

    A transport writes its next tensor there when this stage has done its part, and then the result is still in use.
    It sends one piece of memory.
    """
    result = result.contiguous().resolve_neg()
    return result if memory_of(result) != memory_of(given) else result.clone()


def _compiled(modules: Sequence[nn.Module]) -> nn.Module:
    """Return some modules, run in order as code that torch.compile makes in their first call.

    A segment, and not the whole stage, is what a recomputation runs again.
    """
    os.environ.setdefault("TORCHINDUCTOR_COMPILE_THREADS", "1")  # in this process: none that could outlive a rank
    import torch._functorch.config as gradients  # takes seconds, and only compiled layers need it
    import torch.compiler.config as tracer

    tracer.recompile_limit = tracer.accumulated_recompile_limit = _VARIANTS
    tracer.fail_on_recompile_limit_hit = True  # else the layer would run uncompiled, and nothing would say so
    gradients.backward_pass_autocast = "off"  # as without the compiler
    segment = nn.Sequential(*modules)
    segment.compile(backend=BACKEND, dynamic=False)
    return segment
