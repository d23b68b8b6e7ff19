"""Link models: four rules for how a tensor gets from one rank to another.

A message leaves its producer at `done`, the producer's end, and takes one hop. A rule gives the
moment when the sender's rank is free again, and the moment when the receiver holds the tensor:

| rule         | sender is free | receiver holds it at                     | as in                     |
|---|---|---|---|
| LinkModel    | done           | done + hop                               | the papers' formulas      |
| SenderBusy   | done + hop     | done + hop                               | a copy by the sender      |
| SerialLink   | done           | max(done, link idle) + hop               | a cable                   |
| Rendezvous   | done           | max(done, receiver at its receive) + hop | receives that are not posted early |

The pictures show the transfer of two tensors; `~` is a tensor on its way.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

Moment = tuple[Any, int]  # a time, and the position of the action that caused it


def later(moment: Moment, by: Any) -> Moment:
    """Return the moment `by` after `moment`, with the same cause."""
    return moment[0] + by, moment[1]


@dataclass(frozen=True)
class LinkModel:
    """A rule for the times of a hop; this one is asynchronous, a pure delay.

    The sender continues at once, and any number of tensors travel at the same time.

    ::

        sender     |F0|F1|
                      |~F0~~|
                         |~F1~~|
        receiver    .  .  . |F0|F1|
    """

    def send(self, done: Moment, idle: Moment, hop: Any) -> tuple[Moment, Moment]:
        """Return when the sender's rank is free again, and when its message arrives.

        Args:
            done: when the tensor was made.
            idle: when the last message in this direction of the link arrived.
            hop: how long a transfer takes.
        """
        return done, (done[0] + hop, done[1])

    def receive(self, wait_start: Moment, arrival: Moment, hop: Any) -> Moment:
        """Return when the receiver holds the tensor.

        Args:
            wait_start: when the receiver's rank began to wait for it.
            arrival: when it arrives, as `send` returned it.
            hop: how long a transfer takes.
        """
        return arrival


@dataclass(frozen=True)
class SenderBusy(LinkModel):
    """The sender's rank does nothing else during the transfer.

    ::

        sender     |F0|~F0~~|F1|~F1~~|
        receiver    .  .  . |F0| .  . |F1|
    """

    def send(self, done: Moment, idle: Moment, hop: Any) -> tuple[Moment, Moment]:
        arrival = later(done, hop)
        return arrival, arrival


@dataclass(frozen=True)
class SerialLink(LinkModel):
    """One direction of a link carries one tensor at a time, in the order in which they are made.

    ::

        sender     |F0|F1|
                      |~F0~~|~F1~~|
        receiver    .  .  . |F0| . |F1|
    """

    def send(self, done: Moment, idle: Moment, hop: Any) -> tuple[Moment, Moment]:
        return done, later(max(done, idle), hop)


@dataclass(frozen=True)
class Rendezvous(LinkModel):
    """A transfer begins when the tensor is made and the receiver has reached its receive.

    The receiver's work hides no transfer. The sender continues at once: if it waited for the
    receiver, two ranks that both send before they receive, as neighbours do in 1F1B, would
    deadlock.

    ::

        sender     |F0|F1|
        receiver    . |~F0~~|F0|~F1~~|F1|
    """

    def send(self, done: Moment, idle: Moment, hop: Any) -> tuple[Moment, Moment]:
        return done, done

    def receive(self, wait_start: Moment, arrival: Moment, hop: Any) -> Moment:
        return later(max(wait_start, arrival), hop)


LINK_MODELS: dict[str, LinkModel] = {
    "asynchronous": LinkModel(),
    "sender_busy": SenderBusy(),
    "serial_link": SerialLink(),
    "rendezvous": Rendezvous(),
}
