"""The glue between ranks: who is next to me, and how a tensor gets there.

::

    rank 0 ── isend_tensor(y, 1, tag) ──►  irecv_tensor(shape, 0, tag) ── rank 1
           ◄─ irecv_tensor(shape, 1, tag)  isend_tensor(grad, 0, tag) ──

One interface (`base`), and a module for each transport: `group` (gloo on CPU, NCCL on
CUDA and ROCm) and `threads`.
"""

from microp.comms.base import REDUCTIONS, Comms, CommsSettings, Pending
from microp.comms.group import GroupComms, init_process_group
from microp.comms.threads import ThreadComms, thread_comms

__all__ = [
    "REDUCTIONS",
    "Comms",
    "CommsSettings",
    "GroupComms",
    "Pending",
    "ThreadComms",
    "init_process_group",
    "thread_comms",
]
