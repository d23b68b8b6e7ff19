"""What a rank runs on: its clock and its peak memory.

::

    mark() ─ F ─ mark() ─ B ─ mark()      a mark costs next to nothing inside the step;
    read(marks) -> nanoseconds            its time is asked for after it

On a CPU a mark is the time. On CUDA and ROCm it is an event in the stream, because the
host runs ahead of the device.
"""

from __future__ import annotations

import weakref
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from time import perf_counter_ns
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.graph import saved_tensors_hooks
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from microp.comms import Comms
from microp.schedule import Action, Schedule
from microp.stage import Checkpointing, Stage

Run = Callable[[int, Tensor | None], Tensor | None]
"""What does an action: (microbatch, the tensor that came) -> the tensor that goes."""

Give = Callable[..., Any]
"""What passes an action's tensor on: (tensor, `leaves_ns` of `Outbox.send`)."""


class Workload(NamedTuple):
    """What a device is to run.

    Attributes:
        schedule: the order.
        layers: how many layers each stage has.
        rows: how many rows each microbatch has.
        checkpointing: what is recomputed.
    """

    schedule: Schedule
    layers: tuple[int, ...]
    rows: tuple[int, ...]
    checkpointing: Checkpointing


@dataclass
class DeviceSettings:
    """What a user chooses.

    Attributes:
        name: `cpu`, `cuda` (which is ROCm's name in torch, too) or `emulated`.
        threads: CPU threads a rank computes with; one keeps ranks out of each other's way
            and sums in the monolith's order.
    """

    name: str
    threads: int

    def problems(self, ranks: int) -> list[str]:
        """What is wrong on this machine for `ranks` ranks, a sentence each."""
        found = []
        if self.threads < 1:
            found.append(f"device.threads={self.threads} is below 1: use at least 1")
        if self.name == "cuda":
            gpus = torch.cuda.device_count() if torch.cuda.is_available() else 0
            if gpus == 0:
                found.append("device=cuda, but torch sees no GPU here: use device=cpu or a CUDA/ROCm build of torch")
            elif ranks > gpus:
                found.append(
                    f"ranks={ranks} is more than the {gpus} GPUs here: use at most {gpus}, a rank needs its own"
                )
        return found

    def open(self, local_rank: int, workload: Workload) -> Device:
        """The device of the rank that is `local_rank`-th on its host, for this workload."""
        torch.set_num_threads(self.threads)
        return Cuda(local_rank) if self.name == "cuda" else Cpu()


class Device(ABC):
    """Clock and memory of one rank.

    Attributes:
        torch_device: where tensors live.
        mark: takes the time, in a form that `read` turns into nanoseconds.
        overruns: how many actions took longer than they should have, where there is a should.
    """

    torch_device: torch.device
    mark: Callable[[], Any]
    overruns = 0

    def bind(self, action: Action, run: Run, give: Give | None = None) -> tuple[Run, Give | None]:
        """What the engine calls for `action`, one after the other, on this device.

        Args:
            action: one of the schedule's.
            run: what it does.
            give: what passes its tensor on, if somebody takes it.
        """
        del action
        return run, give

    def settle(self) -> None:  # noqa: B027  (most devices have nothing to settle)
        """Called before a step: what was before it is over."""

    def recompute_ns(self, row: Sequence[Action], measured: int) -> int:
        """How much of the time of `row`, a rank's actions, is recomputation, of which so much was measured."""
        del row
        return measured

    def reduced(self, stage: int, start_ns: int) -> int | None:
        """Called when the gradients of `stage` are summed over the replicas, for which all was there at `start_ns`.

        Returns:
            When that was over, where there is a should; None: as it really was.
        """
        del stage, start_ns
        return None

    def carry(self, comms: Comms) -> Comms:
        """The transport as it is between devices of this kind."""
        return comms

    @abstractmethod
    def read(self, marks: Sequence[Any]) -> list[int]:
        """The marks' times in nanoseconds, on the host's `perf_counter_ns`."""

    @abstractmethod
    def peak_memory(self, alive: Iterable[Tensor], step: Callable[[], None]) -> int:
        """Run `step` and return the most bytes of tensors alive at once during it.

        Args:
            alive: the tensors that exist before it.
            step: what to run.
        """


class Cpu(Device):
    """The host itself. A mark is the time."""

    def __init__(self) -> None:
        self.torch_device = torch.device("cpu")
        self.mark = perf_counter_ns

    def read(self, marks: Sequence[Any]) -> list[int]:
        return list(marks)

    def peak_memory(self, alive: Iterable[Tensor], step: Callable[[], None]) -> int:
        meter = MemoryMeter(alive)
        with meter:
            step()
        return meter.peak_bytes


class Cuda(Device):
    """One GPU. A mark is an event on the current stream."""

    def __init__(self, local_rank: int) -> None:
        self.torch_device = torch.device("cuda", local_rank)
        torch.cuda.set_device(self.torch_device)
        self.mark = self._event

    @staticmethod
    def _event() -> torch.cuda.Event:
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    def read(self, marks: Sequence[Any]) -> list[int]:
        anchor = self._event()
        torch.cuda.synchronize()
        now = perf_counter_ns()
        return [now - round(mark.elapsed_time(anchor) * 1e6) for mark in marks]

    def peak_memory(self, alive: Iterable[Tensor], step: Callable[[], None]) -> int:
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        step()
        torch.cuda.synchronize()
        return torch.cuda.max_memory_allocated()


class MemoryMeter(TorchDispatchMode):
    """Counts the bytes of all tensors alive: every operation's results, until they are freed.

    A context for one step, of this thread alone. Resident size would not do: it hardly
    moves, since the allocator keeps what is freed. (torch's own `MemTracker` refuses a
    layer that is called twice, as every layer of a pipeline is.)
    """

    def __init__(self, alive: Iterable[Tensor]) -> None:
        super().__init__()
        self.peak_bytes = self.bytes = 0
        self._storages: set[int] = set()
        for tensor in alive:
            self._count(tensor)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        written = set()  # an operation in place makes nothing: its result was there before, here or on another rank
        if func._schema.is_mutable:
            written = {_key(leaf) for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)}
        for leaf in tree_leaves(result):
            if isinstance(leaf, Tensor) and _key(leaf) not in written:
                self._count(leaf)
        return result

    def _count(self, tensor: Tensor) -> None:
        storage = tensor.untyped_storage()
        key, size = storage.data_ptr(), storage.nbytes()
        if size and key not in self._storages:
            self._storages.add(key)
            self.bytes += size
            self.peak_bytes = max(self.peak_bytes, self.bytes)
            weakref.finalize(storage, self._drop, key, size)

    def _drop(self, key: int, size: int) -> None:
        self._storages.discard(key)
        self.bytes -= size


class ActivationMeter(saved_tensors_hooks):
    """Counts what is alive between forwards and backwards: bytes, and microbatches in flight.

    A context for one step. Bytes are of the storages that autograd saves, of the inputs
    that checkpointed segments keep and of the gradients that wait for a W, each once, without
    weights and the batch itself.
    Autograd drops what it saved when a graph is used up, and that is when it is counted off.
    """

    def __init__(self, stages: Sequence[Stage]) -> None:
        super().__init__(self._pack, self._unpack)
        self.peak_bytes = self.peak_in_flight = 0
        self._stages = stages
        self._apart = {_key(tensor) for stage in stages for tensor in stage.tensors()}
        self._saved: Counter[int] = Counter()  # storage -> how many times autograd has it
        self._saved_bytes = 0

    def look(self) -> None:
        """Compare what is alive now with the peaks; called after every action."""
        held = {_key(x): x.untyped_storage().nbytes() for stage in self._stages for x in stage.held()}
        unsaved = sum(size for key, size in held.items() if key not in self._saved and key not in self._apart)
        self.peak_bytes = max(self.peak_bytes, self._saved_bytes + unsaved)
        self.peak_in_flight = max(self.peak_in_flight, sum(len(stage.kept) for stage in self._stages))

    def _pack(self, tensor: Tensor) -> _SavedTensor:
        saved, key, size = _SavedTensor(tensor), _key(tensor), tensor.untyped_storage().nbytes()
        if key not in self._apart:
            self._saved[key] += 1
            self._saved_bytes += size if self._saved[key] == 1 else 0
            weakref.finalize(saved, self._drop, key, size)
            self.look()
        return saved

    def _drop(self, key: int, size: int) -> None:
        self._saved[key] -= 1
        if self._saved[key] == 0:
            del self._saved[key]
            self._saved_bytes -= size

    @staticmethod
    def _unpack(saved: _SavedTensor) -> Tensor:
        return saved.tensor


class _SavedTensor:
    __slots__ = ("__weakref__", "tensor")

    def __init__(self, tensor: Tensor) -> None:
        self.tensor = tensor


def _key(tensor: Tensor) -> int:
    return tensor.untyped_storage().data_ptr()
