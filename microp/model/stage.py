"""A stage: consecutive layers run as a unit, and what they keep between forward and backward.

::

    keep everything     F  x ═ layer ═ layer ═ layer ═► y      the graph is kept
                        B  ◄═════════════════════════ gradient

    n segments          F  x ─ layer ─ layer │ x' ─ layer ─► y  only x and x' are kept
    (here 2)            B                      x' ═ layer ═► y  recomputed, then
                                             ◄═════ gradient    its backward, then
                        B  x ═ layer ═ layer ═►                 the segment before it

Checkpointing is one number per microbatch: the number of segments of the stage that are
recomputed in the backward (0: none, everything is kept; 1: the whole stage at once).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from time import perf_counter_ns
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.autograd.graph import GradientEdge, get_gradient_edge
from torch.nn.modules.module import _has_any_global_hook

from microp.model.autocast import open_autocast
from microp.model.compiled import Segment
from microp.model.engine_calls import run_backward
from microp.model.randomness import random_parts
from microp.model.split_backward import Deferred, SplitBackward, run_together
from microp.schedule import spread
from microp.settings import AS_WRITTEN, Checkpointing, Computing

_HOOKS = ("_forward_pre_hooks", "_forward_hooks", "_backward_pre_hooks", "_backward_hooks")  # of a module


class Batch(NamedTuple):
    """The data of a step that a stage gets from outside the pipeline: one tensor per microbatch.

    Attributes:
        step: the step's index.
        inputs: for the first stage, (rows, context) int64 per microbatch; else None.
        targets: for the last stage, (rows, context) int64 per microbatch; else None.
        weights: each microbatch's share of the batch's rows. It is the gradient of the microbatch's loss, so that
            the gradients add up to the gradient of the batch's mean loss.
        first: the index of this replica's first microbatch in the whole batch.
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
    root: GradientEdge | None  # None: the segment is recomputed


class Stage:
    """The forward and the backward of some layers, one microbatch at a time.

    Args:
        layers: the stage's layers, in order, on their device.
        loss: on the model's last stage, (output, targets) -> mean loss.
        checkpointing: the policy: what is kept and what is recomputed.
        chunks: the number of microbatches, M.
        split: the microbatches whose backward is divided into B and W.
        mark: the device's clock.
        computing: how the layers compute.
        device: the device of the layers.

    Attributes:
        autocast: what encloses every forward and recomputation.
        losses: microbatch -> its mean loss, on the last stage.
        kept: microbatch -> what its forward has kept for its backward.
        recomputations: the marks at the start and the end of each recomputation of this step, one after the other.
    """

    def __init__(
        self,
        layers: Sequence[nn.Module],
        loss: Callable[[Tensor, Tensor], Tensor] | None,
        checkpointing: Checkpointing,
        chunks: int,
        split: Collection[int] = (),
        mark: Callable[[], Any] = perf_counter_ns,
        computing: Computing = AS_WRITTEN,
        device: torch.device | str = "cpu",
    ) -> None:
        self.layers = nn.ModuleList(layers)
        self.losses: dict[int, Tensor] = {}
        self._loss_gradients: dict[float, Tensor] = {}  # a share of the batch's rows -> the same as a tensor
        self.kept: dict[int, list[_Held]] = {}
        self.recomputations: list[Any] = []
        self._mark, self._computing, self._device = mark, computing, device
        self.autocast = open_autocast(computing, device)
        self._loss, self._checkpointing, self._chunks = loss, checkpointing, chunks
        self._segments = [checkpointing.segments_of(microbatch, chunks) for microbatch in range(chunks)]
        self._cuts = {count: self._cut(max(count, 1)) for count in set(self._segments)}
        self._random = list(random_parts(self.layers))
        self._split = SplitBackward(self.layers, computing.dtype is not None) if split else None
        self._deferred = {microbatch: Deferred() for microbatch in split}
        self.load(Batch(0, None, None, ()))

    def _cut(self, segments: int) -> list[list[nn.Module]]:
        layers = iter(self.layers)
        sizes = spread(len(self.layers), min(segments, len(self.layers)))
        cut = [[module for _ in range(size) for module in _unwrapped(next(layers))] for size in sizes]
        return [[Segment(modules)] for modules in cut] if self._computing.compile else cut

    def load(self, batch: Batch) -> None:
        """Set the step's batch; discard the losses and the recomputations of the last step."""
        self.batch = batch
        self.losses, self.recomputations = {}, []
        self._calls = {
            count: [[_call_of(module) for module in cut] for cut in cuts] for count, cuts in self._cuts.items()
        }
        if self._split is not None:
            self._split.look_for_hooks()

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
        return Stage(layers, self._loss, policy, self._chunks, computing=self._computing, device=self._device)

    def tensors(self) -> Iterator[Tensor]:
        """Yield what is there between two steps: the weights, the buffers, the loaded batch, the losses' gradients."""
        yield from self.layers.parameters()
        yield from self.layers.buffers()
        yield from (*(self.batch.inputs or ()), *(self.batch.targets or ()), *self._loss_gradients.values())

    def forward(self, microbatch: int, x: Tensor | None) -> Tensor:
        """Run the layers on one microbatch.

        Args:
            microbatch: the index.
            x: the previous stage's activation; None on the first stage, which uses the batch's input.

        Returns:
            The activation for the next stage, in memory of its own; on the last stage the loss.
        """
        if x is None:
            assert self.batch.inputs is not None
            x = self.batch.inputs[microbatch]
        given = x
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
        x = _apart(x.detach(), given)
        if self._loss is not None:
            self.losses[microbatch] = x
        return x

    def backward(self, microbatch: int, gradient: Tensor | None) -> Tensor | None:
        """Run the full backward, or only the input's gradient if the microbatch's backward is divided.

        Args:
            microbatch: the index; its forward has been run.
            gradient: the gradient of the output; None on the last stage, whose output is the loss.

        Returns:
            The gradient of the stage's input, in memory of its own; None on the first stage.

        Raises:
            ValueError: the loss is not one number.
        """
        kept, given = self.kept[microbatch], gradient
        current: Any = self._loss_gradient(microbatch) if given is None else given
        while kept:
            held = kept.pop()
            leaf, root = held.input, held.root
            if root is None:
                start = self._mark()
                leaf, output = self._tape(microbatch, held.segment, leaf)
                root = get_gradient_edge(output)
                del output  # frees its memory, which the backward does not need
                self.recomputations += (start, self._mark())
            if self._split is None or microbatch not in self._deferred:
                run_backward(root, current)
                current = leaf.grad
            else:
                current = self._deferred[microbatch].backward(root, current, leaf, self._split.anchor)
        del self.kept[microbatch]
        return current if current is None or given is None else _apart(current, given)

    def _loss_gradient(self, microbatch: int) -> Tensor:
        """Return the gradient of a microbatch's loss, which is the same tensor in each step."""
        share = self.batch.weights[microbatch]
        found = self._loss_gradients.get(share)
        if found is None:
            loss = self.losses[microbatch]
            if loss.numel() != 1:
                raise ValueError(f"the loss has the shape {list(loss.shape)}: it has to be one number")
            found = self._loss_gradients[share] = torch.full_like(loss, share)
        return found

    def weight_gradient(self, microbatch: int, _: Tensor | None) -> None:
        """Run W: add the weight gradients of a microbatch whose B has been run to the weights' `grad`."""
        self._deferred[microbatch].run()

    def weight_gradients(self, microbatches: Sequence[int]) -> None:
        """Run W for several microbatches at once, with one product per Linear over all their rows."""
        run_together([self._deferred[microbatch] for microbatch in microbatches])

    def held(self) -> Iterator[Tensor]:
        """Yield the tensors kept outside autograd's graphs: inputs of segments, and gradients that wait for W."""
        yield from (held.input for kept in self.kept.values() for held in kept)
        for deferred in self._deferred.values():
            yield from deferred.tensors()

    def _tape(self, microbatch: int, segment: int, x: Tensor) -> tuple[Tensor, Tensor]:
        """Run a segment and record its graph; return the leaf that will hold x's gradient, and the output."""
        leaf = x.detach().requires_grad_(x.is_floating_point())
        return leaf, self._run(microbatch, segment, leaf)

    def _run(self, microbatch: int, segment: int, x: Tensor) -> Tensor:
        for part in self._random:
            part.at(self.batch.step, self.batch.first + microbatch)
        if self._split is not None:
            self._split.deferred = self._deferred.get(microbatch)
        calls = self._calls[self._segments[microbatch]]
        with self.autocast:
            for call in calls[segment]:
                x = call(x)
            if self._loss is not None and segment == len(calls) - 1:
                assert self.batch.targets is not None
                x = self._loss(x, self.batch.targets[microbatch])
        if self._split is not None:
            self._split.deferred = None
        return x


def _apart(result: Tensor, given: Tensor) -> Tensor:
    """Return a result, as a copy if it lies in the memory of what was given, as that of `nn.Flatten` does.

    A transport writes its next tensor there when this stage has done its part, and then the result is still in use.
    """
    is_apart = result.untyped_storage().data_ptr() != given.untyped_storage().data_ptr()
    return result if is_apart else result.clone()


def _unwrapped(layer: nn.Module) -> Iterator[nn.Module]:
    """Yield the modules that `layer` calls, if it only calls them in order (a Sequential costs 1.5 µs), or `layer`."""
    if type(layer) is nn.Sequential and not (layer._forward_hooks or layer._forward_pre_hooks or layer._backward_hooks):
        for child in layer:
            yield from _unwrapped(child)
    else:
        yield layer


def _call_of(module: nn.Module) -> Callable[[Tensor], Tensor]:
    """Return `module`, or its `forward` if a call does nothing else: `nn.Module.__call__` alone takes 1.3 µs."""
    plain = type(module).__call__ is nn.Module.__call__ and module._compiled_call_impl is None
    hooked = any(map(vars(module).get, _HOOKS)) or _has_any_global_hook()
    return module.forward if plain and not hooked else module
