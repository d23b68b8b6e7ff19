"""Watches what a model of the user's own does and keeps, its layers and its loss, and names it in errors."""

from __future__ import annotations

import dis
import gc
import sys
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from itertools import chain, zip_longest
from types import FunctionType, ModuleType
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

LONGEST = 200  # characters of what an exception says
_MOST_KEPT = 10_000  # objects that are looked at, the nearest first
_FOREIGN = {"torch", "numpy", *sys.stdlib_module_names} - {"builtins", "collections", "functools", "types"}
_ATEN = torch.ops.aten
_PRODUCTS = {_ATEN.mm.default, _ATEN.addmm.default, _ATEN.bmm.default, _ATEN.baddbmm.default, _ATEN.convolution.default}


def _default_device() -> torch.device | None:
    try:
        return torch.get_default_device()
    except (AssertionError, RuntimeError):  # it is none that is here, which torch finds out when it is asked
        return None


_Setting = tuple[Callable[[], Any], Callable[[Any], Any]]  # how it is read, and set
_AUTOCAST: dict[str, _Setting] = {
    f"autocast of {kind}": (partial(torch.is_autocast_enabled, kind), partial(torch.set_autocast_enabled, kind))
    for kind in ("cpu", "cuda")
}
_SETTINGS: dict[str, _Setting] = {
    "torch.set_default_dtype": (torch.get_default_dtype, torch.set_default_dtype),
    "torch.set_default_device": (_default_device, lambda _: torch.set_default_device(None)),
    "torch.set_num_threads": (torch.get_num_threads, torch.set_num_threads),
    "torch.set_grad_enabled": (torch.is_grad_enabled, lambda is_enabled: torch.set_grad_enabled(is_enabled)),
    "torch.set_deterministic_debug_mode": (torch.get_deterministic_debug_mode, torch.set_deterministic_debug_mode),
    "torch.set_float32_matmul_precision": (torch.get_float32_matmul_precision, torch.set_float32_matmul_precision),
    "torch.autograd.set_detect_anomaly": (torch.is_anomaly_enabled, torch.set_anomaly_enabled),
    **_AUTOCAST,
}


@contextmanager
def unchanged(what: str) -> Iterator[None]:
    """Set torch's settings back to what they were before. Raises ValueError if they were changed by `what`."""
    before = {name: read() for name, (read, _) in _SETTINGS.items()}
    try:
        yield
    finally:
        changed = [name for name, (read, _) in _SETTINGS.items() if read() != before[name]]
        for name in changed:
            _SETTINGS[name][1](before[name])
    if changed:
        raise ValueError(
            f"{what} changes a setting of torch ({changed[0]}) for all that this process does after it: let layers and "
            "tensors have a type or a device of their own, as by .to(dtype), and set the threads by device.threads"
        )


class Watch(TorchDispatchMode):
    """Watches the operations of a layer or a loss."""

    def __init__(self, entered: Tensor) -> None:
        super().__init__()
        self._entered = entered
        self.draws = False  # whether one draws random numbers
        self.vocabulary: int | None = None  # the number of different tokens that are embedded; None if none are
        self.weights: dict[nn.Parameter, None] = {}  # that they read
        self.made: dict[int, Tensor] = {}  # by their ids, so that these stay theirs
        self.memory: set[int] = set()  # where they read or write; nothing without numbers
        self.written: set[int] = set()  # where they write

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # nothing is compiled here, and to say so to torch's compiler would import it

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        # 1. what the meta device computes and a real one refuses
        dtypes = {arg.dtype for arg in args if isinstance(arg, Tensor)} if func in _PRODUCTS else set()
        if len(dtypes) > 1:
            raise TypeError(f"a product of {' and '.join(sorted(map(str, dtypes)))}")
        # 2. what is read and written
        self.draws |= torch.Tag.nondeterministic_seeded in func.tags
        if func is _ATEN.embedding.default and args[1] is self._entered:
            self.vocabulary = args[0].shape[0]
        tensors = _tensors(args)
        self.weights |= {tensor: None for tensor in tensors if isinstance(tensor, nn.Parameter)}
        self.memory |= {place_of(tensor) for tensor in tensors} - {0}
        if func._schema.is_mutable and isinstance(args[0], Tensor):
            self.written |= {place_of(args[0])} - {0}
        # 3. what is made
        result = func(*args, **(kwargs or {}))
        self.made |= {id(tensor): tensor for tensor in _tensors([result])}
        return result


def change_by(owner: Any, call: Callable[[], Any]) -> str | None:
    """Return which number that a layer or a loss keeps is another one after a second call; None if none is."""
    call()
    before = list(_numbers(owner))
    call()
    return next((f"{one} becomes {now}" for one, now in zip_longest(before, _numbers(owner)) if one != now), None)


def _numbers(owner: Any) -> Iterator[str]:
    """Yield the numbers in what can be reached, sums of tensors, in a fixed order; of weights only those of hooks."""
    todo, known = deque([owner]), dict[int, Any]()
    while todo and len(known) < _MOST_KEPT:
        value = todo.popleft()
        if isinstance(value, int | float | np.ndarray | np.generic):
            yield repr(value)
        elif isinstance(value, Tensor):
            todo += value._backward_hooks, value._post_accumulate_grad_hooks
            if not isinstance(value, nn.Parameter) and not value.is_meta:
                yield f"{list(value.shape)} of sum {value.detach().sum().item()}"
        elif id(value) not in known and not isinstance(value, ModuleType):
            known[id(value)] = value
            library = str(getattr(value, "__module__", "builtins")).partition(".")[0]
            if library not in _FOREIGN or isinstance(value, nn.Module):
                todo += (each for each in gc.get_referents(value) if each is not getattr(value, "__globals__", None))
            if library not in _FOREIGN and isinstance(value, FunctionType):
                read = [each.argval for each in dis.get_instructions(value) if each.opname == "LOAD_GLOBAL"]
                todo += map(value.__globals__.get, read)


def _tensors(values: Sequence[Any]) -> list[Tensor]:
    """Return the tensors among some values, and in those that are lists or tuples."""
    flat = chain.from_iterable(value if isinstance(value, list | tuple) else (value,) for value in values)
    return [value for value in flat if isinstance(value, Tensor)]


def place_of(tensor: Tensor) -> int:
    """Return where a tensor's memory is; 0 if it has none, or is of a kind that hides it."""
    return tensor.untyped_storage().data_ptr() if type(tensor) in (Tensor, nn.Parameter) else 0


def memory_of(tensor: Tensor) -> int:
    """Return what tensors in the same memory have in common: its address; of fake ones, another number."""
    storage = tensor.untyped_storage()
    return id(storage) if storage.device.type == "meta" else storage.data_ptr()


def tried(call: Callable[[], Any], what: str, remedy: str) -> Any:
    """Return what a call returns. Raises ValueError with the error of a call that fails."""
    try:
        return call()
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # a layer may be the user's own, and exit
        raise ValueError(f"{what} ({error_text(error)}): {remedy}") from error


def error_text(error: BaseException) -> str:
    """Return the beginning of what an error says, on one line."""
    said = " ".join(f"{type(error).__name__}: {error}".split())
    return said if len(said) <= LONGEST else f"{said[: LONGEST - 3]}..."


def layer_text(layers: Sequence[nn.Module], index: int) -> str:
    return f"layer {index} ({type(layers[index]).__name__})"


def tensor_text(tensor: Tensor) -> str:
    return f"{list(tensor.shape)} {str(tensor.dtype).removeprefix('torch.')}"


def device_of(layers: Sequence[nn.Module]) -> torch.device:
    """Return the device of the layers."""
    tensors = chain.from_iterable((*layer.parameters(), *layer.buffers()) for layer in layers)
    return next((tensor.device for tensor in tensors), torch.get_default_device())
