"""The settings of a rank's device. `microp.device` opens it."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass, field
from typing import Annotated, Any

from microp.settings.rules import OneOf, Positive, Range, broken_rules, quoted

LONGEST_MS = 3_600_000  # an hour
OPTIONAL = ("weight_ms", "full_ms", "pair_ms", "recompute_ms", "reduce_ms")  # of these times
TIMES = (
    *("forward_ms", "backward_ms", "weight_ms", "full_ms", "pair_ms", "recompute_ms", "latency_ms", "reduce_ms"),
    *("overhead_ms", "optimizer_ms"),
)


@dataclass
class DeviceSettings:
    """The keys of every device."""

    # `cpu`, `cuda` (also torch's name for ROCm), `emulated` or `estimate`
    name: Annotated[str, OneOf("cpu", "cuda", "emulated", "estimate")]
    # the number of CPU threads per rank; with one thread, ranks compete less for cores and sums are taken in the same
    # order as in the undivided model
    threads: Annotated[int, Range(1, 1024)]
    _: KW_ONLY
    # the memory of each rank, in GiB: a run that needs more is refused; null: no limit, or the GPU's own
    memory_gib: Annotated[float | None, Positive(1_000_000, "use for example 2, or null for no limit")] = None
    # a list with the speed of each rank relative to the others, for a balanced partition and for the times of an
    # emulated device; null: all the same
    speed: Annotated[list[float] | None, Positive(1_000_000, "use for example [1,1,0.5,1]")] = None

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
    """The keys of a GPU."""

    _: KW_ONLY
    # whether several ranks of a host may use one GPU: messages then go through the host's memory, and the ranks take
    # turns, so that their times are not those of the schedule
    share: bool = False

    @property
    def is_shared(self) -> bool:
        return self.share


@dataclass
class EstimateSettings(DeviceSettings):
    """A device that is not here, for plans and prices: the times of layers are estimated, and nothing can run on it.

    A forward takes as long as its operations, or as the bytes of its weights, its input and its output, whichever is
    longer (the roofline of Williams, Waterman and Patterson, 2009); I and W take it times their operations over its.
    """

    # the operations of a rank in 1e12 per second: what its kernels reach, not what its datasheet promises
    tflops: Annotated[float, Positive(1_000_000, "use for example 50")]
    # the bandwidth of its memory in 1e9 bytes per second
    gb_per_s: Annotated[float, Positive(1_000_000, "use for example 1000")]
    _: KW_ONLY
    # the bandwidth of a hop between two ranks in 1e9 bytes per second; null: infinite
    link_gb_per_s: Annotated[float | None, Positive(1_000_000, "use for example 25")] = None
    # the part of a hop that does not depend on the tensor's size
    latency_ms: Annotated[float, Range(0, LONGEST_MS)] = 0.0


@dataclass
class EmulatedSettings(DeviceSettings):
    """Nominal times in milliseconds: one number for all stages, or a list with one number per stage."""

    forward_ms: Any  # the time of F of one microbatch
    # the time of B of one microbatch. Without `weight_ms` it is the full backward, and a schedule that divides it
    # uses half of it for I and half for W.
    backward_ms: Any
    weight_ms: Any  # the time of W of one microbatch; a full backward then takes `backward_ms + weight_ms`
    recompute_ms: Any  # the time that a recomputation adds to a B; by default `forward_ms`
    latency_ms: float  # the time between the sending of a tensor and its arrival
    # the time of the sum of a stage's gradients over the replicas, after its last gradient, or over the copies of the
    # model, after the last action (`per` applies only with `layer`: gradients have no rows); null: the real time
    reduce_ms: Any
    # the factors of the times: `layer` (the stage's number of layers), `row` (the microbatch's number of rows), both
    # or neither
    per: list[str]
    _: KW_ONLY
    full_ms: Any = None  # the time of an undivided B; null: `backward_ms` + `weight_ms`
    pair_ms: Any = None  # the time of a pair of `schedule.pairs`; null: a pair runs its F, then its B
    # the least time between an action and the rank's next one; the engine's real time is not shortened
    overhead_ms: float = 0.0
    # the least time of the optimizer's step on a stage's weights (`per` applies only with `layer`)
    optimizer_ms: Any = 0.0
    # for each microbatch the factor of its times, as rows of other lengths have one; []: 1
    per_microbatch: list[Any] = field(default_factory=list)
    # for each slice its part of its microbatch's times, in any unit, as later slices attend to more; []: all alike
    per_slice: list[Any] = field(default_factory=list)

    @property
    def is_emulated(self) -> bool:
        return True

    def problems(self) -> list[str]:
        problems = super().problems()
        for key in TIMES:
            value = getattr(self, key)
            times = value if isinstance(value, list) else [value]
            if not all(map(_is_time, times)) and not (value is None and key in OPTIONAL):
                problems.append(
                    f"device.{key}={quoted(value)} is not a time: give milliseconds from 0 to {LONGEST_MS}, "
                    "or a list of them"
                )
        of_actions = (self.forward_ms, self.backward_ms, self.weight_ms)
        if not problems and not any(any(time) if isinstance(time, list) else time for time in of_actions):
            problems.append(
                f"device.forward_ms={quoted(self.forward_ms)} and device.backward_ms={quoted(self.backward_ms)}: no "
                "action takes any time: give one of them a value above 0"
            )
        for key, values in (("per_microbatch", self.per_microbatch), ("per_slice", self.per_slice)):
            if not all(_is_time(value) and value > 0 for value in values):
                problems.append(f"device.{key}={quoted(values)} is not a list of factors: give numbers above 0")
        if sorted(self.per) not in ([], ["layer"], ["row"], ["layer", "row"]):
            problems.append(f"device.per={quoted(self.per)}: use layer, row, both or neither, e.g. [layer,row]")
        return problems


def _is_time(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value <= LONGEST_MS
