"""The schedules that torch.distributed.pipelining has, and its conditions for running them.

With `engine=torch` the job's order is torch's own, action by action, or the job is refused: what is priced is what
runs. In a comparison torch runs the nearest order that it has.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from importlib.metadata import version

from microp.schedule import Schedule
from microp.schedule.builders import Drain, breadth_first, gpipe, one_f_one_b
from microp.settings import Checkpointing

TORCH_SCHEDULES = {  # our name -> torch's class
    "gpipe": "ScheduleGPipe",
    "1f1b": "Schedule1F1B",
    "interleaved": "ScheduleInterleaved1F1B",
    "breadth_first_lifo": "ScheduleLoopedBFS",
    "zb_v": "ScheduleZBVZeroBubble",
}
_OTHER_DRAIN = {  # an order that torch has with the other drain -> which backwards torch runs, and the key's value
    "gpipe_lifo": "first in, first out: set schedule.drain=fifo",
    "breadth_first": "last in, first out: set schedule.drain=lifo",
}
_NEAREST: dict[str, Callable[[int, int, int], Schedule]] = {  # not in torch -> (K, M, v) -> what is compared with it
    **dict.fromkeys(("zb_h1", "zb_h2", "eager_1f1b"), lambda ranks, chunks, _: one_f_one_b(ranks, chunks)),
    "gpipe_lifo": lambda ranks, chunks, _: gpipe(ranks, chunks),
    "breadth_first": lambda ranks, chunks, loops: breadth_first(ranks, chunks, loops, Drain.lifo),
}


def torch_problems(schedule: Schedule, checkpointing: Checkpointing, rows: Sequence[int]) -> list[str]:
    """List the reasons why torch cannot run this, one sentence each."""
    problems = []
    ranks, chunks = len(schedule.ranks), schedule.chunks
    rounds = max(1, chunks // ranks)  # of microbatches, which torch's interleaved 1F1B needs to be equal
    if schedule.name in _OTHER_DRAIN:
        known = schedule.name.removesuffix("_lifo")
        problems.append(f"engine=torch runs the backwards of {known} {_OTHER_DRAIN[schedule.name]}")
    elif schedule.name not in TORCH_SCHEDULES:
        names = ", ".join(name.removesuffix("_lifo") for name in TORCH_SCHEDULES)
        problems.append(f"engine=torch has no schedule {schedule.name!r}: use one of {names}")
    elif schedule.name == "zb_v" and version("torch").startswith("2.11."):
        problems.append(
            "engine=torch does not start zb_v on torch 2.11, which sends to its own rank: use torch 2.12 or newer"
        )
    if ranks < 2:
        problems.append("engine=torch needs a pipeline: use ranks=2 or more")
    if schedule.name == "1f1b" and chunks < schedule.stages:
        problems.append(
            f"engine=torch needs at least one microbatch per stage for 1f1b: chunks={chunks} is too few "
            f"for {schedule.stages} stages, use chunks={schedule.stages} or more"
        )
    if schedule.name == "interleaved" and chunks % rounds:
        problems.append(
            f"engine=torch needs chunks in equal rounds for interleaved, a multiple of chunks // ranks: "
            f"chunks={chunks} in {rounds} rounds is not, use chunks={rounds * ranks} or {(rounds + 1) * ranks}"
        )
    if len(set(rows)) > 1:
        problems.append(
            f"engine=torch needs equal microbatches: {sum(rows)} rows in chunks={len(rows)} are not, "
            "use a batch_size that chunks divides"
        )
    if checkpointing.spare_last:
        problems.append(
            f"engine=torch treats all microbatches alike: checkpointing={checkpointing.name} does not, "
            "use checkpointing=always or never"
        )
    return problems


def nearest_in_torch(schedule: Schedule) -> Schedule:
    """Return the schedule that torch runs in a comparison: the same one, or the nearest one that torch has."""
    ranks = len(schedule.ranks)
    nearest = _NEAREST.get(schedule.name)
    return nearest(ranks, schedule.chunks, schedule.stages // ranks) if nearest else schedule
