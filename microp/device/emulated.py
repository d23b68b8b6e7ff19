"""A device whose actions last given nominal times, so that 16 ranks can be studied on two cores.

::

    an action   |█ real work █|─────── sleep ──────┤spin├|      lasts exactly its nominal time
    its message               written ────────────────── leaves ─── latency_ms ───► arrives

Every action does real but small work, sends real messages and computes real gradients. Then it
waits for its deadline. Sleeping ranks leave the cores to the others. The action's message is
stamped with the deadline, and the receiver uses it no earlier. The delay with which the host
wakes a rank up does not count as device time (`comms.Pacer`); the time that an engine spends
between two actions counts. An action, or a sum of gradients, whose work took longer than its nominal time is counted as
an overrun, because its duration was set by the machine. The engine's own time between two actions and the optimizer
take their real time, or a nominal one if that is longer.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from time import perf_counter_ns
from typing import Any

from torch import Tensor

from microp.comms import Comms, DelayedComms, Pacer, sleep_until
from microp.device.base import Cpu, Give, Run
from microp.job import Workload
from microp.schedule import Action, Op
from microp.settings import EmulatedSettings
from microp.simulator import nominal_costs, nominal_optimizer

QUIET = 0.15  # the share of an action that it sleeps before its real work: ranks that send meanwhile get the cores


class Emulated(Cpu):
    """A CPU whose actions last their nominal times.

    Args:
        stamps: whether the transport stamps its messages, so that they can be written before the deadline.
    """

    def __init__(self, settings: EmulatedSettings, workload: Workload, stamps: bool) -> None:
        super().__init__()
        self._costs = [nominal_costs(settings, workload, rows) for rows in workload.rows]  # per microbatch
        self._halves: dict[Action, float] = {}  # of the pairs that have a time of their own
        for forward, backward in workload.schedule.partners.items():
            if (costs := self._costs[forward.microbatch]).pair:
                self._halves |= zip((forward, backward), costs.halves(forward, backward), strict=True)
        self._pairs = workload.schedule.pairs
        self._latency_ns = round(settings.latency_ms * 1e6)
        self._overhead_ns = round(settings.overhead_ms * 1e6)
        optimizer = nominal_optimizer(settings, workload.layers, workload.schedule.copies)
        self._optimizer_ns = [round(ms * 1e6) for ms in optimizer]
        self._pacer, self._stamps = Pacer(), stamps
        self._ended = self._free = 0  # the end of the last action, and the earliest moment of what follows
        self.mark = self._now if self._overhead_ns else self._pacer.now

    def _now(self) -> int:
        """Return the device's time; between two actions passes at least the nominal overhead."""
        return max(self._pacer.now(), self._free)

    def bind(self, action: Action, run: Run, give: Give | None = None) -> tuple[Run, Give | None]:
        own_ms = self._costs[action.microbatch].of(action)
        nominal_ns = round(self._halves.get(action, own_ms) * 1e6)
        quiet_s = nominal_ns * QUIET / 1e9
        pacer, stamps = self._pacer, self._stamps
        give_early = give if stamps else None

        def paced(microbatch: int, x: Tensor | None) -> Tensor | None:
            deadline = max(pacer.begin(), self._free) + nominal_ns
            if quiet_s:
                time.sleep(quiet_s)
            working = perf_counter_ns()
            y = run(microbatch, x)
            now = perf_counter_ns()
            self.work_ns += now - working
            if give_early is not None:
                give_early(y, max(now, deadline))
            if now > deadline:
                self.overruns += 1
            pacer.until(deadline)
            if not stamps:
                pacer.late_ns = 0  # without stamps, the arrival of the next input is unknown
            self._ended = max(now, deadline)
            return y

        def rest(y: Tensor) -> None:
            if give_early is None and give is not None:
                give(y)
            self._free = self._ended + self._overhead_ns

        has_overhead = self._overhead_ns and action not in self._pairs
        return paced, rest if has_overhead else None if give_early is not None else give

    def reduction_end(self, stage: int, start_ns: int) -> int | None:
        if not self._costs[0].reduction:
            return None
        deadline: int = start_ns + round(self._costs[0].reduction[stage] * 1e6)
        self.overruns += perf_counter_ns() > deadline
        sleep_until(deadline)
        return max(deadline, perf_counter_ns())

    def finish_sums(self, began: Any, stages: Iterable[int]) -> None:
        if times := self._costs[0].reduction:
            deadline = began + round(sum(times[stage] for stage in stages) * 1e6)
            self.overruns += perf_counter_ns() > deadline
            self._pacer.until(deadline)

    def finish_optimizer(self, began: Any, stages: Iterable[int]) -> None:
        if nominal_ns := sum(self._optimizer_ns[stage] for stage in stages):
            self._pacer.until(began + nominal_ns)

    def recompute_ns(self, row: Sequence[Action], measured: int) -> int:
        backwards = [action for action in row if action.op in (Op.B, Op.I)]
        nominal_ms: float = sum(self._costs[action.microbatch].recomputation(action) for action in backwards)
        return round(nominal_ms * 1e6)

    def wrap_comms(self, comms: Comms) -> Comms:
        return DelayedComms(comms, self._latency_ns, self._pacer) if comms.stamps else comms

    def prepare_step(self) -> None:
        self._pacer.late_ns = self._free = 0
