"""Keeps weights equal that several ranks hold: those of replicas, and tied weights, which several layers share.

::

    begin    replica 0   layer 0  ae31   layer 1  07c2   layer 2  ae31      checksums: layers 0 and 2 are tied,
             replica 1   layer 0  ae31   layer 1  95f0   layer 2  ae31      layer 1 differs and is refused

    step     rank 0   embedding ── gradient ─┐ ┌─► embedding + head ─► optimizer
                                             ╳
             rank 2   head ─────── gradient ─┘ └─► embedding + head ─► optimizer

Each rank makes its own layers. A model's function that draws numbers from a source that has no seed gives each rank
other weights; each replica, or copy, would train a model of its own, and their gradients would be summed all the same.

Each layer has a copy of a tied weight. All copies get the same sum of gradients, added up in the order of the layers:
they stay equal bit for bit, and the sum does not depend on the partition. (`microp.replicas` sums over replicas.)

A schedule with copies of the model has every layer on several ranks. Their gradients are summed in the same way, in the
order of the copies and one message per layer.
"""

from __future__ import annotations

import functools
import zlib
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from microp.comms import Comms, Inbox, Message
from microp.job import Job
from microp.replicas import is_unused, to_sum


def check_equal_weights(job: Job, layers: Mapping[int, nn.Module], comms: Comms) -> None:
    """Compare the weights and the buffers of this rank's layers, by their index, with the other ranks'.

    Raises:
        ValueError: replicas, or copies of the model or of a tied weight, differ; all ranks raise the same.
    """
    tied = {copy: copies for copies in job.model.tied_weights for copy in copies}
    has_copies = job.replicas > 1 or job.schedule.copies > 1
    if not has_copies and not tied:
        return
    mine = []
    for index, layer in layers.items():
        for name, tensor in (*layer.named_parameters(), *layer.named_buffers()):
            if has_copies or (index, name) in tied:
                mine.append((index, name, checksum_of(tensor)))
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


def check_equal_data(found: Sequence[list[int] | None], step: int) -> list[int]:
    """Compare the checksums of a step's batch of a model's own data, those of each rank that draws it; return them.

    One rank takes the inputs of a batch and another one its targets: of two data sets they would not belong together.

    Raises:
        ValueError: they differ; all ranks raise the same.
    """
    known = {rank: checksums for rank, checksums in enumerate(found) if checksums is not None}
    first, *others = known
    for rank in others:
        if known[rank] != known[first]:
            raise ValueError(
                f"rank {rank} has other data than rank {first} in step {step}: the model's function must give the same "
                "data each time, so draw random numbers from torch, random or numpy.random, which are seeded for it"
            )
    return known[first]


def checksum_of(tensor: Tensor) -> int:
    bits = tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8)
    return zlib.crc32(bits.numpy().data)


class _Shared(NamedTuple):
    """What has copies on several ranks or layers: a tied weight, or all trained weights of a layer."""

    ranks: list[int]  # of the copies, in the order in which their gradients are added up
    tags: list[int]  # of the messages with them
    weights: list[list[nn.Parameter]]  # of each copy; none if it is on another rank


class TiedGradients:
    """The sums of the tied weights of one rank's layers; copies on one rank need no message."""

    def __init__(self, job: Job, layers: Mapping[int, nn.Module], comms: Comms) -> None:
        self._comms, self._has_copies = comms, job.schedule.copies > 1
        self._outbox, self._inbox = functools.cache(comms.outbox), functools.cache(comms.inbox)
        ranks = {  # layer -> the ranks of its copies, in their order
            layer: job.schedule.holders(stage) for stage in range(job.schedule.depth) for layer in job.layers_of(stage)
        }
        self._first_tag = tag = 2 * job.schedule.stages * job.schedule.units  # above those of the actions
        self._is_asked = self._has_copies or bool(job.model.tied_weights)  # the same on all ranks
        every = []
        for tied in job.model.tied_weights:
            weights = [[layers[layer].get_parameter(name)] if layer in layers else [] for layer, name in tied]
            every.append(
                _Shared([ranks[layer][-1] for layer, _ in tied], [tag + at for at in range(len(tied))], weights)
            )
            tag += len(tied)
        for index in sorted(layers) if self._has_copies else ():
            trained = [weight for weight in layers[index].parameters() if weight.requires_grad]
            held = [trained if rank == comms.rank else [] for rank in ranks[index]]
            every.append(_Shared(ranks[index], [tag + index] * len(held), held))
        self._shared = [shared for shared in every if any(w.requires_grad for part in shared.weights for w in part)]

    def messages(self) -> list[Message]:
        """Return the messages of the sums of all ranks, which call this together.

        Layers of copies use two mailboxes of a link in turn: who sends a layer has had the peer's last one, which the
        peer sent when it had read the one before.
        """
        if not self._is_asked:
            return []
        mine, counts = [], Counter[int]()
        for shared in self._shared:
            for weights, tag in zip(shared.weights, shared.tags, strict=True):
                nbytes = torch.cat([weight.detach().reshape(-1) for weight in weights]).nbytes if weights else 0
                for other in sorted({*shared.ranks} - {self._comms.rank}) if weights else ():
                    slot = self._first_tag + counts[other] % 2 if self._has_copies else tag
                    mine.append(Message(self._comms.rank, other, tag, nbytes, slot))
                    counts[other] += 1
        return [Message(*message) for rank in self._comms.all_gather(mine) for message in rank]

    def sum(self) -> None:
        """Replace the gradient of each copy by the sum over all copies. Raises like `Pending.wait`."""
        for shared in self._shared:
            self._sum(shared)

    def _sum(self, shared: _Shared) -> None:
        mine = {}
        for copy, weights in enumerate(shared.weights):
            parts = [to_sum(weight) for weight in weights]
            if parts:
                mine[copy] = torch.cat(parts) if len(parts) > 1 else parts[0]
        example = next(iter(mine.values()))
        others = sorted({*shared.ranks} - {self._comms.rank})
        coming: dict[int, Inbox] = {}
        finishes: list[Callable[[], Any]] = []
        # one order on all ranks: over NCCL a link's first transfer waits for its peer
        for copy, (rank, tag) in enumerate(zip(shared.ranks, shared.tags, strict=True)):
            if copy in mine:
                outboxes = [self._outbox(example.shape, other, tag, example.dtype) for other in others]
                for outbox in outboxes:
                    outbox.send(mine[copy])
                finishes += [outbox.finish for outbox in outboxes if outbox.finish is not None]
            else:
                coming[copy] = inbox = self._inbox(example.shape, rank, tag, example.dtype)
                if inbox.post is not None:
                    inbox.post()
        total = functools.reduce(
            torch.add, [mine[copy] if copy in mine else coming[copy].wait() for copy in range(len(shared.ranks))]
        )
        for finish in finishes:
            finish()
        for weights in filter(None, shared.weights):
            for weight, part in zip(weights, total.split([weight.numel() for weight in weights]), strict=True):
                if weight.grad is not None:
                    weight.grad.copy_(part.view_as(weight))
                elif not is_unused(part):
                    weight.grad = part.view_as(weight).clone()
