"""Data parallelism: after a step every replica holds the sum of all replicas' gradients.

::

    naive   backward ──────────────►│w₀│w₁│w₂│w₃│w₄│      a sum for each parameter
    flat    backward ──────────────►│w₀ w₁ w₂ w₃ w₄│      one for all of a stage
    ddp     backward ── w₄ w₃ ───────── w₂ w₁ ── w₀        a sum as soon as a bucket is full,
                            └►│w₄ w₃│       └►│w₂ w₁│w₀│   while the backward goes on

Three names for one mechanism: a stage's parameters are cut into buckets, and a bucket is
summed when it is full, or when the stage's last gradient is there. A gradient is a view into
its bucket, so that nothing is copied: autograd adds into it and the optimizer reads from it.

A replica's loss counts by its share of the whole batch's rows, so that the *sum* over the
replicas is the batch's gradient, for any number of rows. (With equal shares that is the
average of the replicas' own means, as it is mostly taught.)
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from math import inf
from time import perf_counter_ns

import torch
from torch import Tensor, nn

from microp.comms import Comms, Sum
from microp.device import Device, Run
from microp.reduction import Reduction

LINE = 64  # bytes at which a gradient begins in its bucket, as the allocator would have it
Start = Callable[[Tensor], Sum]


class Sync:
    """What makes the replicas equal, on one rank. This one has no other replica, and nothing to do.

    Attributes:
        nbytes: what a step sums over the replicas.
        loss_scale: what the losses are multiplied by, so that the gradients come out right.
    """

    nbytes = 0
    loss_scale = 1

    def __init__(self, stages: Mapping[int, nn.Module]) -> None:
        self._stages = stages

    def clear(self) -> None:
        """Forget the gradients, before a step."""
        for stage in self._stages.values():
            for parameter in stage.parameters():
                parameter.grad = None

    def last(self, stage: int, run: Run) -> Run:
        """What the engine calls instead of `run`, the last action that adds to the gradients of `stage`."""
        del stage
        return run

    def finish(self) -> list[Reduction]:
        """Wait until every gradient is the batch's; what was done for that."""
        return []

    def tensors(self) -> Iterator[Tensor]:
        """The memory it has of its own."""
        yield from ()


class Bucket:
    """Gradients that are summed together: views into one buffer.

    Args:
        parameters: of one type and device, in the order in which their gradients come.

    Attributes:
        missing: of how many parameters the gradient is still to come.
        sum: the reduction, once it has been started.
        started: when that was, as a mark of the device.
    """

    def __init__(self, parameters: Iterable[nn.Parameter]) -> None:
        self.parameters = list(parameters)
        example = self.parameters[0]
        line = LINE // example.element_size()
        sizes = [-(-parameter.numel() // line) * line for parameter in self.parameters]
        self.buffer = torch.zeros(sum(sizes), dtype=example.dtype, device=example.device)
        for parameter, part in zip(self.parameters, self.buffer.split(sizes), strict=True):
            parameter.grad = part[: parameter.numel()].view_as(parameter)
        self.missing = 0
        self.sum: Sum | None = None
        self.started: object = None


class Buckets:
    """The buckets of one stage, which are started in one order on every replica.

    Args:
        buckets: in the order in which they are to be started.
        start: starts a sum over the replicas.
        mark: the device's clock.
    """

    def __init__(self, buckets: list[Bucket], start: Start, mark: Callable[[], object]) -> None:
        self.buckets = buckets
        self._start, self._mark = start, mark
        self._next = len(buckets)  # all started: nothing is expected

    def arm(self) -> None:
        """The gradients that come from now on are the last ones."""
        self._next = 0
        for bucket in self.buckets:
            bucket.missing = len(bucket.parameters)

    def add(self, bucket: Bucket) -> None:
        """One of the gradients of `bucket` is there."""
        if self._next == len(self.buckets):
            return
        bucket.missing -= 1
        while self._next < len(self.buckets) and self.buckets[self._next].missing <= 0:
            self._start_next()

    def start_all(self) -> None:
        """All gradients are there."""
        while self._next < len(self.buckets):
            self._start_next()

    def _start_next(self) -> None:
        bucket = self.buckets[self._next]
        self._next += 1
        bucket.started = self._mark()
        bucket.sum = self._start(bucket.buffer)


class BucketSync(Sync):
    """Sums over the replicas bucket by bucket.

    Args:
        stages: this rank's stages, by index.
        cut: a stage's parameters into buckets.
        early: whether a bucket is started when it is full, and not when the stage is done.
        start: starts a sum over the replicas.
        rank: this rank, for what is written down.
        device: this rank's.
    """

    def __init__(
        self,
        stages: Mapping[int, nn.Module],
        cut: Callable[[list[nn.Parameter]], Iterable[list[nn.Parameter]]],
        early: bool,
        start: Start,
        rank: int,
        device: Device,
    ) -> None:
        super().__init__(stages)
        self._rank, self._device = rank, device
        self._buckets = {
            index: Buckets([Bucket(part) for part in cut(list(stage.parameters()))], start, device.mark)
            for index, stage in stages.items()
        }
        self._done: list[tuple[int, int]] = []  # (stage, when its last gradient was there)
        if early:
            for buckets in self._buckets.values():
                for bucket in buckets.buckets:
                    for parameter in bucket.parameters:
                        parameter.register_post_accumulate_grad_hook(partial(_arrived, buckets, bucket))
        self._buffers = [bucket.buffer for buckets in self._buckets.values() for bucket in buckets.buckets]
        self.nbytes = sum(buffer.nbytes for buffer in self._buffers)

    def clear(self) -> None:
        torch._foreach_zero_(self._buffers)

    def last(self, stage: int, run: Run) -> Run:
        buckets = self._buckets[stage]

        def watched(microbatch: int, x: Tensor | None) -> Tensor | None:
            buckets.arm()
            y = run(microbatch, x)
            buckets.start_all()
            self._done.append((stage, perf_counter_ns()))
            return y

        return watched

    def finish(self) -> list[Reduction]:
        found: list[Reduction] = []
        free = 0
        for stage, done in self._done:
            buckets = self._buckets[stage].buckets
            for bucket in buckets:
                assert bucket.sum is not None
                bucket.sum.wait()
            free = self._device.reduced(stage, max(free, done))
            starts = self._device.read([bucket.started for bucket in buckets])
            found += [
                Reduction(self._rank, stage, start, bucket.sum.ended_ns)
                for start, bucket in zip(starts, buckets, strict=True)
            ]
        self._done.clear()
        return found

    def tensors(self) -> Iterator[Tensor]:
        yield from self._buffers


def _arrived(buckets: Buckets, bucket: Bucket, _: Tensor) -> None:
    buckets.add(bucket)


def each_alone(parameters: list[nn.Parameter]) -> Iterator[list[nn.Parameter]]:
    """A bucket for each parameter."""
    return ([parameter] for parameter in parameters)


def fill(parameters: list[nn.Parameter], first_bytes: float = inf, bytes_: float = inf) -> Iterator[list[nn.Parameter]]:
    """Buckets in reverse order of the parameters, which is that of their gradients.

    Args:
        parameters: a stage's.
        first_bytes: a bucket is full when it has so many or more: the first one,
        bytes_: and the others.
    """
    bucket: list[nn.Parameter] = []
    size, full = 0, first_bytes
    for parameter in reversed(parameters):
        bucket.append(parameter)
        size += parameter.nbytes
        if size >= full:
            yield bucket
            bucket, size, full = [], 0, bytes_
    if bucket:
        yield bucket
