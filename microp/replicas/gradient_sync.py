"""Makes all replicas end a step with the same gradients; each class is one way to do it.

::

    clear ─► F ... B ─► last(stage, B) ─► F ... B ─► finish ─► optimizer
                        └ the sums of that stage start
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from itertools import islice
from math import inf
from time import perf_counter_ns
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from microp.comms import Comms, GroupComms, Ring, ShmComms, direct_sums
from microp.device import Device, Run
from microp.replicas.buckets import Bucket, Buckets, Start, fill
from microp.settings import BucketSettings, SyncSettings
from microp.system import MIB
from microp.trace import Reduction


class GradientSync:
    """Makes the gradients of one rank equal on all replicas. This base class serves one replica and sums nothing."""

    nbytes = 0  # the number of bytes that a step sums over the replicas
    loss_scale = 1  # the factor by which losses are multiplied, to undo a division by the number of replicas

    def __init__(self, stages: Mapping[int, nn.Module], name: str = "alone") -> None:
        self.name = name
        self.tensors: list[Tensor] = []  # those that it allocates itself
        self.parameters = {index: [p for p in stage.parameters() if p.requires_grad] for index, stage in stages.items()}

    def clear(self, step: int) -> None:
        """Discard the gradients before a step, whose index is `step`."""
        for parameters in self.parameters.values():
            for parameter in parameters:
                parameter.grad = None

    def wrap_last(self, stage: int, run: Run) -> Run:
        """Return what the engine calls in place of `run`, the last action that adds to the gradients of `stage`."""
        return run

    def finish(self) -> None:
        """Wait until every gradient is that of the whole batch."""

    def reductions(self) -> list[Reduction]:
        """Return the sums that the step has made; called after its end."""
        return []

    def pause(self) -> None:
        """Remove all hooks until the next `clear`, so that another object can sum the gradients."""


class BucketSync(GradientSync):
    """Sums over the replicas bucket by bucket.

    Args:
        settings: how a stage's parameters are cut into buckets, and how a bucket is summed.
        early: the stages whose buckets are summed when they are full, and not when the stage is done.
        comms: this rank's transport, with that between the replicas.
    """

    def __init__(
        self,
        settings: SyncSettings,
        stages: Mapping[int, nn.Module],
        early: Collection[int],
        comms: Comms,
        device: Device,
    ) -> None:
        super().__init__(stages, "ddp" if settings.name == "compare" else settings.name)
        assert comms.replica_group is not None
        self._rank, self._device, self._early = comms.rank, device, early
        first, others = (0.0, 0.0) if settings.name == "naive" else (inf, inf)
        if isinstance(settings, BucketSettings):
            first, others = settings.first_bucket_mb * MIB, settings.bucket_mb * MIB
        cuts = {index: list(map(Bucket, fill(held, first, others))) for index, held in self.parameters.items()}
        every = [bucket for buckets in cuts.values() for bucket in buckets]
        self.nbytes = sum(bucket.nbytes for bucket in every)
        self.tensors = [bucket.buffer for bucket in every if bucket.buffer is not None]
        starts = iter(_open_sums(settings.all_reduce, comms.replica_group, [bucket.size for bucket in every]))
        self._buckets = {
            index: Buckets(buckets, islice(starts, len(buckets)), device.mark) for index, buckets in cuts.items()
        }
        self._done: list[tuple[int, int]] = []  # (stage, the time at which its last gradient was complete)
        self._sums: list[tuple[int, Any, Any]] = []  # (stage, the marks at the start and the end of a sum)
        self._hooks: list[Any] = []

    def clear(self, step: int) -> None:
        super().clear(step)
        if not self._hooks:
            self._hooks = [hook for stage in self._early for hook in self._buckets[stage].watch()]

    def pause(self) -> None:
        for hook in self._hooks:
            hook.remove()
        self._hooks.clear()

    def wrap_last(self, stage: int, run: Run) -> Run:
        buckets = self._buckets[stage]

        def watched(microbatch: int, x: Tensor | None) -> Tensor | None:
            buckets.expect_last()
            y = run(microbatch, x)
            buckets.start_all()
            self._done.append((stage, perf_counter_ns()))
            return y

        return watched

    def finish(self) -> None:
        self._sums, free = [], 0
        for stage, done in self._done:
            marks = self._buckets[stage].finish()
            nominal_end = self._device.reduction_end(stage, max(done, free))
            if nominal_end is not None:  # the device has nominal times: one reduction per stage
                marks, free = [(max(done, free), nominal_end)], nominal_end
            self._sums += [(stage, start, end) for start, end in marks]
        self._done.clear()

    def reductions(self) -> list[Reduction]:
        read, rank = self._device.read, self._rank
        return [Reduction(rank, stage, *read([start, end])) for stage, start, end in self._sums]


class TorchDdp(GradientSync):
    """PyTorch's DistributedDataParallel, for comparison: its reducer averages the gradients in the last backward.

    It also waits for the sums there, so that their time is part of that action. `comms` is between the replicas.
    """

    def __init__(self, stages: Mapping[int, nn.Module], comms: Comms, bucket_mb: float) -> None:
        super().__init__(stages, "torch_ddp")
        assert isinstance(comms, GroupComms)  # `BucketSettings.problems` refuses ranks that are threads
        self.loss_scale = comms.world_size
        self.nbytes = sum(parameter.nbytes for parameters in self.parameters.values() for parameter in parameters)
        self._reducers = {
            index: DistributedDataParallel(
                stage,
                process_group=comms.group,
                bucket_cap_mb=bucket_mb,
                gradient_as_bucket_view=True,  # the faster of the two settings
                broadcast_buffers=False,
            ).reducer
            for index, stage in stages.items()
            if self.parameters[index]
        }

    def wrap_last(self, stage: int, run: Run) -> Run:
        reducer = self._reducers.get(stage)
        if reducer is None:  # the stage has nothing to sum
            return run

        def reduced(microbatch: int, x: Tensor | None) -> Tensor | None:
            # DistributedDataParallel makes these calls in its forward; they must come before the last backward.
            reducer.prepare_for_forward()
            reducer._rebuild_buckets()
            reducer.prepare_for_backward([])
            gradient = run(microbatch, x)
            try:
                reducer._check_reducer_finalized()
            except RuntimeError as error:
                raise ValueError(
                    "a weight has no gradient, and sync=torch_ddp waits for that of each one: use sync=ddp"
                ) from error
            return gradient

        return reduced


class InTurn(GradientSync):
    """Alternates between several ways to sum, one per step, so that one launch compares them."""

    def __init__(self, syncs: Sequence[GradientSync]) -> None:
        super().__init__({})
        self._syncs, self._now = syncs, syncs[0]
        self.tensors = [tensor for sync in syncs for tensor in sync.tensors]

    def clear(self, step: int) -> None:
        count = len(self._syncs)
        self._now = self._syncs[(step // count + step) % count]  # each comes first equally often
        for sync in self._syncs:
            sync.pause()
        self._now.clear(step)
        self.name, self.nbytes, self.loss_scale = self._now.name, self._now.nbytes, self._now.loss_scale

    def wrap_last(self, stage: int, run: Run) -> Run:
        runs = {sync: sync.wrap_last(stage, run) for sync in self._syncs}
        return lambda microbatch, x: runs[self._now](microbatch, x)

    def finish(self) -> None:
        self._now.finish()

    def reductions(self) -> list[Reduction]:
        return self._now.reductions()


def open_sync(
    settings: SyncSettings, stages: Mapping[int, nn.Module], split: Collection[int], comms: Comms, device: Device
) -> GradientSync:
    """Return the gradient synchronization of one rank; in `split` are stages whose B is divided into I and W."""
    if comms.replica_group is None:
        return GradientSync(stages)
    if not isinstance(settings, BucketSettings):
        return BucketSync(settings, stages, (), comms, device)
    if settings.name == "torch_ddp":
        return TorchDdp(stages, comms.replica_group, settings.bucket_mb)
    # A W that bypasses autograd calls no hook, so the sums of such a stage start when the stage is done.
    buckets = BucketSync(settings, stages, [stage for stage in stages if stage not in split], comms, device)
    if settings.name == "ddp":
        return buckets
    return InTurn([buckets, TorchDdp(stages, comms.replica_group, settings.bucket_mb)])


def _open_sums(all_reduce: str, comms: Comms, sizes: Sequence[tuple[int, torch.dtype]]) -> Sequence[Start]:
    """Return, for each of a step's sums over the ranks of `comms`, the function that starts it."""
    if all_reduce == "direct" or (all_reduce == "auto" and isinstance(comms, ShmComms) and comms.is_one_host):
        return direct_sums(comms, sizes)
    if all_reduce == "ring":
        return [Ring(comms, max((numel * dtype.itemsize for numel, dtype in sizes), default=0)).start] * len(sizes)
    comms.expect(())
    return [comms.iall_reduce] * len(sizes)
