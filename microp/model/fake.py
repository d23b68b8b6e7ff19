"""Fake tensors, which have a shape, a type and a device but no numbers, and take no memory.

::

    with fake_tensors():    weight (8192, 8192) ─┐
                            x (2, 8192)         ─┴─ Linear ─► (2, 8192)      at once, whatever the size
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from torch import Tensor

from microp.model.slices import causal_mask


@contextmanager
def fake_tensors() -> Iterator[None]:
    """Let all tensors that this thread makes be fake ones; others can be used with them."""
    from torch._subclasses.fake_tensor import FakeTensorMode  # it imports sympy, and few commands need it

    causal_mask.cache_clear()
    try:
        with FakeTensorMode(allow_non_fake_inputs=True):
            yield
    finally:
        causal_mask.cache_clear()  # a fake mask is nothing for a run


def memory_of(tensor: Tensor) -> int:
    """Return what tensors in the same memory have in common: its address; of fake ones, another number."""
    storage = tensor.untyped_storage()
    return id(storage) if storage.device.type == "meta" else storage.data_ptr()
