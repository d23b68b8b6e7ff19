"""Sums a tensor over ranks in a ring: every rank exchanges messages only with its two neighbours.

::

    4 ranks, each tensor in 4 parts; the number is the number of ranks whose values are summed in it

              rank 0      rank 1      rank 2      rank 3
              1 1 1 1     1 1 1 1     1 1 1 1     1 1 1 1
    turn 0    1 1 1 2     2 1 1 1     1 2 1 1     1 1 2 1      the received part is added
    turn 1    1 1 3 2     2 1 1 3     3 2 1 1     1 3 2 1
    turn 2    1 4 3 2     2 1 4 3     3 2 1 4     4 3 2 1
    turn 3    4 4 3 2     2 4 4 3     3 2 4 4     4 3 2 4      the received part is complete and is
    turn 4    4 4 3 4     4 4 4 3     3 4 4 4     4 3 4 4      copied
    turn 5    4 4 4 4     4 4 4 4     4 4 4 4     4 4 4 4

Each rank sends 2 (N - 1) messages of one part. The time is 2 (N-1) α + 2 (N-1)/N S/β for S bytes,
with latency α and bandwidth β (Patarasuk and Yuan 2009). Every part is summed in one order and
then copied, so all ranks get the same bits.
"""

from __future__ import annotations

from concurrent.futures import Future, ThreadPoolExecutor

import torch
from torch import Tensor

from microp.comms.base import Comms, Message, Sum, ended_now

LONGEST = 16  # bytes of the largest element type: the lengths of two parts differ by at most one element


def ring_sum(comms: Comms, tensor: Tensor) -> Tensor:
    """Sum `tensor`, which is contiguous and of any size, over all ranks in place; return it."""
    ranks, rank = comms.world_size, comms.rank
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
    return tensor


class Ring:
    """Runs ring sums one after the other in a separate thread, while the rank computes.

    Args:
        comms: the transport between the ranks.
        nbytes: the size of the largest tensor in bytes; its messages then use mailboxes. 0 if unknown.
    """

    def __init__(self, comms: Comms, nbytes: int = 0) -> None:
        self._comms = comms
        ranks, part = comms.world_size, -(-nbytes // comms.world_size) + LONGEST
        turns = range(2 * (ranks - 1) if nbytes else 0)
        comms.expect(Message(rank, (rank + 1) % ranks, turn, part, turn) for turn in turns for rank in range(ranks))
        self._thread = ThreadPoolExecutor(1, initializer=self._use_device)

    def _use_device(self) -> None:
        if self._comms.device.type == "cuda":
            torch.cuda.set_device(self._comms.device)

    def start(self, tensor: Tensor) -> Sum:
        """Start to sum `tensor` over all ranks in place."""
        return _Ringing(self._thread.submit(self._sum, tensor))

    def _sum(self, tensor: Tensor) -> tuple[Tensor, int]:
        return ring_sum(self._comms, tensor), ended_now(tensor)


class _Ringing:
    """A ring sum that has been started."""

    def __init__(self, future: Future[tuple[Tensor, int]]) -> None:
        self._future, self.ended_ns = future, 0

    def wait(self) -> Tensor:
        tensor, self.ended_ns = self._future.result()
        return tensor
