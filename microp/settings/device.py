"""The settings of a rank's device. `microp.device` opens it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, Any

from microp.settings.rules import OneOf, Positive, Range, broken_rules, quoted

PER = ("layer", "row")
LONGEST_MS = 3_600_000  # an hour
OPTIONAL = ("weight_ms", "full_ms", "recompute_ms", "reduce_ms")  # of these times
TIMES = (
    *("forward_ms", "backward_ms", "weight_ms", "full_ms", "recompute_ms", "latency_ms", "reduce_ms"),
    *("overhead_ms", "optimizer_ms"),
)


@dataclass
class DeviceSettings:
    """The keys of every device.

    Attributes:
        name: `cpu`, `cuda` (also torch's name for ROCm), `emulated` or `estimate`.
        threads: the number of CPU threads per rank; with one thread, ranks compete less for cores
            and sums are taken in the same order as in the undivided model.
        memory_gib: the memory of each rank, in GiB: a run that needs more is refused; null: no limit, or the GPU's own.
        speed: a list with the speed of each rank relative to the others, for a balanced partition and for the times
            of an emulated device; null: all the same.
    """

    name: Annotated[str, OneOf("cpu", "cuda", "emulated", "estimate")]
    threads: Annotated[int, Range(1, 1024)]
    memory_gib: Annotated[float | None, Positive(1_000_000, "use for example 2, or null for no limit")] = field(
        default=None, kw_only=True
    )
    speed: Annotated[list[float] | None, Positive(1_000_000, "use for example [1,1,0.5,1]")] = field(
        default=None, kw_only=True
    )

    @property
    def is_emulated(self) -> bool:
        """True if actions last their nominal times."""
        return False

    @property
    def is_shared(self) -> bool:
        """True if several ranks may share a GPU, so that their messages go through the host's memory."""
        return False

    def speed_of(self, rank: int) -> float:
        """Return the speed of a rank."""
        return self.speed[rank] if self.speed else 1

    def speed_problems(self, ranks: int) -> list[str]:
        """List what is wrong with the speeds for this number of ranks, one sentence each."""
        if self.speed is None or len(self.speed) == ranks:
            return []
        count = f"{len(self.speed)} {'value' if len(self.speed) == 1 else 'values'}"
        return [f"device.speed has {count} for ranks={ranks}: give one per rank, or null if all have the same"]

    def problems(self) -> list[str]:
        """List what is wrong with these values, one sentence each."""
        return broken_rules(self, "device.")


@dataclass
class CudaSettings(DeviceSettings):
    """The keys of a GPU.

    Attributes:
        share: whether several ranks of a host may use one GPU: messages then go through the host's memory, and the
            ranks take turns, so that their times are not those of the schedule.
    """

    share: bool = field(default=False, kw_only=True)

    @property
    def is_shared(self) -> bool:
        return self.share


@dataclass
class EstimateSettings(DeviceSettings):
    """A device that is not here, for plans and prices: the times of layers are estimated, and nothing can run on it.

    A forward takes as long as its operations, or as the bytes of its weights, its input and its output, whichever is
    longer (the roofline of Williams, Waterman and Patterson, 2009); each of B and W takes as long as F.

    Attributes:
        tflops: the operations of a rank in 1e12 per second: what its kernels reach, not what its datasheet promises.
        gb_per_s: the bandwidth of its memory in 1e9 bytes per second.
        link_gb_per_s: the bandwidth of a hop between two ranks in 1e9 bytes per second; null: infinite.
        latency_ms: the part of a hop that does not depend on the tensor's size.
    """

    tflops: Annotated[float, Positive(1_000_000, "use for example 50")]
    gb_per_s: Annotated[float, Positive(1_000_000, "use for example 1000")]
    link_gb_per_s: Annotated[float | None, Positive(1_000_000, "use for example 25")] = field(
        default=None, kw_only=True
    )
    latency_ms: Annotated[float, Range(0, LONGEST_MS)] = field(default=0.0, kw_only=True)


@dataclass
class EmulatedSettings(DeviceSettings):
    """Nominal times in milliseconds: one number for all stages, or a list with one number per stage.

    Attributes:
        forward_ms: the time of F of one microbatch.
        backward_ms: the time of B of one microbatch. Without `weight_ms` it is the full backward,
            and a schedule that divides it uses half of it for B and half for W.
        weight_ms: the time of W of one microbatch; a full backward then takes `backward_ms + weight_ms`.
        recompute_ms: the time that a recomputation adds to a B; by default `forward_ms`.
        latency_ms: the time between the sending of a tensor and its arrival.
        reduce_ms: the time of the sum of a stage's gradients over the replicas, after its last
            gradient (`per` applies only with `layer`: gradients have no rows); null: the real time.
        per: the factors of the times: `layer` (the stage's number of layers), `row` (the
            microbatch's number of rows), both or neither.
        full_ms: the time of an undivided B; null: `backward_ms` + `weight_ms`.
        overhead_ms: the least time between an action and the rank's next one; the engine's real time is not shortened.
        optimizer_ms: the least time of the optimizer's step on a stage's weights (`per` applies only with `layer`).
    """

    forward_ms: Any
    backward_ms: Any
    weight_ms: Any
    recompute_ms: Any
    latency_ms: float
    reduce_ms: Any
    per: list[str]
    full_ms: Any = field(default=None, kw_only=True)
    overhead_ms: float = field(default=0.0, kw_only=True)
    optimizer_ms: Any = field(default=0.0, kw_only=True)

    @property
    def is_emulated(self) -> bool:
        return True

    def problems(self) -> list[str]:
        found = super().problems()
        for key in TIMES:
            value = getattr(self, key)
            values = value if isinstance(value, list) else [value]
            needed = key not in OPTIONAL or isinstance(value, list)
            if any((each is None and needed) or (each is not None and not _is_time(each)) for each in values):
                found.append(
                    f"device.{key}={quoted(value)} is not a time: give milliseconds from 0 to {LONGEST_MS}, "
                    "or a list of them"
                )
        if not found and not any(map(_takes_time, (self.forward_ms, self.backward_ms, self.weight_ms))):
            found.append(
                f"device.forward_ms={quoted(self.forward_ms)} and device.backward_ms={quoted(self.backward_ms)}: no "
                "action takes any time: give one of them a value above 0"
            )
        wrong = [word for word in self.per if word not in PER] or [word for word in PER if self.per.count(word) > 1]
        if wrong:
            twice = " twice" if wrong[0] in PER else ""
            found.append(
                f"device.per={quoted(self.per)} has {quoted(repr(wrong[0]))}{twice}: use layer, row, both or neither, "
                "e.g. [layer,row]"
            )
        return found


def _takes_time(value: Any) -> bool:
    """Return whether a nominal time, or one in a list of them, is above 0."""
    return any(value) if isinstance(value, list) else bool(value)


def _is_time(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value <= LONGEST_MS
