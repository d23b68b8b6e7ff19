"""Data parallelism: after a step every replica holds the sum of all replicas' gradients.

::

    naive   backward ──────────────►│w₀│w₁│w₂│w₃│w₄│      a sum for each parameter
    flat    backward ──────────────►│w₀ w₁ w₂ w₃ w₄│      one for all of a stage
    ddp     backward ── w₄ w₃ ───────── w₂ w₁ ── w₀        a sum as soon as a bucket is full,
                            └►│w₄ w₃│       └►│w₂ w₁│w₀│   while the backward goes on

Three names for one mechanism (`buckets`): a stage's parameters are cut into buckets, and a
bucket is summed when it is full, or when the stage's last gradient is there.

A replica's loss counts by its share of the whole batch's rows, so that the *sum* over the
replicas is the batch's gradient, for any number of rows. (With equal shares that is the
average of the replicas' own means, which is how it is mostly taught.)
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import torch
from torch import nn

from microp.buckets import Start, each_alone, fill
from microp.comms import Comms, Ring, ShmComms, direct_sums
from microp.device import Device
from microp.schedule import Schedule
from microp.syncs import BucketSync, InTurn, Sync, TorchDdp

MIB = 2**20
ALL_REDUCE = ("auto", "direct", "library", "ring")


@dataclass
class SyncSettings:
    """What a user chooses.

    Attributes:
        name: `naive`, `flat`, `ddp`, `torch_ddp`, or `compare`: the last two in turn.
        all_reduce: what sums over the replicas: the transport's `library` (gloo, NCCL) in a thread
            or stream of its own; `direct`, two messages from each rank to each; a `ring`, both
            written out on sends and receives; `auto`: `direct` between ranks that share
            memory, else the library.
    """

    name: str
    all_reduce: str

    def problems(self, schedule: Schedule | None, backend: str) -> list[str]:
        """What is wrong where there are several replicas, a sentence each."""
        found = []
        if self.all_reduce not in ALL_REDUCE:
            found.append(f"sync.all_reduce={self.all_reduce} is not one of {', '.join(ALL_REDUCE)}")
        return found

    def cut(self, parameters: list[nn.Parameter]) -> Iterator[list[nn.Parameter]]:
        """A stage's parameters in buckets."""
        return each_alone(parameters) if self.name == "naive" else fill(parameters)

    def open(self, stages: Mapping[int, nn.Module], split: Collection[int], comms: Comms, device: Device) -> Sync:
        """What keeps the replicas of these stages equal.

        Args:
            stages: this rank's, by index.
            split: those whose backward is divided into B and W.
            comms: this rank's, of a pipeline that has replicas.
            device: this rank's.
        """
        return self._buckets(self.name, stages, (), comms, device)

    def _buckets(
        self, name: str, stages: Mapping[int, nn.Module], early: Collection[int], comms: Comms, device: Device
    ) -> Sync:
        assert comms.across is not None
        return BucketSync(stages, name, self.cut, early, partial(self._sums, comms.across), comms.rank, device)

    def _sums(self, comms: Comms, sizes: Sequence[tuple[int, torch.dtype]]) -> Sequence[Start]:
        """What starts a sum over the ranks of `comms`, for each of a step's."""
        if self.all_reduce == "direct" or (self.all_reduce == "auto" and isinstance(comms, ShmComms)):
            return direct_sums(comms, sizes)
        if self.all_reduce == "ring":
            return [Ring(comms, max(numel * dtype.itemsize for numel, dtype in sizes)).start] * len(sizes)
        comms.expect(())
        return [comms.iall_reduce] * len(sizes)


@dataclass
class BucketSettings(SyncSettings):
    """What a user chooses about buckets that are summed as they fill.

    Attributes:
        bucket_mb: a bucket is full when it has so many MiB,
        first_bucket_mb: and the first one of a stage when it has these. (torch_ddp's is 1.)
    """

    bucket_mb: float
    first_bucket_mb: float

    def problems(self, schedule: Schedule | None, backend: str) -> list[str]:
        found = super().problems(schedule, backend)
        for key in ("bucket_mb", "first_bucket_mb"):
            if not getattr(self, key) > 0:
                found.append(f"sync.{key}={getattr(self, key)} is not above 0: give MiB, or use sync=naive")
        if self.name in ("torch_ddp", "compare"):
            if schedule is not None and schedule.split:
                found.append(
                    f"sync={self.name} cannot serve schedule {schedule.name!r}, which divides the backward "
                    "into B and W: use sync=ddp, or a schedule that does not, as 1f1b"
                )
            if backend == "threads":
                found.append(f"sync={self.name} needs ranks that are processes: use comms=auto")
        if self.name == "torch_ddp" and self.all_reduce not in ("auto", "library"):
            found.append(f"sync=torch_ddp sums with the library alone: leave sync.all_reduce={self.all_reduce} out")
        return found

    def cut(self, parameters: list[nn.Parameter]) -> Iterator[list[nn.Parameter]]:
        return fill(parameters, self.first_bucket_mb * MIB, self.bucket_mb * MIB)

    def open(self, stages: Mapping[int, nn.Module], split: Collection[int], comms: Comms, device: Device) -> Sync:
        # Where a W leaves autograd out, no hook is called: the stage's buckets set out at its end.
        early = [stage for stage in stages if stage not in split]
        assert comms.across is not None
        if self.name == "ddp":
            return self._buckets("ddp", stages, early, comms, device)
        torch_ddp = TorchDdp(stages, comms.across, self.bucket_mb)
        if self.name == "torch_ddp":
            return torch_ddp
        return InTurn([self._buckets("ddp", stages, early, comms, device), torch_ddp])
