"""Attention over the slices of a sequence: the keys and values of the slices before, and their gradients' way back.

::

    F   slice 0   k v ────────────┬──────────────► attention       forwards go along the sequence
        slice 1   k v ──────┬─────┼─(detached)───► attention
        slice 2   k v ──────┼─────┼─(detached)───► attention
    B   slice 2   g ────────┤     │                                backwards come back: what a slice's keys and
        slice 1   g + own ◄─┘     │                                values get from later slices is there when
        slice 0   g + own ◄───────┘                                its own backward needs it

Each slice has an autograd graph of its own, so that a pipeline can send it on. `_Join` cuts the graphs apart and
carries the gradients across (Sun et al., Seq1F1B, arXiv 2406.03488, section 3).
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import cache
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class Past:
    """The keys and values of the slices so far of one attention, and the gradients that later slices give back.

    The `slices` of a row are of the same length.
    """

    def __init__(self, slices: int) -> None:
        self._slices = slices
        self.mask: Tensor | None = None  # of all slices, made when the first one is there that needs it
        self._kept: dict[int, list[Tensor]] = {}  # microbatch -> the keys and values of its slices so far
        self._gradients: dict[int, Tensor] = {}  # unit -> the sum of what later slices have given back

    def attend(self, unit: int, query: Tensor, key_value: Tensor) -> Tensor:
        """Return the attention of a slice's tokens to themselves and to those before, (rows, heads, tokens, width).

        Args:
            unit: the slice: slice j of microbatch m is m slices + j.
            query: (rows, heads, tokens, width) of the slice.
            key_value: (2, rows, heads, tokens, width) of the slice.
        """
        key, value = _Join.apply(key_value, self, unit)
        tokens, end = query.shape[-2], key.shape[-2]
        if tokens == end:
            return F.scaled_dot_product_attention(query, key, value, is_causal=True)
        self.mask = causal_mask(self._slices * tokens, query.dtype, query.device)
        return F.scaled_dot_product_attention(query, key, value, self.mask[end - tokens : end, :end])

    def join(self, unit: int, key_value: Tensor) -> Tensor:
        """Keep the keys and values of a slice; return those of the slices up to it, along the tokens."""
        microbatch, at = divmod(unit, self._slices)
        kept = self._kept.setdefault(microbatch, [])
        kept[at:] = [key_value]
        return torch.cat(kept, dim=-2)

    def give_back(self, unit: int, gradient: Tensor) -> Tensor:
        """Return the gradient of a slice's own keys and values; add those of the slices before it to theirs."""
        microbatch, at = divmod(unit, self._slices)
        *before, own = gradient.split(gradient.shape[-2] // (at + 1), dim=-2)
        for earlier, part in enumerate(before, start=unit - at):
            known = self._gradients.get(earlier)
            self._gradients[earlier] = part.clone() if known is None else known.add_(part)
        del self._kept[microbatch][at:]
        later = self._gradients.pop(unit, None)
        return own if later is None else own + later

    def clear(self) -> None:
        """Forget what a step that was not ended has left."""
        self._kept.clear()
        self._gradients.clear()

    def tensors(self) -> Iterator[Tensor]:
        """Yield what is held between actions."""
        for kept in self._kept.values():
            yield from kept
        yield from self._gradients.values()


class Sliced(nn.Module):
    """A module that may be given a row of tokens in slices."""

    slices = 1  # of a row; 1: the row is whole
    unit = 0  # the slice that the next forward is given, as for `Past.attend`

    def divide_rows(self, slices: int) -> None:
        """Expect `slices` slices of each row from now on."""
        self.slices, self.past = slices, Past(slices)


@cache
def causal_mask(context: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    """Return what is added to the products of queries and keys: 0 up to a token itself, minus infinity beyond it."""
    return torch.full((context, context), -math.inf, dtype=dtype, device=device).triu(1)


class _Join(torch.autograd.Function):
    """Joins a slice's keys and values to those of the slices before it, whose gradients `Past` carries."""

    @staticmethod
    def forward(ctx: Any, key_value: Tensor, past: Past, unit: int) -> Tensor:
        ctx.past, ctx.unit = past, unit
        # What is recomputed keeps keys and values alone; else the graph keeps the memory in which they lie anyway.
        return past.join(unit, key_value.detach() if ctx.needs_input_grad[0] else key_value.clone())

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
        return ctx.past.give_back(ctx.unit, gradient), None, None
