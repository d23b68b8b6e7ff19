"""Runs one rank's part of any schedule and gives its spans.

::

    for each action of this rank's row:
        post the receives that come up        ── early: bytes move while this rank computes
        wait for the input                    ── another rank's tensor, or this rank's own
        F: stage.forward   B: stage.backward   W: stage.weight_gradient
        send the output                       ── not waited for until the end, or until the
                                                 receiver's answer shows that it has arrived

The engine knows no schedule by name and no rank by number. What is received and what is
sent follows from the schedule's one dependency rule (`Schedule.source`, `consumers`); the
shapes follow by arithmetic from the number of rows, and are checked before a tensor leaves.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from microp.comms import Comms, Message, Pending
from microp.device import Device, Run
from microp.mailboxes import assign_slots, remote_links
from microp.reduction import last_gradients
from microp.schedule import Action, Op, Schedule
from microp.stage import Stage
from microp.trace import Span

AHEAD = 2  # so many receives are posted before the one that is waited for


class ActionError(RuntimeError):
    """An action failed; the message names the rank, the action and the step."""


class Boundary(NamedTuple):
    """What travels between stages.

    Attributes:
        shape: rows -> the shape of one microbatch's tensor (its gradient has the same).
        dtype: the type of both.
    """

    shape: Callable[[int], tuple[int, ...]]
    dtype: torch.dtype


class _Bound(NamedTuple):
    """One action with all that can be known before the step."""

    action: Action
    run: Run
    source: Action | None  # whose tensor it takes
    remote: bool  # that tensor comes from another rank
    consumer: Action | None  # who takes its tensor
    posts: tuple[tuple[Action, Callable[[], Pending]], ...]  # the receives that are posted before it
    send: Callable[[Tensor], Pending] | None  # takes its tensor to another rank
    over: tuple[Action, ...]  # whose sends are over once its input is there


class StepTrace(NamedTuple):
    """What one rank's clock saw of a step; times in nanoseconds.

    Attributes:
        spans: one an action, in the order in which they ran.
        asked: for each of them when the rank began to wait for its input.
    """

    spans: list[Span]
    asked: list[int]


class Engine:
    """One rank's runner.

    Args:
        schedule: a valid schedule.
        stages: the stages this rank holds, by index.
        comms: this rank's comms.
        device: this rank's clock.
        boundary: what travels between stages.
        rows: the number of rows of each microbatch.
        last: for the last action that adds to a stage's gradients, what is run in its place.
    """

    def __init__(
        self,
        schedule: Schedule,
        stages: Mapping[int, Stage],
        comms: Comms,
        device: Device,
        boundary: Boundary,
        rows: Sequence[int],
        last: Callable[[int, Run], Run] = lambda _, run: run,
    ) -> None:
        self._schedule, self._comms, self._device = schedule, device.carry(comms), device
        self._rank, self._dtype = comms.rank, boundary.dtype
        self._shapes = [boundary.shape(count) for count in rows]
        self._comms.expect(self._messages())
        self._program = self._bind(stages, last)
        self.after_action: Callable[[], None] | None = None  # the activation meter's, in its step

    def _bind(self, stages: Mapping[int, Stage], last: Callable[[int, Run], Run]) -> list[_Bound]:
        schedule, last_of = self._schedule, last_gradients(self._schedule)
        posts, over = post_plan(schedule, self._rank), over_plan(schedule, self._rank)
        program = []
        for action in schedule.ranks[self._rank]:
            stage = stages[action.stage]
            run: Run = {Op.F: stage.forward, Op.B: stage.backward, Op.W: stage.weight_gradient}[action.op]
            run = self._device.bind(run, action)
            if action == last_of[action.stage]:
                run = last(action.stage, run)
            source, consumer = schedule.source(action), schedule.consumers.get(action)
            program.append(
                _Bound(
                    action,
                    run,
                    source,
                    source is not None and schedule.placement[source.stage] != self._rank,
                    consumer,
                    tuple((source, self._receiver(source)) for source in posts[action]),
                    self._sender(action, consumer),
                    over[action],
                )
            )
        return program

    def _messages(self) -> list[Message]:
        """All tensors that travel in a step, between any two ranks."""
        slots = assign_slots(self._schedule)
        return [
            Message(
                src,
                dest,
                self._tag(action),
                math.prod(self._shapes[action.microbatch]) * self._dtype.itemsize,
                slots[action],
            )
            for action, (src, dest) in remote_links(self._schedule).items()
        ]

    def step(self, number: int) -> StepTrace:
        """Run this rank's actions once, when every rank has ended the step before.

        The stages have been loaded with the step's batch.

        Args:
            number: the step's index, for messages.

        Raises:
            ActionError: an action failed or a peer did not answer.
        """
        mark = self._device.mark
        arriving: dict[Action, Pending] = {}
        here: dict[Action, Tensor | None] = {}  # from a stage to another of the same rank
        leaving: dict[Action, Pending] = {}
        marks: list[Any] = []
        bound = self._program[0]
        try:
            for bound in self._program:
                for source, post in bound.posts:
                    arriving[source] = post()
                marks.append(mark())
                x = y = None  # what the last action made is not kept alive during this one
                if bound.source is not None:
                    x = arriving.pop(bound.source).wait() if bound.remote else here.pop(bound.source)
                marks.append(mark())
                y = bound.run(bound.action.microbatch, x)
                marks.append(mark())
                if bound.consumer is not None:
                    if bound.send is None:
                        here[bound.action] = y
                    else:
                        assert y is not None
                        leaving[bound.action] = bound.send(y)
                for sent in bound.over:
                    leaving.pop(sent).wait()
                if self.after_action is not None:
                    self.after_action()
            for send in leaving.values():
                send.wait()
        except Exception as error:
            raise ActionError(self._describe(error, bound, number)) from error
        return self._trace(self._device.read(marks))

    def _receiver(self, source: Action) -> Callable[[], Pending]:
        """Posts the receive of `source`'s tensor."""
        shape, src = self._shapes[source.microbatch], self._schedule.placement[source.stage]
        return self._comms.receiver(shape, src, self._tag(source), self._dtype)

    def _sender(self, action: Action, consumer: Action | None) -> Callable[[Tensor], Pending] | None:
        """Sends `action`'s tensor, if it goes to another rank and has the size that is awaited there."""
        if consumer is None or self._schedule.placement[consumer.stage] == self._rank:
            return None
        dest, dtype = self._schedule.placement[consumer.stage], self._dtype
        shape = torch.Size(self._shapes[action.microbatch])
        forward = self._comms.sender(shape, dest, self._tag(action), dtype)

        def send(tensor: Tensor) -> Pending:
            if tensor.shape != shape or tensor.dtype != dtype:
                raise ValueError(f"made {tensor.dtype} {list(tensor.shape)}, {consumer} takes {dtype} {list(shape)}")
            return forward(tensor)

        return send

    def _tag(self, action: Action) -> int:
        """A number that no other tensor of the step has."""
        return 2 * (action.stage * self._schedule.chunks + action.microbatch) + (action.op is Op.B)

    def _describe(self, error: Exception, bound: _Bound, number: int) -> str:
        if isinstance(error, TimeoutError) and bound.source is not None:
            src = self._schedule.placement[bound.source.stage]
            return (
                f"rank {self._rank} waited {self._comms.timeout_s:g} s for {bound.source} from rank {src} "
                f"(step {number})"
            )
        return f"rank {self._rank}, action {bound.action}, step {number}: {error or type(error).__name__}"

    def _trace(self, times: list[int]) -> StepTrace:
        spans, waits = [], []
        triples = zip(times[::3], times[1::3], times[2::3], strict=True)
        for bound, (asked, start, end) in zip(self._program, triples, strict=True):
            spans.append(Span(self._rank, *bound.action, start, end, start))
            waits.append(asked)
        return StepTrace(spans, waits)


def post_plan(schedule: Schedule, rank: int) -> dict[Action, tuple[Action, ...]]:
    """For each action of `rank`, the tensors whose receives are posted just before it.

    Each is posted by the time `AHEAD` receives that come before it are still to be used.
    On one link receives are posted in the order of the peer's sends, which a transport
    without tags relies on.
    """
    row = schedule.ranks[rank]
    needs = [(place, source) for place, action in enumerate(row) if (source := _remote(schedule, rank, action))]
    sends: dict[int, list[Action]] = {}
    wanted = {source for _, source in needs}
    for peer in {schedule.placement[source.stage] for source in wanted}:
        sends[peer] = [action for action in schedule.ranks[peer] if action in wanted]
    plan: dict[Action, tuple[Action, ...]] = dict.fromkeys(row, ())
    for index, (_, source) in enumerate(needs):
        link = sends[schedule.placement[source.stage]]
        if source in link:
            upto = link.index(source) + 1
            before = row[needs[index - AHEAD][0]] if index >= AHEAD else row[0]
            plan[before] += tuple(link[:upto])
            del link[:upto]
    return plan


def over_plan(schedule: Schedule, rank: int) -> dict[Action, tuple[Action, ...]]:
    """For each action of `rank`, those whose sends are over once its input is there.

    A peer that sends has run all that comes before in its row, and used what that took.
    """
    place = {action: index for row in schedule.ranks for index, action in enumerate(row)}
    under_way: dict[int, list[Action]] = defaultdict(list)  # peer -> whose tensors go there
    plan: dict[Action, tuple[Action, ...]] = dict.fromkeys(schedule.ranks[rank], ())
    for action in schedule.ranks[rank]:
        if source := _remote(schedule, rank, action):
            peer, come_to = schedule.placement[source.stage], place[source]
            plan[action] = tuple(sent for sent in under_way[peer] if place[schedule.consumers[sent]] <= come_to)
            under_way[peer] = [sent for sent in under_way[peer] if place[schedule.consumers[sent]] > come_to]
        consumer = schedule.consumers.get(action)
        if consumer is not None and schedule.placement[consumer.stage] != rank:
            under_way[schedule.placement[consumer.stage]].append(action)
    return plan


def _remote(schedule: Schedule, rank: int, action: Action) -> Action | None:
    source = schedule.source(action)
    return source if source is not None and schedule.placement[source.stage] != rank else None
