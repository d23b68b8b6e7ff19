"""Links without tags, as NCCL's are: the n-th receive of a link gets the n-th tensor that was sent on it.

::

    rank 0   send F0, send F1 ─────── one queue per pair of ranks and direction ───────► receive, receive   rank 1

A transfer starts when both of its ends stand first in their queues. No GPU is needed to find out whether the order in
which a rank posts receives gives it the right tensors, and whether the ranks wait for each other for ever.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Callable, Hashable
from random import Random

import pytest
from catalogue import BUILDERS, lengths
from random_schedules import random_schedule

from microp.schedule import Action, Op, Schedule, receives_to_post
from microp.schedule.builders import gpipe, naive, one_f_one_b

Posts = Callable[[Schedule, int], dict[Action, tuple[Action, ...]]]
Queue = Callable[[int, int], Hashable]


class DeadlockError(RuntimeError):
    """No rank can go on."""


class WrongTensorError(RuntimeError):
    """A receive got another tensor than its rank takes it for."""


def per_pair(source: int, dest: int) -> Hashable:
    """A queue per pair of ranks and direction: a group per direction, in which each pair has a communicator."""
    return source, dest


def per_direction(source: int, dest: int) -> Hashable:
    """A queue per direction, as with `device_id`: all transfers of a rank in one communicator."""
    return source < dest


class Links:
    """The ranks of a step, each with its place in its row, and the queues of their transfers."""

    def __init__(self, schedule: Schedule, posts: Posts, queue: Queue) -> None:
        self.schedule, self.queue, self.ranks = schedule, queue, range(len(schedule.ranks))
        self.plans = [posts(schedule, rank) for rank in self.ranks]
        self.place = [0] * len(self.ranks)
        self.posted: set[tuple[int, Action]] = set()
        self.queues: dict[tuple[int, Hashable], deque[tuple[int, int, Action]]] = defaultdict(deque)
        self.got: dict[tuple[int, Action], Action] = {}  # rank, what it takes the tensor for -> the tensor

    def go(self, rank: int) -> bool:
        """Run the next action of a rank; return whether there was one, and its input was there."""
        row = self.schedule.ranks[rank][self.place[rank] :]
        if not row:
            return False
        action, place = row[0], self.schedule.placement
        if (rank, action) not in self.posted:
            self.posted.add((rank, action))
            for tensor in self.plans[rank][action]:
                self._enqueue(rank, place[tensor.stage], rank, tensor)
        needed = self.schedule.source(action)
        if needed is not None and place[needed.stage] != rank:
            got = self.got.get((rank, needed))
            if got is None:
                return False
            if got != needed:
                raise WrongTensorError(f"rank {rank} takes {got} for {needed}")
        consumer = self.schedule.consumers.get(action)
        if consumer is not None and place[consumer.stage] != rank:
            self._enqueue(rank, rank, place[consumer.stage], action)
        self.place[rank] += 1
        return True

    def transfer(self) -> bool:
        """Make one transfer whose two ends are first in their queues; return whether there was one."""
        for (rank, key), waiting in self.queues.items():
            if waiting and waiting[0][0] == rank:
                source, dest, sent = waiting[0]
                other = self.queues.get((dest, key))
                if other and other[0][:2] == (source, dest):
                    waiting.popleft()
                    self.got[dest, other.popleft()[2]] = sent
                    return True
        return False

    def _enqueue(self, rank: int, source: int, dest: int, tensor: Action) -> None:
        self.queues[rank, self.queue(source, dest)].append((source, dest, tensor))


def run(schedule: Schedule, posts: Posts = receives_to_post, queue: Queue = per_pair) -> None:
    """Run a step over such links.

    Raises:
        DeadlockError, WrongTensorError: the order in which receives are posted is wrong.
    """
    links = Links(schedule, posts, queue)
    while any([*map(links.go, links.ranks), links.transfer()]):
        pass
    if links.place != [len(row) for row in schedule.ranks]:
        raise DeadlockError(f"{links.place} of {[len(row) for row in schedule.ranks]} actions have run")
    assert not any(links.queues.values()), "every receive has its send"


@pytest.mark.parametrize("name", BUILDERS)
def test_every_order_runs_over_links_without_tags(name):
    for build in BUILDERS[name]:
        for ranks, chunks in lengths(name, most=4):
            try:
                schedule = build(ranks, chunks)
            except ValueError:  # not defined for these numbers
                continue
            run(schedule)


def test_random_orders_do_too():
    for seed in range(40):
        run(random_schedule(Random(seed)))


def in_order_of_use(schedule: Schedule, rank: int) -> dict[Action, tuple[Action, ...]]:
    """Post the receive of each input just before its use, whatever order the peer sends in."""
    plan: dict[Action, tuple[Action, ...]] = {}
    for action in schedule.ranks[rank]:
        source = schedule.source(action)
        remote = source is not None and schedule.placement[source.stage] != rank
        plan[action] = (source,) if remote else ()
    return plan


def test_receives_in_another_order_than_the_sends_are_found():
    """Rank 1 takes the microbatches in another order than rank 0 sends them."""
    first = tuple(Action(Op.F, 0, m) for m in (0, 1)) + tuple(Action(Op.B, 0, m) for m in (0, 1))
    second = tuple(Action(op, 1, m) for m in (1, 0) for op in (Op.F, Op.B))
    schedule = Schedule("crossed", 2, (first, second))
    run(schedule)
    with pytest.raises(WrongTensorError, match="rank 1 takes 0F0 for 0F1"):
        run(schedule, in_order_of_use)


def test_a_receive_that_is_never_posted_is_found():
    def forgetful(schedule: Schedule, rank: int) -> dict[Action, tuple[Action, ...]]:
        return {action: posted[:-1] for action, posted in receives_to_post(schedule, rank).items()}

    with pytest.raises(DeadlockError):
        run(gpipe(2, 4), forgetful)


def test_one_queue_for_all_transfers_of_a_direction_would_hang():
    """A receive that is posted early stands before a send: why NCCL's groups are made without `device_id`."""
    with pytest.raises(DeadlockError):
        run(naive(3, 4), queue=per_direction)


def test_one_queue_for_both_directions_would_hang():
    """The receives of gradients stand before the sends of activations: why each direction has a group of its own."""
    run(one_f_one_b(3, 6))
    with pytest.raises(DeadlockError):
        run(one_f_one_b(3, 6), queue=lambda source, dest: frozenset((source, dest)))
