"""The orders are torch's own, wherever torch lists the same schedule."""

from collections.abc import Iterator
from functools import cache, partial
from typing import Any
from unittest import mock
from unittest.mock import patch

import pytest
from catalogue import Builder, lengths

from microp.schedule import Op
from microp.schedule import builders as schedules
from microp.schedule.builders import Drain

AUTOSPEC = cache(mock.create_autospec)  # torch makes a mock of its stage in each call, which takes nearly all the time


@cache
def _ops(name: str, ranks: int, chunks: int, stages_per_rank: int | None = None) -> list:  # type: ignore[type-arg]
    from torch.distributed.pipelining._schedule_visualizer import get_schedule_ops  # takes 2 s to import

    with patch.object(mock, "create_autospec", AUTOSPEC):
        return get_schedule_ops(name, ranks, chunks, stages_per_rank)


def _listing(name: str, ranks: int, chunks: int, stages_per_rank: int | None = None) -> tuple[Any, ...]:
    """torch's order, without idle slots and communication, the actions of pairs one after the other."""

    def row(actions: list) -> Iterator[tuple]:  # type: ignore[type-arg]
        for action in filter(None, actions):
            for one in action.sub_actions or (action,):
                if one.computation_type.value in [*Op]:
                    yield Op(one.computation_type.value), one.stage_index, one.microbatch_index

    return tuple(tuple(row(actions)) for actions in _ops(name, ranks, chunks, stages_per_rank))


def _pairs(name: str, ranks: int, chunks: int) -> Iterator[tuple[Op, int, int]]:
    """The forwards of torch's pairs."""
    for actions in _ops(name, ranks, chunks):
        for action in filter(None, actions):
            if action.sub_actions:
                yield Op.F, action.sub_actions[0].stage_index, action.sub_actions[0].microbatch_index


BREADTH_FIRST = partial(schedules.breadth_first, drain=Drain.lifo)


@pytest.mark.parametrize("stages_per_rank", [2, 3])
@pytest.mark.parametrize(
    ("name", "build", "most"),
    [
        ("Interleaved1F1B", schedules.interleaved, 5),
        ("InterleavedZeroBubble", schedules.zb_interleaved, 5),
        ("LoopedBFS", BREADTH_FIRST, 4),
    ],
)
def test_loops(name: str, build: Builder, most: int, stages_per_rank: int) -> None:
    for ranks, chunks in lengths("interleaved", most=most):
        if name == "LoopedBFS" or chunks % max(1, chunks // ranks) == 0:  # torch refuses rounds of different sizes
            ours = build(ranks, chunks, stages_per_rank)  # type: ignore[call-arg]
            assert ours.ranks == _listing(name, ranks, chunks, stages_per_rank)


@pytest.mark.parametrize(
    ("name", "build", "most"),
    [("GPipe", schedules.gpipe, 5), ("ZBVZeroBubble", schedules.zb_v, 6), ("DualPipeV", schedules.dualpipe_v, 6)],
)
def test_one_stage_per_rank_and_v_shapes(name: str, build: Builder, most: int) -> None:
    for ranks, chunks in lengths(build.__name__, most=most):
        ours = build(ranks, chunks)
        assert ours.ranks == _listing(name, ranks, chunks)
        assert sorted(ours.pairs) == sorted(_pairs(name, ranks, chunks))
