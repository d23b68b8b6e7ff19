"""Marks what torch's pipeline schedules do, so that a profile of them can be read."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import wraps
from typing import Any

_METHODS = {  # of a stage of torch's -> the op, by its keyword `full_backward` where that divides it
    "forward_one_chunk": "F",
    "backward_one_chunk": "B",
    "backward_weight_one_chunk": "W",
}


@contextmanager
def marked(schedule: Any) -> Iterator[Any]:
    """Put a range around each action of one of torch's pipeline schedules, for torch.profiler.

    ::

        with microp.marked(schedule), torch.profiler.profile() as profiler:
            for _ in range(5):
                schedule.step(batch, target=target)
                optimizer.step()
                profiler.step()
        profiler.export_chrome_trace(f"rank{rank}.json")

    The ranges are called `PP:1F0`: the stage, F, B, I or W, and the microbatch. In a loop of one's own wrap each action
    in `torch.profiler.record_function("PP:1F0")`, without the wait for its input and without its send.

    Args:
        schedule: any schedule of torch.distributed.pipelining; a stage of it, or a list of them, will do too.

    Raises:
        TypeError: it has no stage of torch.distributed.pipelining.
    """
    # torch has no public name for a schedule's stages
    held = getattr(schedule, "_stages", None) or getattr(schedule, "_stage", None) or schedule
    stages = list(held) if isinstance(held, list | tuple) else [held]
    with ExitStack() as undo:
        for stage in stages:
            for name, op in _METHODS.items():
                method = getattr(stage, name, None)
                if method is None:
                    raise TypeError(
                        f"{type(stage).__name__} is no stage of torch.distributed.pipelining: give a schedule"
                    )
                setattr(stage, name, _ranged(method, stage.stage_index, op))
                undo.callback(delattr, stage, name)  # the method of the class is there again
        yield schedule


def _ranged(method: Callable[..., Any], stage: int, op: str) -> Callable[..., Any]:
    from torch.profiler import record_function

    @wraps(method)
    def call(chunk: int, *args: Any, **kwargs: Any) -> Any:
        letter = "I" if kwargs.get("full_backward") is False else op
        with record_function(f"PP:{stage}{letter}{chunk}"):
            return method(chunk, *args, **kwargs)

    return call
