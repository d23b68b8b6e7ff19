"""Tensors share a mailbox only where the schedule itself keeps the second from coming too early.

The oracle knows when each action has certainly ended: an action follows the one before it
in its row and its parents, and whatever those follow.
"""

from collections import defaultdict
from graphlib import TopologicalSorter
from itertools import combinations, pairwise, product
from random import Random

import pytest
from drawn import defined, random_schedule

from microp import schedule as schedules
from microp.schedule import Action, Op, Schedule, assign_slots, completed_sends, receives_to_post, remote_links
from microp.schedule.builders import ORDERS, gpipe, naive, one_f_one_b
from microp.schedule.messages import AHEAD


def what_comes_before(schedule: Schedule) -> dict[Action, set[Action]]:
    """action -> all that has certainly ended when it begins."""
    waits = {action: set(schedule.parents(action)) for _, action in schedule}
    for row in schedule.ranks:
        for previous, action in pairwise(row):
            waits[action].add(previous)
    before: dict[Action, set[Action]] = {}
    for action in TopologicalSorter(waits).static_order():
        before[action] = waits[action].union(*(before[need] for need in waits[action]))
    return before


def last_use(schedule: Schedule, sent: Action) -> Action:
    """The receiver's last action on the (stage, microbatch) that takes what `sent` makes."""
    consumer = schedule.consumers[sent]
    row = schedule.ranks[schedule.placement[consumer.stage]]
    return [action for action in row if action[1:] == consumer[1:]][-1]


def by_mailbox(schedule: Schedule, slots: dict[Action, int]) -> dict[tuple[int, int, int], list[Action]]:
    """(sender, receiver, slot) -> what goes through it, in the sender's order."""
    links = remote_links(schedule)
    boxes: dict[tuple[int, int, int], list[Action]] = defaultdict(list)
    for _, action in schedule:
        if action in links:
            boxes[(*links[action], slots[action])].append(action)
    return boxes


def clashes(schedule: Schedule, slots: dict[Action, int], before: dict[Action, set[Action]]) -> list[str]:
    """Pairs in one mailbox, of which the second can be sent while the first is still in use."""
    return [
        f"{second} may overwrite {first} before {last_use(schedule, first)}"
        for box in by_mailbox(schedule, slots).values()
        for first, second in combinations(box, 2)
        if last_use(schedule, first) not in before[second]
    ]


def sizes(schedule: Schedule) -> dict[tuple[int, int], int]:
    """Each link and its number of mailboxes, which are numbered from 0."""
    numbers: dict[tuple[int, int], set[int]] = defaultdict(set)
    for src, dest, slot in by_mailbox(schedule, assign_slots(schedule)):
        numbers[src, dest].add(slot)
    assert all(used == set(range(len(used))) for used in numbers.values())
    return {link: len(used) for link, used in numbers.items()}


@pytest.mark.parametrize("build", ORDERS.values(), ids=ORDERS)
def test_nothing_is_overwritten_that_is_still_in_use_and_a_send_is_over_when_its_tensor_has_certainly_been_used(build):
    """What leaves a rank is what a parent on another rank makes."""
    tried = [order for ranks in range(1, 6) for order in defined(build, ranks, range(1, 3 * ranks + 1))]
    assert len(tried) >= 5
    for schedule in tried:
        before, slots, links = what_comes_before(schedule), assign_slots(schedule), remote_links(schedule)
        rank_of = {action: rank for rank, action in schedule}
        pairs = ((parent, child) for child in rank_of for parent in schedule.parents(child))
        assert links == {p: (rank_of[p], rank_of[c]) for p, c in pairs if rank_of[p] != rank_of[c]}
        assert slots.keys() == links.keys()
        assert clashes(schedule, slots, before) == [], (schedule.name, len(schedule.ranks), schedule.chunks)
        for rank, row in enumerate(schedule.ranks):
            completed = completed_sends(schedule, rank)
            assert list(completed) == list(row)
            over = [sent for action in row for sent in completed[action]]
            assert len(over) == len(set(over))
            for action, sent in ((each, sent) for each in row for sent in completed[each]):
                assert links[sent][0] == rank
                assert {sent, schedule.consumers[sent]} <= before[action]


def test_any_valid_schedule():
    random = Random(8)
    for schedule in (random_schedule(random) for _ in range(300)):
        assert clashes(schedule, assign_slots(schedule), what_comes_before(schedule)) == []


def neighbours(ranks: int, mailboxes) -> dict[tuple[int, int], int]:
    """Both directions of each link, with the number that `mailboxes` says for its lower rank."""
    return {link: mailboxes(rank) for rank in range(ranks - 1) for link in ((rank, rank + 1), (rank + 1, rank))}


@pytest.mark.parametrize("ranks", range(1, 6))
def test_as_many_mailboxes_as_microbatches_in_flight(ranks):
    for chunks in range(1, 3 * ranks + 1):
        assert sizes(gpipe(ranks, chunks)) == neighbours(ranks, lambda _, chunks=chunks: chunks)
        assert sizes(one_f_one_b(ranks, chunks)) == neighbours(ranks, lambda r, chunks=chunks: min(ranks - r, chunks))
        assert sizes(naive(ranks, chunks)) == neighbours(ranks, lambda _: 1)


def test_the_oracle_sees_one_mailbox_too_few():
    schedule = one_f_one_b(3, 6)
    too_few = {action: slot % 2 for action, slot in assign_slots(schedule).items()}
    found = clashes(schedule, too_few, what_comes_before(schedule))
    assert found[0] == "0F2 may overwrite 0F0 before 1B0"


def test_few_receives_are_posted_ahead_each_once():
    """`test_validation.py` shows that each is posted in time, and in the order of the sends."""
    for build, ranks, chunks in product((naive, gpipe, one_f_one_b), range(1, 6), range(1, 9)):
        schedule = build(ranks, chunks)
        for rank, row in enumerate(schedule.ranks):
            posts = receives_to_post(schedule, rank)
            outstanding = 0
            for action in row:
                outstanding += len(posts[action])
                assert outstanding <= AHEAD + 1
                outstanding -= schedules.remote_source(schedule, rank, action) is not None
            assert outstanding == 0
    posts = receives_to_post(gpipe(2, 5), 1)
    assert posts[Action(Op.F, 1, 0)] == tuple(Action(Op.F, 0, m) for m in range(1 + AHEAD))
    assert posts[Action(Op.F, 1, 1)] == (Action(Op.F, 0, 1 + AHEAD),)
