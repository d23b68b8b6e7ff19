"""The orders are torch's own, wherever torch lists the same schedule."""

from collections.abc import Iterator
from functools import cache
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


def _listing(
    name: str, ranks: int, chunks: int, stages_per_rank: int | None
) -> tuple[tuple[tuple[int, Op, int], ...], ...]:
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


def test_gpipe() -> None:
    for ranks, chunks in lengths("gpipe", most=5):
        assert schedules.gpipe(ranks, chunks).ranks == _listing("GPipe", ranks, chunks, None)


@pytest.mark.parametrize("stages_per_rank", [2, 3])
@pytest.mark.parametrize(
    ("name", "build"), [("Interleaved1F1B", schedules.interleaved), ("InterleavedZeroBubble", schedules.zb_interleaved)]
)
def test_interleaved(name: str, build: Builder, stages_per_rank: int) -> None:
    for ranks, chunks in lengths("interleaved", most=5):
        if chunks % max(1, chunks // ranks) == 0:  # torch refuses rounds of different sizes
            ours = build(ranks, chunks, stages_per_rank)  # type: ignore[call-arg]
            assert ours.ranks == _listing(name, ranks, chunks, stages_per_rank)


@pytest.mark.parametrize("stages_per_rank", [2, 3])
def test_breadth_first(stages_per_rank: int) -> None:
    for ranks, chunks in lengths("breadth_first", most=4):
        ours = schedules.breadth_first(ranks, chunks, stages_per_rank, Drain.lifo)
        assert ours.ranks == _listing("LoopedBFS", ranks, chunks, stages_per_rank)


@pytest.mark.parametrize(("name", "build"), [("ZBVZeroBubble", schedules.zb_v), ("DualPipeV", schedules.dualpipe_v)])
def test_v_shapes(name: str, build: Builder) -> None:
    for ranks, chunks in lengths(build.__name__, most=6):
        ours = build(ranks, chunks)
        assert ours.ranks == _listing(name, ranks, chunks, None)
        assert sorted(ours.pairs) == sorted(_pairs(name, ranks, chunks))
