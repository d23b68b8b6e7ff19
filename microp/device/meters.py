"""Meters of memory, exact in bytes: one for all live tensors, one for the activations stored for the backward."""

from __future__ import annotations

import weakref
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from torch import Tensor
from torch.autograd.graph import saved_tensors_hooks
from torch.utils._python_dispatch import TorchDispatchMode

from microp.model import Stage, memory_of


class MemoryMeter(TorchDispatchMode):
    """Counts the bytes of all live tensors: what every operation is given and makes, until it is freed.

    A context manager for one step, which sees only this thread. The resident size cannot be used:
    it hardly changes, because the allocator keeps freed memory. (torch's own `MemTracker` rejects a
    layer that is called twice, as every layer of a pipeline is.)

    Args:
        alive: the tensors that exist before the step.
        is_received: whether an address lies in a transport's memory for received tensors, which torch's allocator
            does not know.

    Attributes:
        peak_bytes: the largest sum of all live tensors.
        peak_allocated_bytes: the largest sum without received ones.
    """

    def __init__(self, alive: Iterable[Tensor], is_received: Callable[[int], bool] = lambda _: False) -> None:
        super().__init__()
        self.peak_bytes = self.bytes = self.peak_allocated_bytes = self.received_bytes = 0
        self._is_received = is_received
        self._storages: set[int] = set()
        for tensor in alive:
            self._count(tensor)

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # nothing is compiled here, and to say so to torch's compiler would import it

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if func._schema.is_mutable:  # it allocates nothing: what it writes existed, here or on another rank
            return result
        for tensor in _tensors(args, kwargs, result):  # a tensor from another rank is the result of no operation
            self._count(tensor)
        return result

    def _count(self, tensor: Tensor) -> None:
        storage = tensor.untyped_storage()
        key, size = memory_of(tensor), storage.nbytes()
        if size and key not in self._storages:
            self._storages.add(key)
            self.bytes += size
            if self._is_received(key):  # until the end of the run: the next step uses the same memory
                self.received_bytes += size
            self.peak_bytes = max(self.peak_bytes, self.bytes)
            self.peak_allocated_bytes = max(self.peak_allocated_bytes, self.bytes - self.received_bytes)
            weakref.finalize(storage, self._drop, key, size)

    def _drop(self, key: int, size: int) -> None:
        self._storages.discard(key)
        self.bytes -= size


class ActivationMeter(saved_tensors_hooks):
    """Counts what is stored between forwards and backwards: bytes, and microbatches in flight.

    A context manager for one step. The bytes are those of the storages that autograd saves, of the
    inputs that checkpointed segments keep and of the gradients that wait for a W. Each storage
    counts once; weights and the batch itself do not count. A saved tensor counts until autograd
    frees its graph.
    """

    def __init__(self, stages: Sequence[Stage]) -> None:
        super().__init__(self._pack, self._unpack)
        self.peak_bytes = self.peak_in_flight = 0
        self._stages = stages
        self._apart = {memory_of(tensor) for stage in stages for tensor in stage.tensors()}
        self._saved: Counter[int] = Counter()  # storage -> the number of times autograd has saved it
        self._saved_bytes = 0

    def look(self) -> None:
        """Update the peaks with what is stored now; called after every action."""
        held = {memory_of(x): x.untyped_storage().nbytes() for stage in self._stages for x in stage.held()}
        unsaved = sum(size for key, size in held.items() if key not in self._saved and key not in self._apart)
        self.peak_bytes = max(self.peak_bytes, self._saved_bytes + unsaved)
        self.peak_in_flight = max(self.peak_in_flight, sum(len(stage.kept) for stage in self._stages))

    def _pack(self, tensor: Tensor) -> _SavedTensor:
        saved, key, size = _SavedTensor(tensor), memory_of(tensor), tensor.untyped_storage().nbytes()
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


def _tensors(*values: Any) -> Iterator[Tensor]:
    """Yield the tensors in what an operation is given and makes, which may be lists of them."""
    for value in values:
        if isinstance(value, Tensor):
            yield value
        elif isinstance(value, list | tuple):
            yield from _tensors(*value)
        elif isinstance(value, dict):
            yield from _tensors(*value.values())
