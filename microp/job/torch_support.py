"""The schedules that torch.distributed.pipelining has, and its conditions for running them.

With `engine=torch` the job's order is torch's own, action by action, or the job is refused: what is priced is what
runs. In a comparison torch runs the nearest order that it has. Torch asks for a class and makes the order itself, so
its class is looked up by the order, not by the schedule's name, which one of its keys or a file can change.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from importlib.metadata import version

from microp.schedule import Action, Op, Schedule, rows
from microp.schedule.builders import Drain, breadth_first, gpipe, interleaved, one_f_one_b, zb_v
from microp.settings import Checkpointing

TORCH_ORDERS: Mapping[str, Callable[[int, int, int], Schedule]] = {  # torch's class -> (K, M, stages per rank) -> order
    "ScheduleGPipe": lambda ranks, chunks, _: gpipe(ranks, chunks),
    "Schedule1F1B": lambda ranks, chunks, _: one_f_one_b(ranks, chunks),
    "ScheduleInterleaved1F1B": lambda ranks, chunks, loops: interleaved(ranks, chunks, loops),
    "ScheduleLoopedBFS": lambda ranks, chunks, loops: breadth_first(ranks, chunks, loops, Drain.lifo),
    "ScheduleZBVZeroBubble": lambda ranks, chunks, _: zb_v(ranks, chunks),
}


def torch_class(schedule: Schedule) -> str | None:
    """Return the class with which torch runs exactly this order; None if it has none."""
    return next((name for name, order in _orders(schedule) if order.ranks == schedule.ranks), None)


def nearest_in_torch(schedule: Schedule) -> Schedule:
    """Return what torch runs in a comparison: this order, or it with full backwards, or with the other drain.

    The schedule itself if torch has none of them.
    """

    def undivided(action: Action) -> Action:
        return action if action.op is Op.F else action._replace(op=Op.B)

    def drained(action: Action) -> Action:
        return action if action.op is Op.F else action._replace(microbatch=schedule.chunks - 1 - action.microbatch)

    full = rows((undivided(action) for action in row if action.op is not Op.W) for row in schedule.ranks)
    wanted = schedule.ranks, full, rows(map(drained, row) for row in full)
    found = [order for each in wanted for _, order in _orders(schedule) if order.ranks == each]
    return schedule if not found or found[0].ranks == schedule.ranks else found[0]


def _orders(schedule: Schedule) -> list[tuple[str, Schedule]]:
    """Return torch's classes, each with its order for the numbers of a schedule."""
    ranks, chunks = len(schedule.ranks), schedule.chunks
    return [(name, build(ranks, chunks, max(1, schedule.stages // ranks))) for name, build in TORCH_ORDERS.items()]


def torch_problems(schedule: Schedule, checkpointing: Checkpointing, sizes: Sequence[int]) -> list[str]:
    """List the reasons why torch cannot run this, one sentence each."""
    problems = []
    ranks, chunks, name = len(schedule.ranks), schedule.chunks, torch_class(schedule)
    rounds = max(1, chunks // ranks)  # of microbatches, which torch's interleaved 1F1B needs to be equal
    if name is None:
        problems.append(
            f"engine=torch has not the order of {schedule.name!r}: use gpipe, 1f1b, eager_1f1b, interleaved with its "
            "keys as they are, breadth_first with schedule.drain=lifo, or zb_v"
        )
    elif name == "ScheduleZBVZeroBubble" and version("torch").startswith("2.11."):
        problems.append(
            "engine=torch does not start zb_v on torch 2.11, which sends to its own rank: use torch 2.12 or newer"
        )
    if ranks < 2:
        problems.append("engine=torch needs a pipeline: use ranks=2 or more")
    if name == "Schedule1F1B" and chunks < schedule.stages:
        problems.append(
            f"engine=torch needs at least one microbatch per stage for 1f1b: chunks={chunks} is too few "
            f"for {schedule.stages} stages, use chunks={schedule.stages} or more"
        )
    if name == "ScheduleInterleaved1F1B" and chunks % rounds:
        problems.append(
            f"engine=torch needs chunks in equal rounds for interleaved, a multiple of chunks // ranks: "
            f"chunks={chunks} in {rounds} rounds is not, use chunks={rounds * ranks} or {(rounds + 1) * ranks}"
        )
    if len(set(sizes)) > 1:
        problems.append(
            f"engine=torch needs equal microbatches: {sum(sizes)} rows in chunks={len(sizes)} are not, "
            "use a batch_size that chunks divides"
        )
    if checkpointing.spare_last:
        problems.append(
            f"engine=torch treats all microbatches alike: checkpointing={checkpointing.name} does not, "
            "use checkpointing=always or never"
        )
    return problems
