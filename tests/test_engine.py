"""Receives are posted early and in the peer's order; what leaves has the size that is awaited."""

from __future__ import annotations

from itertools import pairwise, product

import pytest
import torch
from conftest import make_plan
from test_mailboxes import BUILDERS, every_schedule, what_comes_before

from microp import launch
from microp.comms import Comms
from microp.engine import ActionError
from microp.lookahead import AHEAD, over_plan, post_plan, weight_groups
from microp.mailboxes import remote_links
from microp.records import read_spans
from microp.schedule import Action, Op
from microp.schedules import gpipe, naive, one_f_one_b
from microp.trace import in_flight_peak
from microp.train import Trainer

GRID = list(product((naive, gpipe, one_f_one_b), range(1, 6), range(1, 9)))


@pytest.mark.parametrize(("build", "ranks", "chunks"), GRID)
def test_every_remote_tensor_is_posted_once_and_in_time(build, ranks, chunks):
    schedule = build(ranks, chunks)
    for rank, row in enumerate(schedule.ranks):
        plan = post_plan(schedule, rank)
        posted, outstanding = [], 0
        for action in row:
            posted += plan[action]
            outstanding += len(plan[action])
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
            plan = over_plan(schedule, rank)
            assert list(plan) == list(row)
            over = [sent for action in row for sent in plan[action]]
            assert len(over) == len(set(over))
            for action in row:
                for sent in plan[action]:
                    assert links[sent][0] == rank
                    assert sent in before[action]
                    assert schedule.consumers[sent] in before[action]


def test_few_tensors_are_under_way():
    """In 1F1B those of the microbatches in flight, in both directions: not one for each microbatch of the step."""
    schedule = one_f_one_b(4, 40)
    for rank, row in enumerate(schedule.ranks):
        plan, links = over_plan(schedule, rank), remote_links(schedule)
        under_way, most = set(), 0
        for action in row:
            if action in links:
                under_way.add(action)
            under_way.difference_update(plan[action])
            most = max(most, len(under_way))
        assert most <= 2 * (4 - rank) + 1


def test_receives_are_posted_ahead():
    plan = post_plan(gpipe(2, 5), 1)
    assert plan[Action(Op.F, 1, 0)] == tuple(Action(Op.F, 0, m) for m in range(1 + AHEAD))
    assert plan[Action(Op.F, 1, 1)] == (Action(Op.F, 0, 1 + AHEAD),)


def test_a_tensor_of_another_shape_does_not_leave():
    plan = make_plan(schedule=gpipe(2, 2))

    class Alone(Comms):
        """Rank 0 of 2, to whom nobody answers."""

        rank, world_size, timeout_s = 0, 2, 1

        def all_reduce(self, tensor, op="sum"):
            return tensor

        def isend_tensor(self, tensor, dest, tag=0):
            raise AssertionError("it must not leave")

        def irecv_tensor(self, *_):
            raise AssertionError("the send comes first")

        all_gather = barrier = close = lambda *_: None

    trainer = Trainer(plan, Alone(), plan.device.open(0, plan.workload))
    trainer.load(0)
    engine = trainer.engine
    engine._shapes[0] = (1, 32)
    engine._program = [bound._replace(posts=()) for bound in engine._bind(trainer.stages, {}, trainer.sync.last)]
    with pytest.raises(ActionError, match=r"rank 0, action 0F0, step 0: made torch.float32 \[5, 32\], 1F0 takes"):
        trainer.engine.step(0)


@pytest.mark.parametrize(("build", "ranks"), [(gpipe, 3), (one_f_one_b, 3), (naive, 2)])
def test_measured_spans_keep_the_order_and_the_dependencies(build, ranks, tmp_path):
    schedule = build(ranks, 5)
    launch.run_elastic(make_plan(schedule=schedule), tmp_path, 3)
    spans = read_spans(tmp_path)
    ends = {span.action: span.end for span in spans}
    assert len(ends) == len(spans) == 2 * 5 * ranks
    for rank in range(ranks):
        own = sorted((span for span in spans if span.rank == rank), key=lambda span: span.start)
        assert tuple(span.action for span in own) == schedule.ranks[rank]
        assert all(a.end <= b.start for a, b in pairwise(own))
    for span in spans:
        assert all(ends[parent] <= span.start for parent in schedule.parents(span.action))
    peaks = {"gpipe": [5] * 3, "1f1b": [3, 2, 1], "naive": [1, 1]}[schedule.name]
    assert in_flight_peak(spans) == dict(enumerate(peaks))


def test_the_loss_falls_on_both_models(tmp_path):
    from conftest import gpt, mlp

    from microp.records import read_rows

    for model in (mlp(), gpt(dropout=0.0)):
        folder = tmp_path / model.name
        folder.mkdir()
        launch.run_threads(make_plan(model=model, batch_size=64, steps=40), folder)
        losses = [row["loss"] for row in read_rows(folder, 1)]
        assert sum(losses[-5:]) / 5 < losses[0] - 1.0
        assert all(row["loss"] is None for row in read_rows(folder, 0))


def test_gradients_are_dropped_between_steps():
    from microp.comms import thread_comms

    plan = make_plan(schedule=gpipe(1, 2))
    [comms] = thread_comms(1)
    trainer = Trainer(plan, comms, plan.device.open(0, plan.workload))
    trainer.load(0)
    trainer.step(0)
    weight = next(trainer.stages[0].layers.parameters())
    assert isinstance(weight.grad, torch.Tensor)
    trainer.load(1)
    assert weight.grad is None


def test_w_actions_of_one_stage_that_stand_together_are_one_group():
    row = [Action(op, stage, m) for op, stage, m in (("B", 0, 0), ("W", 0, 0), ("W", 0, 1), ("W", 1, 0), ("B", 0, 2))]
    row = [action._replace(op=Op(action.op)) for action in row]
    assert weight_groups(row) == {row[1]: (), row[2]: (0, 1)}
