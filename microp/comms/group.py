"""The transport between processes over a `torch.distributed` process group: gloo, and what NCCL has in common.

The library counts the time-out itself, by the clock, which Ctrl-Z does not stop.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from functools import partial
from time import perf_counter_ns
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from microp.comms import base
from microp.comms.hosts import Hosts

_CANARY = torch.frombuffer(bytearray(b"microp\xf4\x7f"), dtype=torch.uint8)


class GroupComms(base.Comms):
    """The transport between processes over a `torch.distributed` process group; None for all processes.

    `hosts` are those of all processes, which messages name if they are several.
    """

    library = "gloo"  # torch's name of what moves the tensors

    @staticmethod
    def own_timeout(timeout_s: float) -> timedelta:
        """Return the library's own time-out, for waits of at most `timeout_s`."""
        return timedelta(seconds=timeout_s)

    def __init__(self, device: torch.device, timeout_s: float, group: Any = None, hosts: Hosts | None = None) -> None:
        self.rank, self.world_size = dist.get_rank(group), dist.get_world_size(group)
        self.device, self.timeout_s = device, timeout_s
        self.group: Any = group or dist.group.WORLD
        self.names = [f"rank {rank}" for rank in range(self.world_size)]
        if hosts and hosts.are_several:
            self.names = [hosts.rank_text(rank) for rank in dist.get_process_group_ranks(self.group)]
        self._buffers: dict[tuple[int, int], Tensor] = {}  # (source, tag) -> the receive buffer

    def expect(self, messages: Iterable[base.Message]) -> None:
        """Allocate the receive buffers of a step, one per mailbox of the schedule."""
        mine = [message for message in messages if message.dest == self.rank]
        pool = {key: torch.empty(nbytes, dtype=torch.uint8) for key, nbytes in base.mailbox_sizes(mine).items()}
        self._buffers = {(src, tag): pool[src, dest, slot] for src, dest, tag, _, slot in mine}

    def is_received(self, address: int) -> bool:
        buffers = self._buffers.values()
        return any(buffer.data_ptr() <= address < buffer.data_ptr() + buffer.nbytes for buffer in buffers)

    def outbox(self, shape: Sequence[int], dest: int, tag: int, dtype: torch.dtype) -> base.Outbox:
        send = partial(self._start, self.group.send, dest, tag)
        return base.PostedSend(lambda tensor: send(tensor.contiguous()))

    def inbox(self, shape: Sequence[int], src: int, tag: int, dtype: torch.dtype) -> base.Inbox:
        """Return an inbox. The size of what was announced in `expect` is checked by its sender, so without a canary."""
        receive = partial(self._start, self.group.recv, src, tag)
        if (src, tag) in self._buffers:
            return base.PostedReceive(partial(receive, base.view_of(self._buffers[src, tag], shape, dtype)))

        def start() -> base.Pending:
            tensor = torch.empty(tuple(shape), dtype=dtype, device=self.device)
            return receive(tensor, _with_canary(tensor))

        return base.PostedReceive(start)

    def _start(
        self, transfer: Callable[..., Any], peer: int, tag: int, tensor: Tensor, canary: Tensor | None = None
    ) -> base.Pending:
        """Start to send to a peer or to receive from it."""
        try:
            work = transfer([tensor], peer, tag)
        except RuntimeError as error:  # the connection has been closed already
            raise peer_error(error, self.timeout_s, self.names[peer]) from error
        return _Transfer(self, work, tensor, self.names[peer], canary)

    def all_reduce(self, tensor: Tensor, op: str = "sum") -> Tensor:
        base.check_reduction(op)
        with in_our_words(self.timeout_s, "another rank"):
            dist.all_reduce(tensor, getattr(dist.ReduceOp, op.upper()), group=self.group)
        return tensor

    def iall_reduce(self, tensor: Tensor) -> base.Sum:
        work = dist.all_reduce(tensor, group=self.group, async_op=True)
        return _Sum(self, work, tensor, self.names[(self.rank + 1) % self.world_size])

    def all_gather(self, value: Any) -> list[Any]:
        text = bytearray(json.dumps(value).encode())
        lengths = [int(length) for length in self._gather(torch.tensor([len(text)]))]
        texts = self._gather(torch.frombuffer(text.ljust(max(lengths)), dtype=torch.uint8))
        return [json.loads(text[:length].numpy().tobytes()) for text, length in zip(texts, lengths, strict=True)]

    def _gather(self, tensor: Tensor) -> list[Tensor]:
        """Return the tensor of every rank, all of one size."""
        mine = tensor.to(self.device)
        gathered = [torch.empty_like(mine) for _ in range(self.world_size)]
        with in_our_words(self.timeout_s, "another rank"):
            dist.all_gather(gathered, mine, group=self.group)
        return [each.cpu() for each in gathered]

    def barrier(self) -> None:
        with in_our_words(self.timeout_s, "another rank"):
            dist.barrier()

    def close(self) -> None:
        self.barrier()  # no rank closes a connection that another rank still uses
        # Dropping the groups ends their threads here, and not when the interpreter exits.
        if isinstance(self.replica_group, GroupComms):
            self.replica_group.drop()
        self.drop()
        self.replica_group = None
        dist.destroy_process_group()

    def drop(self) -> None:
        """Forget the group."""
        self.group = None


def _with_canary(buffer: Tensor) -> Tensor | None:
    """Write a signalling NaN into the last element of a buffer and return the bytes of that element.

    A complete message overwrites it; of a shorter one gloo reports no error. (A message that ends in exactly these bits
    is refused. Elements of less than 4 bytes have too few bits for a distinct pattern and are not checked: None.)
    """
    if not buffer.numel() or buffer.element_size() < 4:
        return None
    return buffer.view(-1)[-1:].view(torch.uint8).copy_(_CANARY[-buffer.element_size() :])


@contextmanager
def in_our_words(timeout_s: float, peer: str) -> Iterator[None]:
    """Raise TimeoutError and ConnectionError for the RuntimeError of torch, whose text names a file of gloo's."""
    try:
        yield
    except RuntimeError as error:
        raise peer_error(error, timeout_s, peer) from error


def peer_error(error: BaseException, timeout_s: float, peer: str) -> TimeoutError | ConnectionError:
    """Return the TimeoutError or ConnectionError that an error of torch.distributed stands for."""
    if "imed out" in str(error) or "timeout" in str(error):
        return TimeoutError(f"waited {timeout_s:g} s for {peer}")
    return ConnectionError(f"lost {peer}: the connection was closed")


class _Transfer:
    """A torch.distributed transfer; keeps its tensor alive, as gloo requires."""

    def __init__(self, comms: GroupComms, work: Any, tensor: Tensor, peer: str, canary: Tensor | None = None) -> None:
        self._comms, self._work, self._tensor, self._peer, self._canary = comms, work, tensor, peer, canary

    def wait(self) -> Tensor:
        with in_our_words(self._comms.timeout_s, self._peer):
            self._work.wait(self._comms.own_timeout(self._comms.timeout_s))
        if self._canary is not None and torch.equal(self._canary, _CANARY[-len(self._canary) :]):
            raise ConnectionError(
                f"{self._peer} sent fewer bytes than the {self._tensor.nbytes} of shape {list(self._tensor.shape)}"
            )
        return self._tensor


class _Sum(_Transfer):
    """A torch.distributed reduction, which may complete long before `wait()` is called."""

    def __init__(self, comms: GroupComms, work: Any, tensor: Tensor, peer: str) -> None:
        super().__init__(comms, work, tensor, peer)
        self.ended_ns = 0
        work.get_future().then(self._stamp)

    def _stamp(self, _: Any) -> None:
        self.ended_ns = perf_counter_ns()

    def wait(self) -> Tensor:
        tensor = super().wait()
        if not self.ended_ns:  # another thread writes the stamp, perhaps later
            self.ended_ns = perf_counter_ns()
        return tensor
