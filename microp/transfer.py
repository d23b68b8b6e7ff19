"""How a tensor gets from one rank to another: four rules of one mechanism.

A message leaves its producer, which ended at `done`, and takes a hop. A rule says when the
sender's rank is free again, and when the receiver holds the tensor:

| rule         | sender is free | receiver holds it at                     | as in                     |
|---|---|---|---|
| Asynchronous | done           | done + hop                               | the papers' formulas      |
| SenderBusy   | done + hop     | done + hop                               | a copy by the sender      |
| SerialLink   | done           | max(done, link idle) + hop               | a cable                   |
| Rendezvous   | done           | max(done, receiver at its receive) + hop | receives that are not posted early |

The pictures send two tensors; `~` is a tensor on its way.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

Moment = tuple[Any, int]  # a time, and the position of the action that made it no earlier


def later(moment: Moment, by: Any) -> Moment:
    """The moment `by` after `moment`, for the same reason."""
    return moment[0] + by, moment[1]


@dataclass(frozen=True)
class Transfer:
    """A rule. What a subclass leaves alone is a pure delay."""

    def send(self, done: Moment, idle: Moment, hop: Any) -> tuple[Moment, Moment]:
        """When the sender's rank is free again, and when its message is there.

        Args:
            done: when the tensor was made.
            idle: when the last message of this direction of the link was there.
            hop: how long a transfer takes.
        """
        return done, (done[0] + hop, done[1])

    def receive(self, asked: Moment, there: Moment, hop: Any) -> Moment:
        """When the receiver holds the tensor.

        Args:
            asked: when its rank had nothing else to do before it.
            there: what `send` said.
            hop: how long a transfer takes.
        """
        return there


@dataclass(frozen=True)
class Asynchronous(Transfer):
    """The sender goes on at once, and tensors travel side by side.

    ::

        sender     |F0|F1|
                      |~F0~~|
                         |~F1~~|
        receiver    .  .  . |F0|F1|
    """


@dataclass(frozen=True)
class SenderBusy(Transfer):
    """The sender's rank does nothing else during the transfer.

    ::

        sender     |F0|~F0~~|F1|~F1~~|
        receiver    .  .  . |F0| .  . |F1|
    """

    def send(self, done: Moment, idle: Moment, hop: Any) -> tuple[Moment, Moment]:
        there = later(done, hop)
        return there, there


@dataclass(frozen=True)
class SerialLink(Transfer):
    """One direction of a link carries one tensor at a time, in the order in which they are made.

    ::

        sender     |F0|F1|
                      |~F0~~|~F1~~|
        receiver    .  .  . |F0| . |F1|
    """

    def send(self, done: Moment, idle: Moment, hop: Any) -> tuple[Moment, Moment]:
        return done, later(max(done, idle), hop)


@dataclass(frozen=True)
class Rendezvous(Transfer):
    """A transfer begins when the tensor is made and the receiver has come to its receive.

    No transfer hides behind the receiver's work. The sender goes on at once: if it stopped
    until the receiver came, two ranks that both send before they receive, as neighbours do
    in 1F1B, would wait for ever.

    ::

        sender     |F0|F1|
        receiver    . |~F0~~|F0|~F1~~|F1|
    """

    def send(self, done: Moment, idle: Moment, hop: Any) -> tuple[Moment, Moment]:
        return done, done

    def receive(self, asked: Moment, there: Moment, hop: Any) -> Moment:
        return later(max(asked, there), hop)


TRANSFERS: dict[str, Transfer] = {
    "asynchronous": Asynchronous(),
    "sender_busy": SenderBusy(),
    "serial_link": SerialLink(),
    "rendezvous": Rendezvous(),
}
