"""Receives are posted early and in the sender's order; a send is over when its tensor has certainly been used."""

from __future__ import annotations

from itertools import product

import pytest
from test_mailboxes import BUILDERS, every_schedule, what_comes_before

from microp.schedule import Action, Op, completed_sends, receives_to_post, remote_links, weight_groups
from microp.schedule.builders import gpipe, naive, one_f_one_b
from microp.schedule.prefetch import AHEAD

GRID = list(product((naive, gpipe, one_f_one_b), range(1, 6), range(1, 9)))


@pytest.mark.parametrize(("build", "ranks", "chunks"), GRID)
def test_every_remote_tensor_is_posted_once_and_in_time(build, ranks, chunks):
    schedule = build(ranks, chunks)
    for rank, row in enumerate(schedule.ranks):
        posts = receives_to_post(schedule, rank)
        posted, outstanding = [], 0
        for action in row:
            posted += posts[action]
            outstanding += len(posts[action])
            assert outstanding <= AHEAD + 1
            source = schedule.source(action)
            if source is not None and schedule.placement[source.stage] != rank:
                assert source in posted
                outstanding -= 1
        assert len(posted) == len(set(posted))
        for peer in range(ranks):
            from_peer = [source for source in posted if schedule.placement[source.stage] == peer]
            assert from_peer == [a for a in schedule.ranks[peer] if a in from_peer]


@pytest.mark.parametrize("build", BUILDERS, ids=lambda build: build.__name__)
def test_a_send_is_over_when_its_tensor_has_certainly_been_used(build):
    for schedule in every_schedule(build):
        before, links = what_comes_before(schedule), remote_links(schedule)
        for rank, row in enumerate(schedule.ranks):
            completed = completed_sends(schedule, rank)
            assert list(completed) == list(row)
            over = [sent for action in row for sent in completed[action]]
            assert len(over) == len(set(over))
            for action in row:
                for sent in completed[action]:
                    assert links[sent][0] == rank
                    assert sent in before[action]
                    assert schedule.consumers[sent] in before[action]


def test_few_tensors_are_under_way():
    """In 1F1B those of the microbatches in flight, in both directions: not one for each microbatch of the step."""
    schedule = one_f_one_b(4, 40)
    for rank, row in enumerate(schedule.ranks):
        completed, links = completed_sends(schedule, rank), remote_links(schedule)
        under_way, most = set(), 0
        for action in row:
            if action in links:
                under_way.add(action)
            under_way.difference_update(completed[action])
            most = max(most, len(under_way))
        assert most <= 2 * (4 - rank) + 1


def test_receives_are_posted_ahead():
    posts = receives_to_post(gpipe(2, 5), 1)
    assert posts[Action(Op.F, 1, 0)] == tuple(Action(Op.F, 0, m) for m in range(1 + AHEAD))
    assert posts[Action(Op.F, 1, 1)] == (Action(Op.F, 0, 1 + AHEAD),)


def test_w_actions_of_one_stage_that_stand_together_are_one_group():
    row = [Action(op, stage, m) for op, stage, m in (("B", 0, 0), ("W", 0, 0), ("W", 0, 1), ("W", 1, 0), ("B", 0, 2))]
    row = [action._replace(op=Op(action.op)) for action in row]
    assert weight_groups(row) == {row[1]: (), row[2]: (0, 1)}
