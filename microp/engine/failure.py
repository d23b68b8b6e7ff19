"""Says in one line which rank failed, at what action or place, in which step, and if it waited, for whom.

Ranks are counted over all replicas, as in the names of the files.

::

    rank 1, action 1F1, step 2: out of memory
    rank 2 waited 60 s for 1F3 from rank 1, which waits for 0F3 from rank 0, which has been in 0F3 for 60.1 s (step 7)
"""

from __future__ import annotations

from microp.comms import Comms, awaited_rank, trail
from microp.records import in_words
from microp.schedule import Schedule


def describe_failure(comms: Comms, schedule: Schedule, error: BaseException, step: int | None = None) -> str:
    """Return one line about the error of a rank, from the heartbeats.

    Args:
        step: the step's index; None for the one in the rank's heartbeat.
    """
    heartbeats, me = comms.heartbeats, comms.world_rank
    beat = heartbeats.read(me)
    step = beat.step if step is None else step
    name = heartbeats.rank_text
    where, action = beat.where(schedule, comms.rank), beat.action(schedule, comms.rank)
    if not isinstance(error, TimeoutError) or (action and not beat.waits):
        return f"{name(me)}, {'action ' if action else ''}{where}, step {step}: {in_words(error)}"
    other = awaited_rank(heartbeats, schedule, me)
    whom = "another rank" if other is None else f"{name(other)}{trail(heartbeats, schedule, other)}"
    source = schedule.source(action) if action else None
    what = f"for {source} from {whom}" if source else f"at {where} for {whom}"
    return f"{name(me)} waited {comms.timeout_s:g} s {what} (step {step})"
