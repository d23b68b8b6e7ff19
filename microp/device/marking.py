"""Marks what torch's pipeline schedules do, so that a profile of them can be read."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

METHODS = {"forward_one_chunk": "F", "backward_one_chunk": "B", "backward_weight_one_chunk": "W"}  # of torch's stages


@contextmanager
def marked(schedule: Any) -> Iterator[Any]:
    """Put a range around each action of one of torch's pipeline schedules, for torch.profiler.

    The ranges are called `PP:1F0`: stage, F, B, I or W, microbatch. In a loop of your own wrap each action in
    `torch.profiler.record_function("PP:1F0")`, without the wait for its input and without its send.

    Raises:
        TypeError: it is no schedule of torch.distributed.pipelining.
    """
    # torch has no public name for the stages of a schedule
    stages = getattr(schedule, "_stages", None) or [getattr(schedule, "_stage", None)]
    if not all(hasattr(stage, name) for stage in stages for name in METHODS):
        raise TypeError(f"{type(schedule).__name__} is not of torch.distributed.pipelining: give a schedule")
    from torch._C._profiler import _RecordFunctionFast  # late: a run does without, on any torch

    def ranged(method: Callable[..., Any], stage: int, op: str) -> Callable[..., Any]:
        def call(chunk: int, *args: Any, **kwargs: Any) -> Any:
            with _RecordFunctionFast(f"PP:{stage}{'I' if kwargs.get('full_backward') is False else op}{chunk}"):
                return method(chunk, *args, **kwargs)

        return call

    with ExitStack() as undo:
        for stage in stages:
            for name, op in METHODS.items():
                setattr(stage, name, ranged(getattr(stage, name), stage.stage_index, op))
                undo.callback(delattr, stage, name)  # which uncovers the method of the class
        yield schedule
