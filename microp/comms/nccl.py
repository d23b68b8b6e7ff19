"""The transport between GPUs over NCCL (RCCL on ROCm), whose transfers the GPU waits for and not the host.

::

    host             F0  send  F1  send  wait, B0            it enqueues and goes on
    compute stream   F0 ──┬─── F1 ──┬─── ┬ B0                waits for what a transfer has brought
    group `up`            └► 0 ─────└► 1 │                   a stream per pair of ranks
    group `down`                  0 ─────┘

NCCL has no tags and runs the transfers of one communicator one after the other. Each direction therefore has its own
group, and in it torch makes a communicator and a stream per pair of ranks; the receives of a link are posted in the
order of the peer's sends (`receives_to_post`). With `device_id` a group would have one communicator for all pairs, in
which a receive that is posted early blocks a send.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import timedelta
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor

from microp.comms.base import Inbox, Message, Outbox, Pending, PostedReceive, PostedSend, Sum
from microp.comms.group import GroupComms, in_our_words
from microp.comms.hosts import Hosts

GRACE_S = 10.0  # after a time-out until torch ends the process itself, so that the rank can say what it waited for


class NcclComms(GroupComms):
    """A `GroupComms` over NCCL. `wait()` of a transfer lets the current stream wait, and returns at once."""

    library = "nccl"

    @staticmethod
    def own_timeout(timeout_s: float) -> timedelta:
        return timedelta(seconds=timeout_s + GRACE_S)

    def __init__(self, device: torch.device, timeout_s: float, group: Any = None, hosts: Hosts | None = None) -> None:
        super().__init__(device, timeout_s, group, hosts)
        members, own_timeout = dist.get_process_group_ranks(self.group), self.own_timeout(timeout_s)
        self._up, self._down = (
            dist.new_group(members, timeout=own_timeout, use_local_synchronization=True) for _ in range(2)
        )

    def expect(self, messages: Iterable[Message]) -> None:
        """Open the communicators of the step's links, in the same order on all ranks.

        The first transfer of a link opens its communicator, for which the host waits until the peer does the same. In a
        step, two ranks would wait for each other: one for an input that the other sends after what it waits for.
        """
        for src, dest in sorted({(message.src, message.dest) for message in messages}):
            if self.rank == src:
                self.isend_tensor(torch.zeros(1, device=self.device), dest).wait()
            elif self.rank == dest:
                self.irecv_tensor([1], src).wait()

    def outbox(self, shape: Sequence[int], dest: int, tag: int, dtype: torch.dtype) -> Outbox:
        def start(tensor: Tensor) -> Pending:
            tensor = tensor.contiguous()
            group = self._up if self.rank < dest else self._down
            with in_our_words(self.timeout_s, self.names[dest]):
                return _Enqueued(group.send([tensor], dest, 0), tensor)

        return PostedSend(start)

    def inbox(self, shape: Sequence[int], src: int, tag: int, dtype: torch.dtype) -> Inbox:
        def start() -> Pending:  # each time a new tensor: the GPU's allocator reuses memory in the order of its stream
            tensor = torch.empty(tuple(shape), dtype=dtype, device=self.device)
            group = self._up if src < self.rank else self._down
            with in_our_words(self.timeout_s, self.names[src]):
                return _Enqueued(group.recv([tensor], src, 0), tensor)

        return PostedReceive(start)

    def iall_reduce(self, tensor: Tensor) -> Sum:
        return _Enqueued(dist.all_reduce(tensor, group=self.group, async_op=True), tensor)

    def barrier(self) -> None:
        with in_our_words(self.timeout_s, "another rank"):
            dist.barrier(device_ids=[self.device.index])

    def close(self) -> None:
        self._up = self._down = None
        super().close()


class _Enqueued(NamedTuple):
    """A transfer or a sum on a stream of NCCL's, which keeps the tensor alive until `wait()`."""

    work: Any
    tensor: Tensor
    ended_ns: int = 0  # only the device knows it

    def wait(self) -> Tensor:
        self.work.wait()  # with a time-out the host would wait, and look once per millisecond
        return self.tensor
