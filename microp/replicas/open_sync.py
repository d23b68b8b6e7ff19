"""Creates the gradient synchronization that the settings name."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from functools import partial

import torch
from torch import nn

from microp.comms import Comms, Ring, ShmComms, direct_sums
from microp.device import Device
from microp.replicas.buckets import Start, each_alone, fill
from microp.replicas.gradient_sync import BucketSync, GradientSync, InTurn, TorchDdp
from microp.settings import MIB, BucketSettings, SyncSettings


def open_sync(
    settings: SyncSettings, stages: Mapping[int, nn.Module], split: Collection[int], comms: Comms, device: Device
) -> GradientSync:
    """Return the gradient synchronization of one rank.

    Args:
        split: the stages whose backward is divided into B and W.
    """
    if comms.replica_group is None:
        return GradientSync(stages)

    def buckets(early: Collection[int]) -> BucketSync:
        assert comms.replica_group is not None
        sums = partial(_open_sums, settings.all_reduce, comms.replica_group)
        name = "ddp" if settings.name == "compare" else settings.name
        return BucketSync(stages, name, partial(_cut, settings), early, sums, comms.rank, device)

    if not isinstance(settings, BucketSettings):
        return buckets(())
    # A W that bypasses autograd calls no hook, so the sums of such a stage start when the stage is done.
    early = [stage for stage in stages if stage not in split]
    if settings.name == "ddp":
        return buckets(early)
    torch_ddp = TorchDdp(stages, comms.replica_group, settings.bucket_mb)
    return torch_ddp if settings.name == "torch_ddp" else InTurn([buckets(early), torch_ddp])


def _cut(settings: SyncSettings, parameters: list[nn.Parameter]) -> Iterator[list[nn.Parameter]]:
    """Cut a stage's parameters into buckets."""
    if isinstance(settings, BucketSettings):
        return fill(parameters, settings.first_bucket_mb * MIB, settings.bucket_mb * MIB)
    return each_alone(parameters) if settings.name == "naive" else fill(parameters)


def _open_sums(all_reduce: str, comms: Comms, sizes: Sequence[tuple[int, torch.dtype]]) -> Sequence[Start]:
    """Return, for each of a step's sums over the ranks of `comms`, the function that starts it."""
    if all_reduce == "direct" or (all_reduce == "auto" and isinstance(comms, ShmComms) and comms.is_one_host):
        return direct_sums(comms, sizes)
    if all_reduce == "ring":
        return [Ring(comms, max((numel * dtype.itemsize for numel, dtype in sizes), default=0)).start] * len(sizes)
    comms.expect(())
    return [comms.iall_reduce] * len(sizes)
