"""GPUs that are none: they run nothing until the host waits, so that a missing wait shows as a wrong number.

::

    host      y = layer(x)      send(y)                   recv(x), wait        settle
    queues    compute: layer    link: wait layer, send    compute: wait recv   now they run, if the waits let them

Tensors are the CPU's. An operation on them only makes its result, full of NaN (integers: 0), and puts itself into the
queue of the compute stream; a transfer puts itself into the queue of its communicator. What the host then waits for is
run, and what that waits for, and nothing else. `Gpu` has the names of `torch.cuda` that microp uses, `Group` those of
a process group of NCCL: no tags, one queue per communicator, and a first use for which each end waits for the other.
`HostComms` is a transport of tensors in the host's memory.
"""

from __future__ import annotations

import threading
import time
from collections import defaultdict
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes
from torch.utils._pytree import tree_leaves, tree_map_only

from microp.comms import Comms, ThreadComms
from microp.comms.base import PostedReceive, PostedSend

ACTION_MS = 1.0  # of each operation, on the GPU's own clock


class NotReadyError(RuntimeError):
    """The host read what the GPU has not made yet."""


class World:
    """The GPUs of a test and the links between them."""

    def __init__(self, timeout_s: float = 3.0) -> None:
        self.timeout_s = timeout_s
        self.changed = threading.Condition(threading.RLock())
        self.ends: dict[Any, dict[str, list[End]]] = defaultdict(lambda: {"send": [], "recv": []})
        self.opened: dict[Any, set[int]] = defaultdict(set)
        self.dropped: list[str] = []  # transfers whose tensor the allocator could have given away under way


class End(NamedTuple):
    """One end of a transfer: its stream, how many operations that has done after it, and its tensor."""

    stream: Stream
    place: int
    tensor: Tensor


class Stream:
    """A queue of operations, each of which returns whether it could run."""

    def __init__(self, world: World) -> None:
        self.world, self.queue, self.done, self.now, self.runs = world, [], 0, 0.0, False

    def put(self, operation: Callable[[], bool]) -> int:
        """Append an operation; return how many operations have been done once it has."""
        with self.world.changed:
            self.queue.append(operation)
            self.world.changed.notify_all()
            return len(self.queue)

    def run(self, upto: int) -> bool:
        """Run the first `upto` operations as far as they can run; return whether all of them have."""
        if self.done >= upto:
            return True
        if self.runs:  # what it waits for waits for it
            return False
        self.runs = True
        try:
            while self.done < upto and self.queue[self.done]():
                self.done += 1
        finally:
            self.runs = False
        return self.done >= upto

    def wait_event(self, event: Event) -> None:
        def wait() -> bool:
            if not event.stream.run(event.place):
                return False
            self.now = max(self.now, event.ms)
            return True

        self.put(wait)


class Event:
    def __init__(self, gpu: Gpu) -> None:
        self._gpu, self.ms = gpu, 0.0

    def record(self, stream: Stream | None = None) -> None:
        self.stream = stream or self._gpu.compute

        def reached() -> bool:
            self.ms = self.stream.now
            return True

        self.place = self.stream.put(reached)

    def query(self) -> bool:
        with self._gpu.world.changed:
            return self._gpu.look(self, 0.0)

    def synchronize(self) -> None:
        if not self._gpu.look(self, self._gpu.world.timeout_s):
            raise TimeoutError("the host waits for ever")

    def elapsed_time(self, other: Event) -> float:
        if self.stream.done < self.place or other.stream.done < other.place:
            raise NotReadyError("both events must have been reached")
        return other.ms - self.ms


class Gpu(TorchDispatchMode):
    """One GPU, with the names of `torch.cuda`; operations of the thread that has entered it run on it.

    It counts as `waits` how often the host has waited for work that had not been done.
    """

    def __init__(self, world: World) -> None:
        super().__init__()
        self.world, self.compute, self.waits = world, Stream(world), 0
        self.links: dict[Any, Stream] = {}  # communicator -> its stream
        self.peaks, self._awaited = (0, 0), None
        self._hosts: dict[int, Tensor] = {}  # address -> a tensor in the host's memory

    def Event(self, enable_timing: bool = False) -> Event:  # noqa: N802 (as in torch.cuda)
        return Event(self)

    def set_device(self, device: torch.device) -> None:
        self.device = device

    def reset_peak_memory_stats(self) -> None:
        self.peaks = (3 << 20, 4 << 20)

    max_memory_allocated = lambda self: self.peaks[0]  # noqa: E731
    max_memory_reserved = lambda self: self.peaks[1]  # noqa: E731

    def look(self, event: Event, timeout_s: float) -> bool:
        """Run what the event comes after; return whether it has been reached."""
        give_up = time.monotonic() + timeout_s
        with self.world.changed, _disable_current_modes(), torch.no_grad():
            if event is not self._awaited and event.stream.done < event.place - 1:  # an event alone is no work
                self._awaited = event
                self.waits += 1
            while not event.stream.run(event.place):
                if not self.world.changed.wait(give_up - time.monotonic()) and time.monotonic() > give_up:
                    return False
            self.world.changed.notify_all()
            return True

    def on_host(self, tensor: Tensor) -> Tensor:
        """Note that a tensor is in the host's memory, so that operations on such tensors alone are run at once."""
        self._hosts[tensor.untyped_storage().data_ptr()] = tensor
        return tensor

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func is torch.ops.aten._local_scalar_dense.default:
            now = Event(self)
            now.record()
            now.synchronize()
            return func(*args, **kwargs)
        given = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)]
        if given and all(tensor.untyped_storage().data_ptr() in self._hosts for tensor in given):
            return tree_map_only(Tensor, self.on_host, func(*args, **kwargs))
        returns, writes = func._schema.returns, func._schema.is_mutable
        if not writes and any(each.alias_info is not None for each in returns):  # a view
            return func(*args, **kwargs)
        inside = tree_map_only(Tensor, lambda tensor: tensor.data, (args, kwargs))  # autograd does not see the writes
        if writes:
            self._enqueue(lambda: func(*inside[0], **inside[1]))
            found = [_written(func, each, args, kwargs) for each in returns]
            return found[0] if len(found) == 1 else tuple(found) or None
        result = func(*args, **kwargs)
        made = [leaf.data for leaf in tree_leaves(result) if isinstance(leaf, Tensor)]
        for tensor in made:
            tensor.fill_(float("nan") if tensor.is_floating_point() else 0)

        def run() -> None:
            again = [leaf for leaf in tree_leaves(func(*inside[0], **inside[1])) if isinstance(leaf, Tensor)]
            for old, new in zip(made, again, strict=True):
                old.copy_(new)

        self._enqueue(run)
        return result

    def _enqueue(self, run: Callable[[], Any]) -> None:
        def operation() -> bool:
            run()
            self.compute.now += ACTION_MS
            return True

        self.compute.put(operation)


def _written(func: Any, returned: Any, args: Any, kwargs: Any) -> Any:
    for place, argument in enumerate(func._schema.arguments):
        if argument.alias_info is not None and argument.alias_info.before_set & returned.alias_info.before_set:
            return args[place] if place < len(args) else kwargs[argument.name]
    raise AssertionError(f"{func} returns none of its arguments")


class Group:
    """A process group of NCCL as one rank sees it; both ends of a link give its name."""

    def __init__(self, gpu: Gpu, rank: int, name: str) -> None:
        self._gpu, self._rank, self._name = gpu, rank, name

    def send(self, tensors: list[Tensor], dest: int, tag: int) -> Work:
        return self._enqueue("send", tensors[0], dest)

    def recv(self, tensors: list[Tensor], src: int, tag: int) -> Work:
        return self._enqueue("recv", tensors[0], src)

    def _enqueue(self, side: str, tensor: Tensor, peer: int) -> Work:
        world, pair = self._gpu.world, (self._name, frozenset((self._rank, peer)))
        stream = self._gpu.links.setdefault(pair, Stream(world))
        self._open(pair)
        before, after = Event(self._gpu), Event(self._gpu)
        before.record()
        stream.wait_event(before)
        src, dest = (self._rank, peer) if side == "send" else (peer, self._rank)
        ends, number = world.ends[self._name, src, dest], 0

        def transfer() -> bool:
            if not all(len(each) > number for each in ends.values()):
                return False
            out, into = ends["send"][number], ends["recv"][number]
            other, place, _ = into if side == "send" else out
            if other.done < place and not other.run(place - 1):
                return False
            assert out.tensor.shape == into.tensor.shape
            into.tensor.copy_(out.tensor)
            stream.now = other.now = max(stream.now, other.now)
            other.done = max(other.done, place)
            return True

        with world.changed:
            number = len(ends[side])
            ends[side].append(End(stream, len(stream.queue) + 1, tensor.data))
            stream.put(transfer)
        after.record(stream)
        return Work(self._gpu, after, f"rank {self._rank} {side} {number} of {src}-{dest}", tensor)

    def _open(self, pair: Any) -> None:
        """Wait until both ends use the communicator for the first time."""
        world = self._gpu.world
        with world.changed:
            world.opened[pair].add(self._rank)
            world.changed.notify_all()
            if not world.changed.wait_for(lambda: len(world.opened[pair]) == 2, world.timeout_s):
                raise TimeoutError(f"rank {self._rank} waits for ever for the other end of {sorted(pair[1])}")


class Work:
    """A transfer under way, whose tensor is kept until the compute stream has been told to wait for it."""

    def __init__(self, gpu: Gpu, after: Event, name: str, tensor: Tensor) -> None:
        self._gpu, self._after, self._name, self._tensor = gpu, after, name, tensor
        self._waited = False

    def wait(self) -> None:
        self._gpu.compute.wait_event(self._after)
        self._waited = True

    def __del__(self) -> None:
        if not self._waited:
            self._gpu.world.dropped.append(self._name)


class HostComms(Comms):
    """A transport between threads that moves tensors of the host's memory, at once."""

    def __init__(self, threads: ThreadComms, gpu: Gpu) -> None:
        self.rank, self.world_size = threads.rank, threads.world_size
        self.device, self.timeout_s = threads.device, threads.timeout_s
        self._threads, self._gpu = threads, gpu

    def outbox(self, shape: Any, dest: int, tag: int, dtype: torch.dtype) -> PostedSend:
        def start(tensor: Tensor) -> Any:
            with _disable_current_modes():
                return self._threads.isend_tensor(tensor, dest, tag)

        return PostedSend(start)

    def inbox(self, shape: Any, src: int, tag: int, dtype: torch.dtype) -> PostedReceive:
        return PostedReceive(lambda: Received(self._threads.irecv_tensor(shape, src, tag, dtype), self._gpu))

    def all_reduce(self, tensor: Tensor, op: str = "sum") -> Tensor:
        with _disable_current_modes():
            return self._threads.all_reduce(tensor, op)

    def all_gather(self, value: Any) -> list[Any]:
        return self._threads.all_gather(value)

    def barrier(self) -> None:
        self._threads.barrier()

    def close(self) -> None:
        self._threads.close()


class Received(NamedTuple):
    pending: Any
    gpu: Gpu

    def wait(self) -> Tensor:
        with _disable_current_modes():
            return self.gpu.on_host(self.pending.wait())
