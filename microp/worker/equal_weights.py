"""Checks that ranks which hold the same weights have begun with the same numbers.

::

    replica 0   layer 0  ae31   layer 1  07c2   layer 2  ae31 ┐
    replica 1   layer 0  ae31   layer 1  95f0   layer 2  ae31 │      layers 0 and 2 have a tied weight
                         └──── tied ────────────────────┘     │
                                        └─ differ ────────────┘

Each rank makes its own layers. A model's function that draws numbers from a source that has no seed gives each rank
other weights; each replica would train a model of its own, and their gradients would be summed all the same.
"""

from __future__ import annotations

import zlib
from collections.abc import Mapping

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
    first: dict[tuple[int, str], tuple[int, int, str]] = {}  # weight -> checksum, replica and place of its first copy
    for rank, weights in enumerate(comms.gather_all(mine)):
        replica = rank // job.ranks
        for index, name, checksum in weights:
            weight = tied.get((index, name), ((index, name),))[0]
            place = f"{name} of layer {index}"
            theirs, other, there = first.setdefault(weight, (checksum, replica, place))
            if theirs != checksum:
                here = f"replica {replica} (rank {rank}) began with another {place} than replica {other}"
                if replica == other:
                    here = f"rank {rank} began with another {place} than the {there} to which it is tied"
                raise ValueError(
                    f"{here}: the model's function must give the same weights each time, so draw random numbers from "
                    "torch's generator, which is seeded for it"
                )


def _checksum(tensor: Tensor) -> int:
    bits = tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8)
    return zlib.crc32(bits.numpy().data)
