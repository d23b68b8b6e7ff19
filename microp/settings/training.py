"""The settings of a training step: the engine, checkpointing, the optimizer, sums over replicas, and snapshots.

`microp.engine`, `microp.model`, `microp.worker` and `microp.replicas` do what they say.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Annotated

from microp.settings.rules import Line, Name, OneOf, Positive, Range, broken_rules, quoted

MOST = 1_000_000_000  # steps
_MIB = Positive(1_000_000, "give MiB, or use sync=naive")


@dataclass
class EngineSettings:
    """The engine and its options."""

    # `microp`, `torch` (torch.distributed.pipelining), or `compare`: alternates between both and their limit, one
    # rank's compute without waiting
    name: Annotated[str, OneOf("microp", "torch", "compare")]
    # whether consecutive W of one stage are run as one product over their rows: faster, but the last bits of the sums
    # can differ
    batch_weights: bool

    def problems(self) -> list[str]:
        """List what is wrong with these values, one sentence each."""
        return broken_rules(self, "engine.")


@dataclass
class Checkpointing:
    """Which microbatches are recomputed, and in how many segments of a stage."""

    name: Annotated[str, Name()]  # `never`, `except_last`, `always` or `segments`
    # the number of segments (groups of consecutive layers) into which a stage is cut. Each keeps only its input (Chen
    # et al., arXiv 1604.06174); 0 keeps every activation. If it exceeds the stage's layers, each layer is a segment.
    # Unlike `torch.utils.checkpoint.checkpoint_sequential`, the last segment is recomputed too: otherwise a pipeline
    # keeps its activations for every microbatch in flight.
    segments: Annotated[int, Range(0, 100_000)]
    # whether the last microbatch keeps everything (GPipe's except_last: its backward follows its forward directly, so
    # recomputation would save nothing)
    spare_last: bool

    def segments_of(self, microbatch: int, chunks: int) -> int:
        """Return the number of segments of `microbatch` that are recomputed."""
        return 0 if microbatch in self.spared(chunks) else self.segments

    def spared(self, chunks: int) -> tuple[int, ...]:
        """Return the microbatches that are not recomputed while others are."""
        return (chunks - 1,) if self.spare_last else ()

    def problems(self) -> list[str]:
        """List what is wrong with these values, one sentence each."""
        if self.name == "segments" and self.segments < 1:
            return [f"checkpointing.segments={self.segments} is below 1: use at least 1"]
        return broken_rules(self, "checkpointing.")


NEVER = Checkpointing("never", 0, False)


@dataclass
class OptimizerSettings:
    """The keys of every optimizer."""

    name: Annotated[str, OneOf("adam", "adamw", "sgd")]  # the option's name in `conf/optimizer/`
    # how much of a weight is taken away in a step; adam and sgd add it to the gradient
    weight_decay: Annotated[float, Range(0, 1_000)]
    # how the learning rate falls to 0 until the last training step: constant (it does not), linear, cosine
    decay: Annotated[str, OneOf("constant", "linear", "cosine")]
    warmup_steps: Annotated[int, Range(0, MOST)]  # the first training steps, in which the learning rate rises linearly

    @property
    def states(self) -> int:
        """The number of tensors of a weight's size that the optimizer keeps for each weight."""
        return 2

    @property
    def kind(self) -> str:
        """What the time of its step depends on, in words."""
        return self.name

    def share(self, step: int, steps: int) -> float:
        """Return the share of the learning rate in a training step, of `steps` steps in all."""
        if step < self.warmup_steps:
            return (step + 1) / (self.warmup_steps + 1)
        done = min(1.0, (step - self.warmup_steps) / max(1, steps - self.warmup_steps))
        return {"constant": 1.0, "linear": 1 - done, "cosine": (1 + math.cos(math.pi * done)) / 2}[self.decay]

    def problems(self, steps: int) -> list[str]:
        """List what is wrong with these values for this number of training steps, one sentence each."""
        problems = broken_rules(self, "optimizer.")
        if not problems and self.warmup_steps >= steps > 0:
            problems.append(
                f"optimizer.warmup_steps={self.warmup_steps} is not less than the {steps} training steps: "
                f"use at most {steps - 1}, or more steps"
            )
        return problems


@dataclass
class AdamSettings(OptimizerSettings):
    """Adam, and AdamW, whose weight decay does not pass through its moments."""

    betas: list[float]  # the decay of its two moments

    def problems(self, steps: int) -> list[str]:
        problems = super().problems(steps)
        if len(self.betas) != 2 or not all(isinstance(beta, int | float) and 0 <= beta < 1 for beta in self.betas):
            problems.append(f"optimizer.betas={self.betas} are not two numbers in [0, 1): use for example [0.9,0.999]")
        return problems


@dataclass
class SgdSettings(OptimizerSettings):
    """Stochastic gradient descent."""

    momentum: float  # the share of the last step's direction that is kept

    @property
    def states(self) -> int:
        return int(self.momentum != 0)

    @property
    def kind(self) -> str:
        return "sgd with momentum" if self.momentum else "sgd"

    def problems(self, steps: int) -> list[str]:
        problems = super().problems(steps)
        if not 0 <= self.momentum < 1:
            problems.append(f"optimizer.momentum={self.momentum} is not in [0, 1): use 0 for none")
        return problems


ADAM = AdamSettings("adam", 0.0, "constant", 0, [0.9, 0.999])


@dataclass
class SyncSettings:
    """The keys of every way to sum."""

    # `naive`, `flat`, `ddp`, `torch_ddp`, or `compare`: alternates between `ddp` and `torch_ddp`
    name: Annotated[str, OneOf("naive", "flat", "ddp", "torch_ddp", "compare")]
    # the algorithm of the sum: the transport's `library` (gloo, NCCL) in its own thread or stream; `direct`, two
    # messages between each pair of ranks; `ring`, messages between neighbours; microp implements the last two with
    # sends and receives. `auto`: `direct` between ranks that share memory, else `library`.
    all_reduce: Annotated[str, OneOf("auto", "direct", "library", "ring")]

    @property
    def has_buckets(self) -> bool:
        """True if a stage's gradients are copied into buckets to be summed; PyTorch's own are not counted."""
        return self.name in ("flat", "ddp", "compare")

    def problems(self, schedule: str, is_split: bool, backend: str) -> list[str]:
        """List what is wrong with these values for this schedule and transport, one sentence each."""
        return broken_rules(self, "sync.")


@dataclass
class BucketSettings(SyncSettings):
    """The keys of the ways that sum a bucket as soon as it is full."""

    bucket_mb: Annotated[float, _MIB]  # the size at which a bucket is full, in MiB
    first_bucket_mb: Annotated[float, _MIB]  # the same for the first bucket of a stage (1 for torch_ddp)

    def problems(self, schedule: str, is_split: bool, backend: str) -> list[str]:
        problems = super().problems(schedule, is_split, backend)
        if self.name != "ddp" and is_split:
            problems.append(
                f"sync={self.name} does not support schedule {schedule!r}, which divides the backward into I and W: "
                "use sync=ddp, or a schedule that does not divide it, e.g. 1f1b"
            )
        if self.name != "ddp" and backend == "threads":
            problems.append(f"sync={self.name} needs ranks that are processes: use comms=auto")
        if self.name == "torch_ddp" and self.all_reduce not in ("auto", "library"):
            problems.append(f"sync.all_reduce={self.all_reduce} does not work with sync=torch_ddp: use auto or library")
        return problems


@dataclass
class SnapshotSettings:
    """When the training is saved, and from which snapshot it goes on."""

    name: Annotated[str, OneOf("disk")]  # the option's name in `conf/snapshot/`
    # save a snapshot after every N-th step, warm-up steps included; null: never
    every: Annotated[int | None, Range(1, MOST, "null for no snapshots")]
    # the number of snapshots that are kept. Older ones are removed when a new one is whole.
    keep: Annotated[int, Range(1, MOST)]
    resume: bool  # go on from this run's newest snapshot, which an attempt that did not finish has left
    # go on from this snapshot, or from the newest one of this attempt or run: of the same training, also on other
    # ranks or with another partition or schedule
    path: Annotated[str | None, Line("give a folder, or null for none")]
    final: bool  # leave the trained weights as weights.pt, a state dict that PyTorch loads without microp

    def problems(self) -> list[str]:
        """List the values that are wrong or contradict each other, one sentence each."""
        problems = broken_rules(self, "snapshot.")
        if self.resume and self.path is not None and not problems:
            one = f"snapshot.path={quoted(self.path)}"
            problems.append(f"snapshot.resume=true and {one} name two snapshots: give only one of them")
        return problems


NO_SNAPSHOTS = SnapshotSettings("disk", None, 1, False, None, False)
