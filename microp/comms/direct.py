"""Sums a tensor over ranks with two messages between each pair: each rank sums one part and sends the result.

::

    3 ranks, a tensor in 3 parts        rank 0      rank 1      rank 2
                                        a b c       a b c       a b c
    start   each sends part r to r      ↳ 3 a       ↳ 3 b       ↳ 3 c       through its mailboxes
    wait    r sums part r, sends it     A . .       . B .       . . C
            and receives the others     A B C       A B C       A B C

`start` only sends, so it returns at once. The ranks add up the parts themselves, without a
thread: this is the fastest way if they share memory and every core is busy. Each part is summed
once, in rank order, so all ranks get the same bits.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import torch
from torch import Tensor

from microp.comms.base import Comms, Inbox, Message, Outbox, Sum, ended_now


def direct_sums(comms: Comms, sizes: Sequence[tuple[int, torch.dtype]]) -> list[Callable[[Tensor], Sum]]:
    """Return, for each tensor that is summed in a step, a function that starts its sum.

    All ranks must pass the same sizes (number of elements, type) in the same order.
    """
    ends = [(src, dest) for src in range(comms.world_size) for dest in range(comms.world_size) if src != dest]
    messages = []
    for number, (numel, dtype) in enumerate(sizes):
        part = -(-numel // comms.world_size) * dtype.itemsize
        messages += [Message(*link, tag, part, tag) for link in ends for tag in (2 * number, 2 * number + 1)]
    comms.expect(messages)
    return [_Direct(comms, number, *size).start for number, size in enumerate(sizes)]


class _Direct:
    """The outboxes and inboxes for the sum of one tensor."""

    def __init__(self, comms: Comms, number: int, numel: int, dtype: torch.dtype) -> None:
        self._rank, self._ranks = comms.rank, comms.world_size
        every = range(self._ranks)
        lengths = [numel // self._ranks + (rank < numel % self._ranks) for rank in every]  # those of `tensor_split`
        mine = (lengths[self._rank],)
        owners = [rank for rank in every if rank != self._rank and lengths[rank]]
        others = [rank for rank in every if rank != self._rank and mine != (0,)]
        parts, sums = 2 * number, 2 * number + 1
        self._give: dict[int, Outbox] = {rank: comms.outbox((lengths[rank],), rank, parts, dtype) for rank in owners}
        self._take: dict[int, Inbox] = {rank: comms.inbox(mine, rank, parts, dtype) for rank in others}
        self._hand_out: dict[int, Outbox] = {rank: comms.outbox(mine, rank, sums, dtype) for rank in others}
        self._done: dict[int, Inbox] = {rank: comms.inbox((lengths[rank],), rank, sums, dtype) for rank in owners}
        self.ended_ns = 0

    def start(self, tensor: Tensor) -> Sum:
        """Start to sum the one-dimensional `tensor` over all ranks in place."""
        self._tensor, self._parts = tensor, tensor.tensor_split(self._ranks)
        _post(self._take.values())
        for rank, outbox in self._give.items():
            outbox.send(self._parts[rank])
        return self

    def wait(self) -> Tensor:
        _post(self._done.values())  # after the parts of all tensors: a link without tags keeps the order of the sends
        own = self._parts[self._rank]
        came = {rank: inbox.wait() for rank, inbox in self._take.items()}
        if came:
            first, *terms = [came.get(rank, own) for rank in range(self._ranks)]
            total = first if first is own else first.clone()
            for term in terms:
                total = torch.add(total, term, out=own if term is own else total)
        for outbox in self._hand_out.values():
            outbox.send(own)
        for rank, inbox in self._done.items():
            self._parts[rank].copy_(inbox.wait())
        for outbox in (*self._give.values(), *self._hand_out.values()):
            if outbox.finish is not None:
                outbox.finish()
        self.ended_ns = ended_now(self._tensor)
        return self._tensor


def _post(inboxes: Iterable[Inbox]) -> None:
    for inbox in inboxes:
        if inbox.post is not None:
            inbox.post()
