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
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor

from microp.comms import Comms, Inbox, Message, Outbox
from microp.device import Device, Give, Run
from microp.lookahead import over_plan, post_plan, remote_source, weight_groups
from microp.mailboxes import assign_slots, remote_links
from microp.reduction import last_gradients
from microp.schedule import Action, Op, Schedule
from microp.stage import Stage
from microp.trace import StepTrace


@dataclass
class EngineSettings:
    """What a user chooses.

    Attributes:
        name: `microp`, `torch` (torch.distributed.pipelining), or `compare`: both in turn,
            beside one rank's compute alone, which is their limit.
        batch_weights: where a schedule leaves several W of one stage together, run them as one
            product over their rows: faster, and the sums have other last bits.
    """

    name: str
    batch_weights: bool


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
    """One action with all that can be known before the step.

    Attributes:
        posts: start the receives that come up.
        take: waits for its input.
        run: does it.
        give: passes its output on.
        over: waits for the sends that are over once its input is there.
    """

    posts: tuple[Callable[[], Any], ...]
    take: Callable[[], Tensor | None] | None
    run: Run
    microbatch: int
    give: Give | None
    over: tuple[Callable[[], Any], ...]


class _Place:
    """Where a tensor lies that goes from a stage to another of the same rank."""

    def __init__(self) -> None:
        self._tensor: Tensor | None = None

    def put(self, tensor: Tensor, leaves_ns: int = 0) -> None:
        del leaves_ns  # this rank is busy until then
        self._tensor = tensor

    def take(self) -> Tensor | None:
        tensor, self._tensor = self._tensor, None
        return tensor


class Engine:
    """One rank's runner.

    Attributes:
        factor: what the time of a step is multiplied by, to be compared with other runners'.

    Args:
        schedule: a valid schedule.
        stages: the stages this rank holds, by index.
        comms: this rank's comms.
        device: this rank's clock.
        boundary: what travels between stages.
        rows: the number of rows of each microbatch.
        batch_weights: see `EngineSettings`.
        last: for the last action that adds to a stage's gradients, what is run in its place.
    """

    factor = 1.0

    def __init__(
        self,
        schedule: Schedule,
        stages: Mapping[int, Stage],
        comms: Comms,
        device: Device,
        boundary: Boundary,
        rows: Sequence[int],
        batch_weights: bool = False,
        last: Callable[[int, Run], Run] = lambda _, run: run,
    ) -> None:
        self._schedule, self._comms, self._device = schedule, device.carry(comms), device
        self._rank, self._dtype = comms.rank, boundary.dtype
        self._shapes = [boundary.shape(count) for count in rows]
        self._comms.expect(self._messages())
        groups = weight_groups(schedule.ranks[comms.rank]) if batch_weights else {}
        self._program = self._bind(stages, groups, last)
        self._marks: list[Any] = [None] * (3 * len(self._program))
        self.after_action: Callable[[], None] | None = None  # the activation meter's, in its step

    def _bind(
        self,
        stages: Mapping[int, Stage],
        groups: Mapping[Action, tuple[int, ...]],
        last: Callable[[int, Run], Run],
    ) -> list[_Bound]:
        schedule, rank, last_of = self._schedule, self._rank, last_gradients(self._schedule)
        row = schedule.ranks[rank]
        posts, over = post_plan(schedule, rank), over_plan(schedule, rank)
        places = {action: _Place() for action in row}
        inboxes = {source: self._inbox(source) for action in row if (source := remote_source(schedule, rank, action))}
        outboxes = {action: box for action in row if (box := self._outbox(action)) is not None}
        program = []
        for action in row:
            stage = stages[action.stage]
            run: Run = {Op.F: stage.forward, Op.B: stage.backward, Op.W: stage.weight_gradient}[action.op]
            if action in groups:
                run = partial(_run_group, stage, groups[action])
            source, take, give = schedule.source(action), None, None
            if source is not None:
                take = inboxes[source].wait if source in inboxes else places[source].take
            if action in schedule.consumers:
                give = self._checked(action, outboxes[action].send) if action in outboxes else places[action].put
            run, give = self._device.bind(action, run, give)
            if action == last_of[action.stage]:
                run = last(action.stage, run)
            program.append(
                _Bound(
                    tuple(post for source in posts[action] if (post := inboxes[source].post) is not None),
                    take,
                    run,
                    action.microbatch,
                    give,
                    tuple(finish for sent in over[action] if (finish := outboxes[sent].finish) is not None),
                )
            )
        done = {sent for action in row for sent in over[action]}
        self._left = [box.finish for sent, box in outboxes.items() if sent not in done and box.finish is not None]
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
        mark, marks, after = self._device.mark, self._marks, self.after_action
        place = 0
        try:
            for posts, take, run, microbatch, give, over in self._program:
                for post in posts:
                    post()
                marks[place] = mark()
                x = take() if take is not None else None
                marks[place + 1] = mark()
                y = run(microbatch, x)
                marks[place + 2] = mark()
                if give is not None:
                    give(y)
                for finish in over:
                    finish()
                x = y = None  # what this action took and made is not kept alive during the next
                if after is not None:
                    after()
                place += 3
            for finish in self._left:
                finish()
        except Exception as error:
            raise ActionError(self._describe(error, place // 3, number)) from error
        row = self._schedule.ranks[self._rank]
        return StepTrace(self._rank, row, partial(self._device.read, tuple(marks)))

    def _inbox(self, source: Action) -> Inbox:
        """Receives `source`'s tensor."""
        shape, src = self._shapes[source.microbatch], self._schedule.placement[source.stage]
        return self._comms.inbox(shape, src, self._tag(source), self._dtype)

    def _outbox(self, action: Action) -> Outbox | None:
        """Sends `action`'s tensor, if it goes to another rank."""
        consumer = self._schedule.consumers.get(action)
        if consumer is None or (dest := self._schedule.placement[consumer.stage]) == self._rank:
            return None
        return self._comms.outbox(self._shapes[action.microbatch], dest, self._tag(action), self._dtype)

    def _checked(self, action: Action, send: Give) -> Give:
        """`send` for a tensor of the size that is awaited, and an error for another."""
        shape, dtype = torch.Size(self._shapes[action.microbatch]), self._dtype

        def checked(tensor: Tensor, leaves_ns: int = 0) -> None:
            if tensor.shape != shape or tensor.dtype != dtype:
                consumer = self._schedule.consumers[action]
                raise ValueError(f"made {tensor.dtype} {list(tensor.shape)}, {consumer} takes {dtype} {list(shape)}")
            send(tensor, leaves_ns)

        return checked

    def _tag(self, action: Action) -> int:
        """A number that no other tensor of the step has."""
        return 2 * (action.stage * self._schedule.chunks + action.microbatch) + (action.op is Op.B)

    def _describe(self, error: Exception, place: int, number: int) -> str:
        action = self._schedule.ranks[self._rank][min(place, len(self._program) - 1)]
        source = self._schedule.source(action)
        if isinstance(error, TimeoutError) and source is not None:
            src = self._schedule.placement[source.stage]
            return f"rank {self._rank} waited {self._comms.timeout_s:g} s for {source} from rank {src} (step {number})"
        return f"rank {self._rank}, action {action}, step {number}: {error or type(error).__name__}"


def _run_group(stage: Stage, microbatches: Sequence[int], _microbatch: int, _x: Tensor | None) -> None:
    if microbatches:
        stage.weight_gradients(microbatches)
