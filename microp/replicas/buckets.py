"""Buckets: gradients that are summed together, and the moment at which each sum starts.

::

    parameters   w₀    w₁    w₂    w₃    w₄        (the backward goes from right to left)
    buckets      │ w₂ w₁ w₀ ... │◄│ w₄ w₃ │        the first bucket is smaller, so that it is full soon
                                   └ full: copied, summed over the replicas while the backward continues

A gradient is copied into its bucket when it is complete. From then on the parameter's gradient
*is* its part of the bucket, so the sum is never copied back. (Adding to the bucket from the start
takes longer: the bucket must be zeroed, and read once more for the first microbatch, whose gradient
is otherwise used as it is.) A bucket of one parameter has no memory of its own.

::

    used by both       g + h       = g + h
    used by one        g + -0.0    = g          bit for bit
    used by nobody     -0.0 + -0.0 = -0.0       no gradient: the optimizer leaves the weight alone, as in one process

A weight that some ranks do not use has no gradient there; one that nobody has used has none after the sum either. The
first element tells: that of a gradient that is there is never -0.0, because 0.0 is added to it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from microp.comms import Sum

LINE = 64  # bytes: the alignment of gradients in a bucket, equal to the allocator's
Start = Callable[[Tensor], Sum]


class Bucket:
    """The gradients of some parameters in one contiguous buffer.

    The parameters are of one type and device, in the order in which their gradients are completed.
    """

    def __init__(self, parameters: Sequence[nn.Parameter]) -> None:
        self.parameters = parameters
        self.missing = 0  # the number of parameters whose gradient is not complete
        self.unused: list[nn.Parameter] = []  # those without a gradient on this replica
        self.sum: Sum | None = None  # over the replicas, once it has been started
        self.started: Any = None  # the mark at the start of the sum
        self.buffer: Tensor | None = None  # what is summed; None if the bucket has one parameter
        whole: Tensor = parameters[0]
        if len(parameters) > 1:
            line = LINE // whole.element_size()
            sizes = [-(-parameter.numel() // line) * line for parameter in parameters]
            self.buffer = whole = torch.zeros(sum(sizes), dtype=whole.dtype, device=whole.device)
            parts = zip(parameters, whole.split(sizes), strict=True)
            self._views = {parameter: part[: parameter.numel()].view_as(parameter) for parameter, part in parts}
        self.size = whole.numel(), whole.dtype  # the number of elements that are summed, and their type
        self.nbytes = whole.nbytes

    def take(self, parameter: nn.Parameter) -> None:
        """Copy the complete gradient of `parameter` into the buffer, and make it a view of the buffer."""
        if parameter.grad is None:
            self.unused.append(parameter)
        if self.buffer is not None:
            view = self._views[parameter]
            to_sum(parameter, out=view)
            parameter.grad = view

    def contents(self) -> Tensor:
        """Return the tensor to sum, of one dimension; every gradient must have been taken."""
        if self.buffer is not None:
            return self.buffer
        [parameter] = self.parameters
        flat = to_sum(parameter)
        parameter.grad = flat.view_as(parameter)
        return flat

    def finish(self) -> int:
        """Wait for the sum, and return its end as `Sum.ended_ns`; a parameter that no replica used has no gradient."""
        assert self.sum is not None
        self.sum.wait()
        for parameter in self.unused:
            if parameter.grad is not None and is_unused(parameter.grad):
                parameter.grad = None
        self.unused.clear()
        return self.sum.ended_ns


class Buckets:
    """The buckets of one stage, whose sums start in the same order on every replica.

    `starts` has the function that starts the sum of each bucket over the replicas; `mark` is the device's clock.
    """

    def __init__(self, buckets: list[Bucket], starts: Iterable[Start], mark: Callable[[], Any]) -> None:
        self._buckets, self._starts, self._mark = buckets, list(starts), mark
        self._next = len(buckets)  # all sums have been started: no gradient is expected
        self._taken: set[nn.Parameter] = set()

    def watch(self) -> Iterator[Any]:
        """Register a hook on each parameter that reports its gradients; yield the handles that remove the hooks."""
        for bucket in self._buckets:
            for parameter in bucket.parameters:
                yield parameter.register_post_accumulate_grad_hook(partial(self._arrived, bucket))

    def expect_last(self) -> None:
        """Expect the last gradient of each parameter from now on."""
        self._next = 0
        for bucket in self._buckets:
            bucket.missing, bucket.sum = len(bucket.parameters), None

    def _arrived(self, bucket: Bucket, parameter: nn.Parameter) -> None:
        if parameter in self._taken and bucket.sum is not None:
            raise ValueError(
                f"the gradient of a weight {list(parameter.shape)} arrived again after its sum over the replicas had "
                "started, as with a reentrant checkpoint in which a module is used several times: use sync=flat"
            )
        if self._next == len(self._buckets) or parameter in self._taken:
            return
        self._take(bucket, parameter)
        while self._next < len(self._buckets) and not self._buckets[self._next].missing:
            self._start_next()

    def _take(self, bucket: Bucket, parameter: nn.Parameter) -> None:
        bucket.take(parameter)
        bucket.missing -= 1
        self._taken.add(parameter)

    def start_all(self) -> None:
        """Take the gradients that are left and start the sums that are left; all gradients must be complete."""
        while self._next < len(self._buckets):
            bucket = self._buckets[self._next]
            for parameter in bucket.parameters if bucket.missing else ():
                if parameter not in self._taken:
                    self._take(bucket, parameter)
            self._start_next()
        self._taken.clear()

    def _start_next(self) -> None:
        bucket, start = self._buckets[self._next], self._starts[self._next]
        self._next += 1
        bucket.started = self._mark()
        bucket.sum = start(bucket.contents())

    def finish(self) -> list[tuple[Any, Any]]:
        """Wait for all sums; return the marks at the start and the end of each."""
        ends = [bucket.finish() or self._mark() for bucket in self._buckets]
        return [(bucket.started, end) for bucket, end in zip(self._buckets, ends, strict=True)]


def fill(parameters: list[nn.Parameter], first: float, others: float) -> Iterator[list[nn.Parameter]]:
    """Yield buckets in reverse order of the parameters, which is the order of their gradients.

    The first bucket is full when it has `first` bytes or more, and each other one when it has `others`. Each has one
    type.
    """
    bucket: list[nn.Parameter] = []
    size, full = 0, first
    for parameter in reversed(parameters):
        if bucket and (size >= full or parameter.dtype is not bucket[0].dtype):
            yield bucket
            bucket, size, full = [], 0, others
        bucket.append(parameter)
        size += parameter.nbytes
    if bucket:
        yield bucket


def to_sum(weight: nn.Parameter, out: Tensor | None = None) -> Tensor:
    """Return a weight's gradient as one dimension, to be summed: in `out`, of the weight's shape, or where it is."""
    if weight.grad is None:
        flat = torch.empty_like(weight, memory_format=torch.contiguous_format) if out is None else out
        return flat.fill_(-0.0).view(-1)
    flat = (weight.grad.contiguous() if out is None else out.copy_(weight.grad)).view(-1)
    flat[:1].add_(0.0)
    return flat


def is_unused(total: Tensor) -> bool:
    """Return whether no rank had a gradient that is in the sum; waits for a GPU."""
    first = total.reshape(-1)[:1].real
    return bool(((first == 0) & first.signbit()).all())
