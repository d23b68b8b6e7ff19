"""The schedules that torch.distributed.pipelining has, and its conditions for running them."""

from __future__ import annotations

from collections.abc import Sequence

from microp.schedule import Schedule
from microp.schedule.builders import one_f_one_b
from microp.settings import Checkpointing

TORCH_SCHEDULES = {  # our name -> torch's class
    "gpipe": "ScheduleGPipe",
    "1f1b": "Schedule1F1B",
    "interleaved": "ScheduleInterleaved1F1B",
    "breadth_first": "ScheduleLoopedBFS",
    "zb_v": "ScheduleZBVZeroBubble",
}
NEAREST_IS_1F1B = ("zb_h1", "zb_h2", "eager_1f1b")  # torch has none of these; its 1F1B is compared with them


def torch_problems(schedule: Schedule, checkpointing: Checkpointing, rows: Sequence[int]) -> list[str]:
    """List the reasons why torch cannot run this, one sentence each.

    Args:
        schedule: the schedule to run.
        checkpointing: what is recomputed.
        rows: the number of rows of each microbatch.
    """
    found = []
    if schedule.name not in TORCH_SCHEDULES:
        found.append(f"engine=torch has no schedule {schedule.name!r}: use one of {', '.join(TORCH_SCHEDULES)}")
    if len(schedule.ranks) < 2:
        found.append("engine=torch needs a pipeline: use ranks=2 or more")
    if schedule.name == "1f1b" and schedule.chunks < schedule.stages:
        found.append(
            f"engine=torch needs at least one microbatch per stage for 1f1b: chunks={schedule.chunks} is too few "
            f"for {schedule.stages} stages, use chunks={schedule.stages} or more"
        )
    if len(set(rows)) > 1:
        found.append(
            f"engine=torch needs equal microbatches: {sum(rows)} rows in chunks={len(rows)} are not, "
            "use a batch_size that chunks divides"
        )
    if checkpointing.spare_last:
        found.append(
            f"engine=torch treats all microbatches alike: checkpointing={checkpointing.name} does not, "
            "use checkpointing=always or never"
        )
    return found


def nearest_in_torch(schedule: Schedule) -> Schedule:
    """Return the schedule that torch runs in a comparison: the same one, or its 1F1B if that is the nearest."""
    if schedule.name in NEAREST_IS_1F1B:
        return one_f_one_b(len(schedule.ranks), schedule.chunks)
    return schedule
