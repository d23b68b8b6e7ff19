"""Runs one rank's part of any schedule and returns its spans.

::

    for each action of this rank's row:
        post the next receives                ── early: bytes move while this rank computes
        wait for the input                    ── from another rank or from another stage of this rank
        F: stage.forward   B: stage.backward   W: stage.weight_gradient
        send the output                       ── completed at the end of the step, or once an input
                                                 shows that the receiver has used it

The engine does not depend on any schedule's name or any rank's index. The schedule's one
dependency rule (`Schedule.source`, `consumers`) determines what is received and sent. The shapes
are computed from the number of rows and checked before a tensor is sent.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from time import perf_counter_ns
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor

from microp.comms import PLACE, SINCE, Comms, Inbox, Message, Outbox, Place, awaited_rank, trail
from microp.device import Device, Give, Run
from microp.model import Stage
from microp.records import in_words
from microp.schedule import (
    Action,
    Op,
    Schedule,
    assign_slots,
    completed_sends,
    receives_to_post,
    remote_links,
    remote_source,
    weight_groups,
)
from microp.trace import Actions, StepTrace


class Runner(Protocol):
    """Runs steps: an engine, or the limit with which engines are compared."""

    factor: float  # the factor that makes the time of a step comparable with that of other runners
    after_action: Callable[[], None] | None  # a function that is called after each action; None for no call

    def step(self, number: int) -> StepTrace | None:
        """Run step `number`, whose batch has been loaded; return its trace, or None if it makes none."""


class ActionError(RuntimeError):
    """An action failed; the message names the rank, the action and the step."""


class Boundary(NamedTuple):
    """The shapes and the types of the tensors between stages."""

    # (rows, stage) -> the shape of the tensor that enters a stage, which is also that of its gradient
    shape: Callable[[int, int], tuple[int, ...]]
    dtype: Callable[[int], torch.dtype]  # stage -> the type of both
    device: torch.device = torch.device("cpu")


class _Bound(NamedTuple):
    """One action with all functions that it calls, looked up before the step."""

    posts: tuple[Callable[[], Any], ...]
    take: Callable[[], Tensor | None] | None  # waits for the action's input and returns it; None if it has none
    run: Run
    microbatch: int
    give: Give | None  # passes on the action's output; None if no action uses it
    # wait for sends; the arrival of the action's input shows that they have completed
    completed_sends: tuple[Callable[[], Any], ...]


class _LocalBox:
    """Holds a tensor between two stages of the same rank."""

    def __init__(self) -> None:
        self._tensor: Tensor | None = None

    def put(self, tensor: Tensor, leaves_ns: int = 0) -> None:
        del leaves_ns  # the rank runs no other action before that time
        self._tensor = tensor

    def take(self) -> Tensor | None:
        tensor, self._tensor = self._tensor, None
        return tensor


class _PairBox:
    """Holds what the two actions of a pair pass on: the input of its backward, and the output of its forward.

    ::

        wait for both inputs ─► F ─► B ─► give the outputs of both        as one action, with one time
    """

    def __init__(self, take: Callable[[], Tensor | None] | None, give: Give | None) -> None:
        self._take, self._give = take, give  # of the forward
        self._input: Tensor | None = None
        self._output: Tensor | None = None

    def both_inputs(self, of_backward: Callable[[], Tensor | None] | None) -> Callable[[], Tensor | None]:
        """Return what takes the forward's input, and keeps the backward's."""

        def take() -> Tensor | None:
            self._input = of_backward() if of_backward is not None else None
            return self._take() if self._take is not None else None

        return take

    def input(self) -> Tensor | None:
        """Return the input of the backward."""
        taken, self._input = self._input, None
        return taken

    def keep(self, output: Tensor, leaves_ns: int = 0) -> None:
        del leaves_ns  # it leaves with the backward's
        self._output = output

    def both_outputs(self, of_backward: Give | None) -> Give:
        """Return what gives the outputs of both at the end of the backward."""

        def give(y: Tensor, leaves_ns: int = 0) -> None:
            kept, self._output = self._output, None
            if self._give is not None:
                self._give(kept, leaves_ns)
            if of_backward is not None:
                of_backward(y, leaves_ns)

        return give


class Engine:
    """Runs one rank's row of a schedule.

    Args:
        batch_weights: see `EngineSettings`.
        last: (stage, its last action that adds to its gradients) -> what is run in place of that action.
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
        self._schedule, self._comms, self._device = schedule, device.wrap_comms(comms), device
        self._rank = comms.rank
        self._describe = partial(describe_failure, comms, schedule)
        self._beat = comms.heartbeats.line(comms.world_rank)
        self._boundary, self._rows = boundary, rows
        self._comms.expect(self._messages())
        groups = weight_groups(schedule.ranks[comms.rank]) if batch_weights else {}
        self._bound = self._bind(stages, groups, last)
        self._marks: list[Any] = [None] * (3 * len(self._bound))
        self._actions = Actions.of([schedule.ranks[self._rank]], self._rank)
        self.after_action: Callable[[], None] | None = None  # set by the activation meter for its step

    def _bind(
        self,
        stages: Mapping[int, Stage],
        groups: Mapping[Action, tuple[int, ...]],
        last: Callable[[int, Run], Run],
    ) -> list[_Bound]:
        schedule, rank = self._schedule, self._rank
        row = schedule.ranks[rank]
        # 1. the ends of all transfers: between stages of this rank, from other ranks, to other ranks
        local_boxes = {action: _LocalBox() for action in row}
        inboxes = {source: self._inbox(source) for action in row if (source := remote_source(schedule, rank, action))}
        outboxes = {action: box for action in row if (box := self._outbox(action)) is not None}
        posts, completed = receives_to_post(schedule, rank), completed_sends(schedule, rank)
        # 2. where each action's input comes from, and where its output goes; of a pair with a time of its own, of both
        takes: dict[Action, Callable[[], Tensor | None] | None] = dict.fromkeys(row)
        gives: dict[Action, Give | None] = dict.fromkeys(row)
        for action in row:
            if (source := schedule.source(action)) is not None:
                takes[action] = inboxes[source].wait if source in inboxes else local_boxes[source].take
            if action in outboxes:
                gives[action] = self._checked(action, outboxes[action].send)
            elif action in schedule.consumers:
                gives[action] = local_boxes[action].put
        for action in filter(schedule.pairs.__contains__, row):
            partner = schedule.partners[action]
            pair = _PairBox(takes[action], gives[action])
            takes[action], takes[partner] = pair.both_inputs(takes[partner]), pair.input
            gives[action], gives[partner] = pair.keep, pair.both_outputs(gives[partner])
            posts[action], posts[partner] = posts[action] + posts[partner], ()
        bound = []
        for action in row:
            stage, take, give = stages[action.stage], takes[action], gives[action]
            # 3. what it runs, as the device and the sums over replicas want it
            run: Run = {Op.F: stage.forward, Op.B: stage.backward, Op.I: stage.backward, Op.W: stage.weight_gradient}[
                action.op
            ]
            if action in groups:
                run = partial(_run_group, stage, groups[action])
            run, give = self._device.bind(action, run, give)
            if action == schedule.last_gradients.get(action.stage):
                run = last(action.stage, run)
            # 4. which receives it posts, and which sends the arrival of its input completes
            posted = tuple(post for source in posts[action] if (post := inboxes[source].post) is not None)
            finished = tuple(finish for sent in completed[action] if (finish := outboxes[sent].finish) is not None)
            bound.append(_Bound(posted, take, run, action.microbatch, give, finished))
        # 5. the sends that nothing completes within the step
        done = {sent for action in row for sent in completed[action]}
        self._left = [box.finish for sent, box in outboxes.items() if sent not in done and box.finish is not None]
        return bound

    def _messages(self) -> list[Message]:
        """Return all messages of a step, between any two ranks."""
        slots, messages = assign_slots(self._schedule), []
        for action, (src, dest) in remote_links(self._schedule).items():
            size = math.prod(self._shape(action)) * self._dtype(action).itemsize
            messages.append(Message(src, dest, self._tag(action), size, slots[action]))
        return messages

    def step(self, number: int) -> StepTrace:
        """Run this rank's actions once; return their trace.

        The stages must hold the step's batch, and every rank must have ended the previous step.

        Raises:
            ActionError: an action failed, or a peer did not answer in time.
        """
        mark, marks, after = self._device.mark, self._marks, self.after_action
        beat, place, since, clock = self._beat, PLACE, SINCE, perf_counter_ns
        at = 0  # the index of the action's first mark
        now = 0  # twice the index of the action
        try:
            for posts, take, run, microbatch, give, completed in self._bound:
                # 1. post the next receives
                for post in posts:
                    post()
                # 2. wait for the input
                beat[place] = now
                marks[at] = mark()
                x = take() if take is not None else None
                marks[at + 1] = mark()
                # 3. run the action
                beat[place], beat[since] = now + 1, clock()
                y = run(microbatch, x)
                marks[at + 2] = mark()
                # 4. send the output, and complete the sends of which the input has shown that they arrived
                if give is not None:
                    give(y)
                for finish in completed:
                    finish()
                x = y = None  # frees this action's input and output before the next action
                if after is not None:
                    after()
                at += 3
                now += 2
            # 5. complete the other sends
            beat[place], beat[since] = Place.SENDING, clock()
            for finish in self._left:
                finish()
        except KeyboardInterrupt:
            raise
        except BaseException as error:  # a layer may be the user's own, and exit
            raise ActionError(self._describe(error, number)) from error
        return StepTrace(self._actions, tuple(marks), self._device.read)

    def _inbox(self, source: Action) -> Inbox:
        """Return the inbox that receives the output of `source`."""
        shape, src = self._shape(source), self._schedule.placement[source.stage]
        return self._comms.inbox(shape, src, self._tag(source), self._dtype(source))

    def _outbox(self, action: Action) -> Outbox | None:
        """Return the outbox that sends the output of `action`, or None if no other rank receives it."""
        consumer = self._schedule.consumers.get(action)
        if consumer is None or (dest := self._schedule.placement[consumer.stage]) == self._rank:
            return None
        return self._comms.outbox(self._shape(action), dest, self._tag(action), self._dtype(action))

    def _checked(self, action: Action, send: Give) -> Give:
        """Return `send` with a check that raises ValueError for a tensor of another shape or type."""
        shape, dtype = torch.Size(self._shape(action)), self._dtype(action)

        def checked(tensor: Tensor, leaves_ns: int = 0) -> None:
            if tensor.shape != shape or tensor.dtype != dtype:
                consumer = self._schedule.consumers[action]
                raise ValueError(f"made {tensor.dtype} {list(tensor.shape)}, {consumer} takes {dtype} {list(shape)}")
            send(tensor, leaves_ns)

        return checked

    def _shape(self, action: Action) -> tuple[int, ...]:
        """Return the shape of what an action gives."""
        return self._boundary.shape(self._rows[action.microbatch], _boundary_of(action))

    def _dtype(self, action: Action) -> torch.dtype:
        """Return the type of what an action gives."""
        return self._boundary.dtype(_boundary_of(action))

    def _tag(self, action: Action) -> int:
        """Return a number that is unique among the messages of the step."""
        return 2 * (action.stage * self._schedule.units + action.microbatch) + (action.op is not Op.F)


def _boundary_of(action: Action) -> int:
    """Return the stage that what an action gives enters: F enters the next stage, B is the gradient of what entered."""
    return action.stage + (action.op is Op.F)


def _run_group(stage: Stage, microbatches: Sequence[int], _microbatch: int, _x: Tensor | None) -> None:
    if microbatches:
        stage.weight_gradients(microbatches)


def describe_failure(comms: Comms, schedule: Schedule, error: BaseException, step: int | None = None) -> str:
    """Return one line about the error of a rank: at what action or place, in which step, and if it waited, for whom.

    ::

        rank 1, action 1F1, step 2: out of memory
        rank 2 waited 60 s for 1F3 from rank 1, which waits for 0F3 from rank 0, which has been in 0F3 ... (step 7)

    Ranks are counted over all replicas, as in the names of the files. `step` is None for that in the rank's heartbeat.
    """
    heartbeats, me = comms.heartbeats, comms.world_rank
    beat = heartbeats.read(me)
    step = beat.step if step is None else step
    name = heartbeats.rank_text
    where, action = beat.where(schedule, comms.rank), beat.action(schedule, comms.rank)
    if not isinstance(error, TimeoutError) or (action and not beat.waits):
        return f"{name(me)}, {'action ' if action else ''}{where}, step {step}: {in_words(error)}"
    other = awaited_rank(heartbeats, schedule, me)
    whom = "another rank" if other is None else f"{name(other)}{trail(heartbeats, schedule, other)}"
    source = schedule.source(action) if action else None
    what = f"for {source} from {whom}" if source else f"at {where} for {whom}"
    return f"{name(me)} waited {comms.timeout_s:g} s {what} (step {step})"
