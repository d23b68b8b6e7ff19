"""Sums a tensor over ranks by messages: with two between each pair of ranks, or in a ring of neighbours.

Each part of a tensor is summed once, in one order, and then sent to the others, so all ranks get the same bits.

::

    direct, 3 ranks, a tensor in 3 parts        rank 0      rank 1      rank 2
                                                a b c       a b c       a b c
    start   each sends part r to rank r         ↳ 3 a       ↳ 3 b       ↳ 3 c       through its mailboxes
    wait    r sums part r, sends it             A . .       . B .       . . C
            and receives the others             A B C       A B C       A B C

    ring, 4 ranks, a tensor in 4 parts; the number is the number of ranks whose values are summed in it

              rank 0      rank 1      rank 2      rank 3
              1 1 1 1     1 1 1 1     1 1 1 1     1 1 1 1
    turn 0    1 1 1 2     2 1 1 1     1 2 1 1     1 1 2 1      the received part is added
    turn 1    1 1 3 2     2 1 1 3     3 2 1 1     1 3 2 1
    turn 2    1 4 3 2     2 1 4 3     3 2 1 4     4 3 2 1
    turn 3    4 4 3 2     2 4 4 3     3 2 4 4     4 3 2 4      the received part is complete and is
    turn 4    4 4 3 4     4 4 4 3     3 4 4 4     4 3 4 4      copied
    turn 5    4 4 4 4     4 4 4 4     4 4 4 4     4 4 4 4

A direct sum needs no thread, and its `start` only sends: it is the fastest way if ranks share memory and every core is
busy. In a ring each rank sends 2 (N - 1) messages of one part. The time is 2 (N-1) α + 2 (N-1)/N S/β for S bytes, with
latency α and bandwidth β (Patarasuk and Yuan 2009).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor

import torch
from torch import Tensor

from microp.comms.base import Comms, Inbox, Message, Outbox, Sum, ended_now

LONGEST = 16  # bytes of the largest element type: the lengths of two parts differ by at most one element


def direct_sums(comms: Comms, sizes: Sequence[tuple[int, torch.dtype]]) -> list[Callable[[Tensor], Sum]]:
    """Return, for each tensor that is summed in a step, a function that starts its direct sum.

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
        ranks = range(self._ranks)
        lengths = [numel // self._ranks + (rank < numel % self._ranks) for rank in ranks]  # those of `tensor_split`
        mine = (lengths[self._rank],)
        owners = [rank for rank in ranks if rank != self._rank and lengths[rank]]
        others = [rank for rank in ranks if rank != self._rank and mine != (0,)]
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
        mine = self._parts[self._rank]
        came = {rank: inbox.wait() for rank, inbox in self._take.items()}
        if came:
            first, *terms = [came.get(rank, mine) for rank in range(self._ranks)]
            total = first if first is mine else first.clone()
            for term in terms:
                total = torch.add(total, term, out=mine if term is mine else total)
        for outbox in self._hand_out.values():
            outbox.send(mine)
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


class Ring:
    """Runs ring sums, of tensors of up to `nbytes`, one after the other in a thread, while the rank computes."""

    def __init__(self, comms: Comms, nbytes: int) -> None:
        self._comms = comms
        ranks, part = comms.world_size, -(-nbytes // comms.world_size) + LONGEST
        turns = range(2 * (ranks - 1))
        comms.expect(Message(rank, (rank + 1) % ranks, turn, part, turn) for turn in turns for rank in range(ranks))
        self._thread = ThreadPoolExecutor(1, initializer=self._use_device)

    def _use_device(self) -> None:
        if self._comms.device.type == "cuda":
            torch.cuda.set_device(self._comms.device)

    def start(self, tensor: Tensor) -> Sum:
        """Start to sum `tensor`, which is contiguous and of any size, over all ranks in place."""
        return _Ringing(self._thread.submit(self._sum, tensor), tensor)

    def _sum(self, tensor: Tensor) -> int:
        comms, ranks, rank = self._comms, self._comms.world_size, self._comms.rank
        parts = tensor.view(-1).tensor_split(ranks)
        for turn in range(2 * (ranks - 1)):
            out, into = parts[(rank - turn) % ranks], parts[(rank - turn - 1) % ranks]
            arriving = comms.irecv_tensor(into.shape, (rank - 1) % ranks, turn, into.dtype) if into.numel() else None
            leaving = comms.isend_tensor(out, (rank + 1) % ranks, turn) if out.numel() else None
            if arriving is not None:
                came = arriving.wait()
                into.add_(came) if turn < ranks - 1 else into.copy_(came)
            if leaving is not None:
                leaving.wait()
        return ended_now(tensor)


class _Ringing:
    """A ring sum that has been started."""

    def __init__(self, future: Future[int], tensor: Tensor) -> None:
        self._future, self._tensor, self.ended_ns = future, tensor, 0

    def wait(self) -> Tensor:
        self.ended_ns = self._future.result()
        return self._tensor
