"""The transports: they connect the ranks and move tensors from one rank to another.

::

    rank 0 ── isend_tensor(y, 1, tag) ──►  irecv_tensor(shape, 0, tag) ── rank 1
           ◄─ irecv_tensor(shape, 1, tag)  isend_tensor(grad, 0, tag) ──

There is one interface (`base`) and one module per transport: `shm` (shared memory between ranks of
one host, `tcp` between hosts), `tcp`, `group` (gloo), `nccl` (between GPUs) and `threads` (ranks of one process);
`staged` moves the tensors of a GPU over one of the others.
"""

import os
from datetime import timedelta

import torch
import torch.distributed as dist
from torch.distributed import Store, rendezvous  # type: ignore[attr-defined]

from microp.comms.base import Comms, Inbox, Message, Outbox, Sum
from microp.comms.delay import DelayedComms, Pacer, sleep_until
from microp.comms.group import GroupComms, in_our_words, peer_error
from microp.comms.heartbeat import PLACE, SINCE, Heartbeats, Place, awaited_rank, last_awaited, trail
from microp.comms.hosts import Hosts, interface_of, one_host, own_address
from microp.comms.nccl import NcclComms
from microp.comms.shm import ShmComms
from microp.comms.staged import StagedComms
from microp.comms.sums import Ring, direct_sums
from microp.comms.tcp import TcpComms
from microp.comms.threads import ThreadComms, thread_comms
from microp.comms.waiting import Countdown


def init_process_group(
    backend: str,
    device: torch.device,
    timeout_s: float,
    replicas: int = 1,
    hosts: Hosts | None = None,
    store: Store | None = None,
) -> GroupComms:
    """Join the process group that RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT name.

    Args:
        backend: `shm`, `tcp`, `gloo`, or `nccl` (RCCL on ROCm).
        device: the device of this rank's tensors; a GPU must be the current device.
        timeout_s: the longest wait for another rank, in seconds.
        replicas: the number of pipelines that the processes form.
        hosts: the hosts of the processes; None if it is one.
        store: the store through which the processes connect; None: the one that the environment names.

    Returns:
        The transport between the ranks of this rank's pipeline.

    Raises:
        TimeoutError, ConnectionError: another rank did not join.
    """
    kinds: dict[str, type[GroupComms]] = {"shm": ShmComms, "tcp": TcpComms, "gloo": GroupComms, "nccl": NcclComms}
    kind, patience = kinds[backend], timedelta(seconds=timeout_s)
    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    with in_our_words(timeout_s, "another rank"):
        if store is None:
            store, _, _ = next(rendezvous("env://", timeout=patience))
        store.set(f"came/{rank}", "")  # a rank that does not come is a time-out here, whatever the library does
        store.wait([f"came/{other}" for other in range(world)], patience)
        own_timeout = kind.own_timeout(timeout_s)
        dist.init_process_group(kind.library, timeout=own_timeout, store=store, rank=rank, world_size=world)
    row = column = None
    if replicas > 1:
        pipelines = torch.arange(world).view(replicas, -1)
        members = (*pipelines.tolist(), *pipelines.t().tolist())  # of the rows, then of the columns
        groups = [(ranks, dist.new_group(ranks, timeout=own_timeout)) for ranks in members]
        row, column = (group for ranks, group in groups if rank in ranks)

    hosts = hosts or one_host(world)
    comms = kind(device, timeout_s, row, hosts)
    if column is not None:
        comms.replica_group = kind(device, timeout_s, column, hosts)
    return comms
