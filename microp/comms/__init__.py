"""The glue between ranks: who is next to me, and how a tensor gets there.

::

    rank 0 ── isend_tensor(y, 1, tag) ──►  irecv_tensor(shape, 0, tag) ── rank 1
           ◄─ irecv_tensor(shape, 1, tag)  isend_tensor(grad, 0, tag) ──

One interface (`base`), and a module for each transport: `shm` (shared memory, ranks of one
host), `group` (gloo on CPU, NCCL on CUDA and ROCm) and `threads` (ranks of one process).
"""

from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh

from microp.comms.base import REDUCTIONS, Comms, CommsSettings, Inbox, Message, Outbox, Pending, Sum
from microp.comms.delayed import DelayedComms
from microp.comms.direct import direct_sums
from microp.comms.group import GroupComms
from microp.comms.ring import Ring, ring_sum
from microp.comms.shm import ShmComms
from microp.comms.threads import ThreadComms, thread_comms

__all__ = [
    "REDUCTIONS",
    "Comms",
    "CommsSettings",
    "DelayedComms",
    "GroupComms",
    "Inbox",
    "Message",
    "Outbox",
    "Pending",
    "Ring",
    "ShmComms",
    "Sum",
    "ThreadComms",
    "direct_sums",
    "init_process_group",
    "ring_sum",
    "thread_comms",
]


def init_process_group(backend: str, device: torch.device, timeout_s: float, replicas: int = 1) -> GroupComms:
    """Dial in: join the process group that RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT name.

    Args:
        backend: `shm`, `gloo`, or `nccl` (RCCL on ROCm).
        device: where this rank's tensors live (the current device, if that is a GPU).
        timeout_s: the longest wait for a peer, in seconds.
        replicas: how many pipelines the processes are; each is a row of torch's DeviceMesh.
    """
    group = "gloo" if backend == "shm" else backend
    # No device_id: NCCL would then put all of a rank's transfers into one queue, in which a
    # receive that is posted early holds up a send.
    dist.init_process_group(group, timeout=timedelta(seconds=timeout_s))
    row = column = None
    if replicas > 1:
        shape = (replicas, dist.get_world_size() // replicas)
        mesh = init_device_mesh(device.type, shape, mesh_dim_names=("replica", "pipeline"))
        row, column = mesh.get_group("pipeline"), mesh.get_group("replica")

    def of(members: Any) -> GroupComms:
        return (
            ShmComms(device, timeout_s, members) if backend == "shm" else GroupComms(group, device, timeout_s, members)
        )

    comms = of(row)
    if column is not None:
        comms.across = of(column)
    return comms
