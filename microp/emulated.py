"""Devices that take as long as they are told to, so that 16 ranks can be studied on two cores.

::

    an action   |█ real work █|─────── sleep ──────┤spin├|      lasts exactly its nominal time
    its message               laid ready ─────────────── leaves ─── latency_ms ───► there

Every action does its real small work, sends real messages and gives real gradients; only
then does it wait for its deadline. Ranks that sleep leave the cores to the others. Its
message is stamped with the deadline, and nobody takes it earlier. How late the host wakes
up for either is not the device's time (`pacing.Pacer`); what an engine does between two
actions is. An action whose work took longer than its nominal time is counted: its timing is
the machine's.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from math import inf
from time import perf_counter_ns
from typing import Any

from torch import Tensor

from microp.comms import Comms, DelayedComms
from microp.costs import Costs, for_stages
from microp.device import Cpu, Device, DeviceSettings, Give, Run, Workload
from microp.pacing import Pacer, sleep_until, wake_on_time
from microp.schedule import Action, Op

PER = ("layer", "row")
QUIET = 0.15  # of an action: it starts its work so late, to leave the cores to ranks that are handing over


@dataclass
class EmulatedSettings(DeviceSettings):
    """Nominal times, in milliseconds: one number for all stages, or a list with one a stage.

    Attributes:
        forward_ms: F of one microbatch.
        backward_ms: B of one microbatch. Where `weight_ms` is not given it is the full
            backward, of which a schedule that splits it takes half for B and half for W.
        weight_ms: W of one microbatch; a full backward takes `backward_ms + weight_ms`.
        recompute_ms: what a recomputation adds to a B; not given, `forward_ms`.
        latency_ms: from a tensor's sending to its being there.
        reduce_ms: the sum of a stage's gradients over the replicas, once the last of them is
            there (gradients have no rows: of `per`, only `layer` counts); null: as long as it
            really takes.
        per: what the times are multiplied by: `layer` (of the stage), `row` (of the
            microbatch), both or none.
    """

    forward_ms: Any
    backward_ms: Any
    weight_ms: Any
    recompute_ms: Any
    latency_ms: float
    reduce_ms: Any
    per: list[str]

    def problems(self, ranks: int) -> list[str]:
        found = super().problems(ranks)
        for key in ("forward_ms", "backward_ms", "weight_ms", "recompute_ms", "latency_ms", "reduce_ms"):
            value = getattr(self, key)
            values = value if isinstance(value, list) else [value]
            for each in values:
                needed = key in ("forward_ms", "backward_ms", "latency_ms") or isinstance(value, list)
                if (each is None and needed) or (each is not None and not _is_time(each)):
                    found.append(f"device.{key}={value} is not a time: give milliseconds from 0 up, or a list of them")
                    break
        wrong = [word for word in self.per if word not in PER]
        if wrong:
            found.append(f"device.per={self.per} has {wrong[0]!r}: use layer, row, both or none, as [layer,row]")
        return found

    def costs(self, workload: Workload, rows: float) -> Costs:
        """The nominal times of a microbatch of `rows` rows, in milliseconds.

        Raises:
            ValueError: a list has not one value a stage; it names the key.
        """
        stages = len(workload.layers)
        of_layers = [n if "layer" in self.per else 1 for n in workload.layers]
        scale = [n * (rows if "row" in self.per else 1) for n in of_layers]

        def times(key: str, value: Any, scale: Sequence[Any] = scale) -> list[Any]:
            given = value if isinstance(value, list) else [value] * stages
            if len(given) != stages:
                raise ValueError(f"device.{key} has {len(given)} values for {stages} stages: give one a stage, or one")
            return [time * factor for time, factor in zip(given, scale, strict=True)]

        forward, backward = times("forward_ms", self.forward_ms), times("backward_ms", self.backward_ms)
        weight = times("weight_ms", self.weight_ms) if self.weight_ms is not None else None
        if weight is None and workload.schedule.split:
            weight = backward = [time / 2 for time in backward]
        recompute = times("recompute_ms", self.forward_ms if self.recompute_ms is None else self.recompute_ms)
        return for_stages(
            stages,
            forward=forward,
            backward=backward,
            weight=weight,
            recompute=recompute if workload.checkpointing.segments else None,
            spared=(workload.schedule.chunks - 1,) if workload.checkpointing.spare_last else (),
            latency=self.latency_ms,
            reduction=None if self.reduce_ms is None else times("reduce_ms", self.reduce_ms, of_layers),
        )

    def open(self, local_rank: int, workload: Workload) -> Device:
        super().open(local_rank, workload)
        per_microbatch = [self.costs(workload, rows) for rows in workload.rows]
        return Emulated(per_microbatch, round(self.latency_ms * 1e6), workload)


def _is_time(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value < inf


class Emulated(Cpu):
    """A CPU whose actions last as long as they are told to.

    Args:
        costs: in milliseconds, for each microbatch.
        latency_ns: what a hop takes at least.
        workload: what is run.
    """

    def __init__(self, costs: Sequence[Costs], latency_ns: int, workload: Workload) -> None:
        super().__init__()
        wake_on_time()
        self._costs, self._latency_ns, self._split = costs, latency_ns, workload.schedule.split
        self._pacer, self._stamps = Pacer(), True
        self.mark = self._pacer.now

    def bind(self, action: Action, run: Run, give: Give | None = None) -> tuple[Run, Give | None]:
        split = (action.stage, action.microbatch) in self._split
        nominal_ns = round(self._costs[action.microbatch].of(action, split) * 1e6)
        quiet_s = nominal_ns * QUIET / 1e9
        pacer, stamps = self._pacer, self._stamps
        lay = give if stamps else None

        def paced(microbatch: int, x: Tensor | None) -> Tensor | None:
            deadline = pacer.begin() + nominal_ns
            if quiet_s:
                time.sleep(quiet_s)
            y = run(microbatch, x)
            now = perf_counter_ns()
            if lay is not None:
                lay(y, max(now, deadline))
            if now > deadline:
                self.overruns += 1
            pacer.until(deadline)
            if not stamps:
                pacer.late_ns = 0  # nobody knows since when its next input was there
            return y

        return paced, None if lay is not None else give

    def reduced(self, stage: int, start_ns: int) -> int | None:
        if not self._costs[0].reduction:
            return None
        deadline: int = start_ns + round(self._costs[0].reduction[stage] * 1e6)
        sleep_until(deadline)
        return max(deadline, perf_counter_ns())

    def recompute_ns(self, row: Sequence[Action], measured: int) -> int:
        backwards = [action for action in row if action.op is Op.B]
        nominal_ms: float = sum(self._costs[action.microbatch].again(action) for action in backwards)
        return round(nominal_ms * 1e6)

    def carry(self, comms: Comms) -> Comms:
        self._stamps = comms.stamps
        return DelayedComms(comms, self._latency_ns, self._pacer) if comms.stamps else comms

    def settle(self) -> None:
        self._pacer.late_ns = 0
