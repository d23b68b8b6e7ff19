"""Sums the gradients of weights that several layers share, after the last action and before the optimizer's step.

::

    rank 0   embedding ── gradient ─┐ ┌─► embedding + head ─► optimizer
                                    ╳
    rank 2   head ─────── gradient ─┘ └─► embedding + head ─► optimizer

Each layer keeps a copy of its own, which begins with the same numbers. All copies get the same sum, added up in the
order of the layers: they stay equal bit for bit, and the sum does not depend on the partition.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import NamedTuple

import torch
from torch import nn

from microp.comms import Comms
from microp.job import Job


class _Copy(NamedTuple):
    """One layer's copy of a tied weight."""

    rank: int  # the rank of the layer
    tag: int  # the tag of the messages with its gradient
    weight: nn.Parameter | None  # the copy itself; None on other ranks


class TiedGradients:
    """The sums of the tied weights of one rank's layers; copies on one rank need no message."""

    def __init__(self, job: Job, layers: Mapping[int, nn.Module], comms: Comms) -> None:
        self._comms = comms
        ranks = {
            layer: rank for stage, rank in job.schedule.placement.items() for layer in job.partition.layers_of(stage)
        }
        free = 2 * job.schedule.stages * job.schedule.chunks  # the first tag above those of the actions
        self._weights: list[list[_Copy]] = []
        for tied in job.model.tied_weights:
            found = [layers[layer].get_parameter(name) if layer in layers else None for layer, name in tied]
            copies = [_Copy(ranks[layer], free + place, found[place]) for place, (layer, _) in enumerate(tied)]
            free += len(tied)
            if any(weight is not None and weight.requires_grad for weight in found):
                self._weights.append(copies)

    def sum(self) -> None:
        """Replace the gradient of each copy by the sum over all copies. Raises like `Pending.wait`."""
        for copies in self._weights:
            self._sum(copies)

    def _sum(self, copies: list[_Copy]) -> None:
        ranks = {copy.tag: copy.rank for copy in copies}
        own = {copy.tag: copy.weight for copy in copies if copy.weight is not None}
        gradients = {tag: torch.zeros_like(w) if w.grad is None else w.grad for tag, w in own.items()}
        example = next(iter(gradients.values()))
        others = sorted({*ranks.values()} - {self._comms.rank})
        coming, leaving = {}, []
        for _, tag, weight in copies:  # in one order on all ranks: over NCCL a link's first transfer waits for its peer
            if weight is not None:
                leaving += [self._comms.isend_tensor(gradients[tag], rank, tag) for rank in others]
            else:
                coming[tag] = self._comms.irecv_tensor(example.shape, ranks[tag], tag, example.dtype)
        first, *others_gradients = [gradients[c.tag] if c.tag in own else coming[c.tag].wait() for c in copies]
        total = functools.reduce(torch.add, others_gradients, first)
        for sent in leaving:
            sent.wait()
        for tag, weight in own.items():
            weight.grad = gradients[tag].copy_(total)
