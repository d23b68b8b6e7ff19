"""What a rank does so that all replicas end a step with the same gradients: clear, watch the last ones, wait.

::

    clear ─► F ... B ─► last(stage, B) ─► F ... B ─► finish ─► optimizer
                        └ the sums of that stage set out
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from time import perf_counter_ns
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from microp.buckets import Bucket, Buckets, Start
from microp.comms import Comms, GroupComms
from microp.device import Device, Run
from microp.reduction import Reduction

OpenSums = Callable[[Sequence[tuple[int, torch.dtype]]], Iterable[Start]]


class Sync:
    """What makes the replicas equal, on one rank. This one has no other replica, and nothing to do.

    Args:
        stages: this rank's stages, by index.
        name: the option's.

    Attributes:
        nbytes: what a step sums over the replicas.
        loss_scale: what the losses are multiplied by, so that the gradients come out right.
    """

    nbytes = 0
    loss_scale = 1

    def __init__(self, stages: Mapping[int, nn.Module], name: str = "alone") -> None:
        self.name = name
        self.parameters = {index: list(stage.parameters()) for index, stage in stages.items()}

    def clear(self) -> None:
        """Forget the gradients, before a step."""
        for parameters in self.parameters.values():
            for parameter in parameters:
                parameter.grad = None

    def last(self, stage: int, run: Run) -> Run:
        """What the engine calls instead of `run`, the last action that adds to the gradients of `stage`."""
        del stage
        return run

    def finish(self) -> list[Reduction]:
        """Wait until every gradient is the batch's; what was done for that."""
        return []

    def rest(self) -> None:
        """Keep out of the steps of another, until the next `clear`."""

    def tensors(self) -> Iterator[Tensor]:
        """The memory it has of its own."""
        yield from ()


class BucketSync(Sync):
    """Sums over the replicas bucket by bucket.

    Args:
        stages: this rank's stages, by index.
        name: the option's.
        cut: a stage's parameters into buckets.
        early: the stages whose buckets are started when they are full, and not when the stage is done.
        open_sums: for the buckets' sizes, in the order of stages and buckets, what starts their sums.
        rank: this rank, for what is written down.
        device: this rank's.
    """

    def __init__(
        self,
        stages: Mapping[int, nn.Module],
        name: str,
        cut: Callable[[list[nn.Parameter]], Iterable[list[nn.Parameter]]],
        early: Collection[int],
        open_sums: OpenSums,
        rank: int,
        device: Device,
    ) -> None:
        super().__init__(stages, name)
        self._rank, self._device, self._early = rank, device, early
        buckets = {index: [Bucket(part) for part in cut(own)] for index, own in self.parameters.items()}
        starts = iter(open_sums([bucket.size for own in buckets.values() for bucket in own]))
        self._buckets = {index: Buckets(own, islice(starts, len(own)), device.mark) for index, own in buckets.items()}
        self._done: list[tuple[int, int]] = []  # (stage, when its last gradient was there)
        self._hooks: list[Any] = []
        self.nbytes = sum(buckets.nbytes for buckets in self._buckets.values())

    def clear(self) -> None:
        super().clear()
        if not self._hooks:
            self._hooks = [hook for stage in self._early for hook in self._buckets[stage].hook()]

    def rest(self) -> None:
        for hook in self._hooks:
            hook.remove()
        self._hooks.clear()

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
            times = self._buckets[stage].finish(self._device.read)
            over = self._device.reduced(stage, max(done, free))
            if over is not None:  # on this device a stage's takes as long as it should
                times, free = [(max(done, free), over)], over
            found += [Reduction(self._rank, stage, start, end) for start, end in times]
        self._done.clear()
        return found

    def tensors(self) -> Iterator[Tensor]:
        for buckets in self._buckets.values():
            yield from buckets.tensors()


class TorchDdp(Sync):
    """PyTorch's own, as the peer: its reducer averages a stage's gradients from within the last backward.

    It waits for the sums there, too, so that what they take is part of that action.
    """

    def __init__(self, stages: Mapping[int, nn.Module], comms: Comms, bucket_mb: float) -> None:
        super().__init__(stages, "torch_ddp")
        if not isinstance(comms, GroupComms):
            raise ValueError("sync=torch_ddp needs ranks that are processes: use comms=auto")
        self.loss_scale = comms.world_size
        self.nbytes = sum(parameter.nbytes for parameters in self.parameters.values() for parameter in parameters)
        self._reducers = {
            index: DistributedDataParallel(
                stage,
                process_group=comms.group,
                bucket_cap_mb=bucket_mb,
                gradient_as_bucket_view=True,  # the faster of its two ways
                broadcast_buffers=False,
            ).reducer
            for index, stage in stages.items()
        }

    def last(self, stage: int, run: Run) -> Run:
        reducer = self._reducers[stage]

        def reduced(microbatch: int, x: Tensor | None) -> Tensor | None:
            # What its forward and the end of that would do, had they known that this backward is the last.
            reducer.prepare_for_forward()
            reducer._rebuild_buckets()
            reducer.prepare_for_backward([])
            return run(microbatch, x)

        return reduced


class InTurn(Sync):
    """Several, each in a step of its own, so that they can be compared in one launch."""

    def __init__(self, syncs: Sequence[Sync]) -> None:
        super().__init__({})
        self._syncs, self._step, self._now = syncs, 0, syncs[0]

    def clear(self) -> None:
        count = len(self._syncs)
        self._now = self._syncs[(self._step // count + self._step) % count]  # nobody always comes first
        self._step += 1
        for sync in self._syncs:
            sync.rest()
        self._now.clear()
        self.name, self.nbytes, self.loss_scale = self._now.name, self._now.nbytes, self._now.loss_scale

    def last(self, stage: int, run: Run) -> Run:
        runs = {sync: sync.last(stage, run) for sync in self._syncs}
        return lambda microbatch, x: runs[self._now](microbatch, x)

    def finish(self) -> list[Reduction]:
        return self._now.finish()

    def tensors(self) -> Iterator[Tensor]:
        for sync in self._syncs:
            yield from sync.tensors()
