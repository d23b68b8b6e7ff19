"""The settings of the sum of gradients over replicas. `microp.replicas` computes it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from microp.settings.rules import OneOf, Positive, broken_rules

_MIB = Positive(1_000_000, "give MiB, or use sync=naive")


@dataclass
class SyncSettings:
    """The keys of every way to sum.

    Attributes:
        name: `naive`, `flat`, `ddp`, `torch_ddp`, or `compare`: alternates between `ddp` and `torch_ddp`.
        all_reduce: the algorithm of the sum: the transport's `library` (gloo, NCCL) in its own thread
            or stream; `direct`, two messages between each pair of ranks; `ring`, messages between
            neighbours; microp implements the last two with sends and receives. `auto`: `direct`
            between ranks that share memory, else `library`.
    """

    name: Annotated[str, OneOf("naive", "flat", "ddp", "torch_ddp", "compare")]
    all_reduce: Annotated[str, OneOf("auto", "direct", "library", "ring")]

    @property
    def has_buckets(self) -> bool:
        """True if a stage's gradients are copied into buckets to be summed; PyTorch's own are not counted."""
        return self.name in ("flat", "ddp", "compare")

    def problems(self, schedule: str, is_split: bool, backend: str) -> list[str]:
        """List what is wrong with these values, one sentence each.

        Args:
            schedule: the schedule's name.
            is_split: whether the schedule divides the backward into B and W.
            backend: the transport's name.
        """
        return broken_rules(self, "sync.")


@dataclass
class BucketSettings(SyncSettings):
    """The keys of the ways that sum a bucket as soon as it is full.

    Attributes:
        bucket_mb: the size at which a bucket is full, in MiB.
        first_bucket_mb: the same for the first bucket of a stage (1 for torch_ddp).
    """

    bucket_mb: Annotated[float, _MIB]
    first_bucket_mb: Annotated[float, _MIB]

    def problems(self, schedule: str, is_split: bool, backend: str) -> list[str]:
        found = super().problems(schedule, is_split, backend)
        if self.name in ("torch_ddp", "compare"):
            if is_split:
                found.append(
                    f"sync={self.name} does not support schedule {schedule!r}, which divides the backward "
                    "into B and W: use sync=ddp, or a schedule that does not divide it, e.g. 1f1b"
                )
            if backend == "threads":
                found.append(f"sync={self.name} needs ranks that are processes: use comms=auto")
        if self.name == "torch_ddp" and self.all_reduce not in ("auto", "library"):
            found.append(f"sync.all_reduce={self.all_reduce} does not work with sync=torch_ddp: use auto or library")
        return found
