"""Keeps weights equal that several ranks hold: those of replicas, and tied weights, which several layers share.

::

    begin    replica 0   layer 0  ae31   layer 1  07c2   layer 2  ae31      checksums: layers 0 and 2 are tied,
             replica 1   layer 0  ae31   layer 1  95f0   layer 2  ae31      layer 1 differs and is refused

    step     rank 0   embedding ── gradient ─┐ ┌─► embedding + head ─► optimizer
                                             ╳
             rank 2   head ─────── gradient ─┘ └─► embedding + head ─► optimizer

Each rank makes its own layers. A model's function that draws numbers from a source that has no seed gives each rank
other weights; each replica would train a model of its own, and their gradients would be summed all the same.

Each layer has a copy of a tied weight. All copies get the same sum of gradients, added up in the order of the layers:
they stay equal bit for bit, and the sum does not depend on the partition. (`microp.replicas` sums over replicas.)

A schedule with copies of the model has every layer on several ranks. Their gradients are summed in the same way, in the
order of the copies and one message per layer.
"""

from __future__ import annotations

import functools
import zlib
from collections.abc import Mapping
from typing import NamedTuple

import torch
from torch import Tensor, nn

from microp.comms import Comms
from microp.job import Job


def check_equal_weights(job: Job, layers: Mapping[int, nn.Module], comms: Comms) -> None:
    """Compare the weights and the buffers of this rank's layers, by their index, with the other ranks'.

    Raises:
        ValueError: replicas, or the copies of a tied weight, differ; all ranks raise the same.
    """
    tied = {copy: copies for copies in job.model.tied_weights for copy in copies}
    if job.replicas == 1 and not tied:
        return
    mine = []
    for index, layer in layers.items():
        for name, tensor in (*layer.named_parameters(), *layer.named_buffers()):
            if job.replicas > 1 or (index, name) in tied:
                mine.append((index, name, _checksum(tensor)))
    first: dict[tuple[int, str], tuple[int, str]] = {}  # weight -> checksum and place of its first copy
    for rank, weights in enumerate(comms.gather_all(mine)):
        for index, name, checksum in weights:
            weight = tied.get((index, name), ((index, name),))[0]
            place = f"{name} of layer {index} on rank {rank}"
            first_checksum, first_place = first.setdefault(weight, (checksum, place))
            if first_checksum != checksum:
                raise ValueError(
                    f"{place} began with other numbers than {first_place}: the model's function must give the same "
                    "weights each time, so draw random numbers from torch's generator, which is seeded for it"
                )


def check_equal_data(batch: tuple[Tensor, Tensor] | None, comms: Comms) -> None:
    """Compare the first batch of a model's own data, where this rank draws one, with the other ranks'.

    One rank takes the inputs of a batch and another one its targets: of two data sets they would not belong together.

    Raises:
        ValueError: they differ; all ranks raise the same.
    """
    found = comms.gather_all(None if batch is None else [_checksum(tensor) for tensor in batch])
    known = {rank: checksums for rank, checksums in enumerate(found) if checksums is not None}
    first, *others = known
    for rank in others:
        if known[rank] != known[first]:
            raise ValueError(
                f"rank {rank} began with other data than rank {first}: the model's function must give the same data "
                "each time, so draw random numbers from torch, random or numpy.random, which are seeded for it"
            )


def _checksum(tensor: Tensor) -> int:
    bits = tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8)
    return zlib.crc32(bits.numpy().data)


class _Copy(NamedTuple):
    """One layer's copy of a tied weight."""

    rank: int  # the rank of the layer
    tag: int  # the tag of the messages with its gradient
    weight: nn.Parameter | None  # the copy itself; None on other ranks


class _Layer(NamedTuple):
    """A layer of this rank, of which other ranks have copies."""

    weights: list[nn.Parameter]  # those that are trained
    ranks: list[int]  # of all copies
    tag: int  # of the messages with its gradients


class TiedGradients:
    """The sums of the tied weights of one rank's layers; copies on one rank need no message."""

    def __init__(self, job: Job, layers: Mapping[int, nn.Module], comms: Comms) -> None:
        self._comms = comms
        ranks = {layer: rank for stage, rank in job.schedule.placement.items() for layer in job.layers_of(stage)}
        tag = 2 * job.schedule.stages * job.schedule.units  # the first one above those of the actions
        self._weights: list[list[_Copy]] = []
        for tied in job.model.tied_weights:
            copies = []
            for layer, name in tied:
                copies.append(_Copy(ranks[layer], tag, layers[layer].get_parameter(name) if layer in layers else None))
                tag += 1
            if any(copy.weight is not None and copy.weight.requires_grad for copy in copies):
                self._weights.append(copies)
        holders: dict[int, list[int]] = {}  # layer -> the ranks of its copies, in their order
        for stage, rank in job.schedule.placement.items():
            for layer in job.layers_of(stage):
                holders.setdefault(layer, []).append(rank)
        self._layers = [
            _Layer([weight for weight in layers[index].parameters() if weight.requires_grad], ranks, tag + index)
            for index, ranks in sorted(holders.items())
            if job.schedule.copies > 1 and index in layers
        ]

    def sum(self) -> None:
        """Replace the gradient of each copy by the sum over all copies. Raises like `Pending.wait`."""
        for copies in self._weights:
            self._sum(copies)
        for layer in self._layers:
            self._sum_layer(layer)

    def _sum_layer(self, layer: _Layer) -> None:
        """Replace the gradients of a layer by their sums over the copies of the model."""
        if not layer.weights:
            return
        mine = torch.cat([(torch.zeros_like(w) if w.grad is None else w.grad).flatten() for w in layer.weights])
        others = [rank for rank in layer.ranks if rank != self._comms.rank]
        leaving = [self._comms.isend_tensor(mine, other, layer.tag) for other in others]
        coming = {rank: self._comms.irecv_tensor(mine.shape, rank, layer.tag, mine.dtype) for rank in others}
        every = [mine if rank == self._comms.rank else coming[rank].wait() for rank in layer.ranks]
        total = functools.reduce(torch.add, every)
        for sent in leaving:
            sent.wait()
        parts = total.split([weight.numel() for weight in layer.weights])
        for weight, part in zip(layer.weights, parts, strict=True):
            weight.grad = (
                part.view_as(weight).clone() if weight.grad is None else weight.grad.copy_(part.view_as(weight))
            )

    def _sum(self, copies: list[_Copy]) -> None:
        weights = {copy.tag: copy.weight for copy in copies if copy.weight is not None}
        gradients = {tag: torch.zeros_like(w) if w.grad is None else w.grad for tag, w in weights.items()}
        example = next(iter(gradients.values()))
        others = sorted({copy.rank for copy in copies} - {self._comms.rank})
        coming, leaving = {}, []
        for rank, tag, weight in copies:  # one order on all ranks: over NCCL a link's first transfer waits for its peer
            if weight is not None:
                leaving += [self._comms.isend_tensor(gradients[tag], other, tag) for other in others]
            else:
                coming[tag] = self._comms.irecv_tensor(example.shape, rank, tag, example.dtype)
        every = [gradients[copy.tag] if copy.tag in weights else coming[copy.tag].wait() for copy in copies]
        total = functools.reduce(torch.add, every)
        for sent in leaving:
            sent.wait()
        for tag, parameter in weights.items():
            parameter.grad = gradients[tag].copy_(total)
