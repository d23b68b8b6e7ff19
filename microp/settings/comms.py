"""The settings of the transport between ranks. `microp.comms` has the transports."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Annotated, NamedTuple

from microp.settings.device import DeviceSettings
from microp.settings.rules import OneOf, Positive, broken_rules

COPYING = ("shm", "threads")  # backends that copy a tensor when it is sent, and record the time


class Holds(NamedTuple):
    """What transport and sums hold of the device's memory, beside the tensors that the pipeline keeps."""

    mailboxes: bool = False  # the place of a received tensor, also when the tensor has left it
    # the place of a tensor to come from when its receive is posted, and a tensor that was sent until its receiver has
    # used it
    messages: bool = False
    buckets: bool = False  # the buckets in which gradients are summed over the replicas, as large as the weights


HOLDS_NOTHING = Holds()
_HOLDS = {
    "shm": Holds(mailboxes=True),
    "tcp": Holds(mailboxes=True),  # what it sends through gloo, because it is large, holds more
    "gloo": Holds(mailboxes=True, messages=True),
    "nccl": Holds(messages=True),
    "threads": HOLDS_NOTHING,
}


@dataclass
class CommsSettings:
    """The transport and its time-out."""

    # `auto` (NCCL on GPUs, else `shm` where the system has it, else `gloo`), `shm` (shared memory between ranks of
    # one host, `tcp` between hosts), `tcp`, `gloo`, `nccl`, or `threads`: all ranks in this process
    name: Annotated[str, OneOf("auto", "shm", "tcp", "gloo", "nccl", "threads")]
    # the longest time that a rank waits for another one that runs, in seconds: give more than the longest action and
    # the first step take (over shm, nominal times do not count); one that is killed or stopped is noticed at once.
    # Time in which all ranks are stopped, as by Ctrl-Z, counts over gloo alone.
    timeout_s: Annotated[float, Positive(1_000_000, "give seconds, e.g. 60")]

    def backend(self, device: DeviceSettings) -> str:
        """Return the transport that is used on `device`: `name`, or the one that `auto` stands for."""
        if self.name != "auto":
            return self.name
        if device.name == "cuda" and not device.is_shared:
            return "nccl"
        return "shm" if _has_shm() else "gloo"

    def problems(self, device: DeviceSettings) -> list[str]:
        """List the values that are wrong or do not fit `device`, one sentence each."""
        problems = broken_rules(self, "comms.")
        unfit: tuple[str, ...] = ("nccl",)
        if device.name == "cuda":
            unfit = ("nccl", "threads") if device.is_shared else ("shm", "tcp", "gloo", "threads")
        if self.backend(device) in unfit:
            shared = " with device.share=true" if device.is_shared else ""
            problems.append(f"comms={self.name} cannot move tensors of device={device.name}{shared}: use comms=auto")
        if self.name == "shm" and not _has_shm():
            problems.append("comms=shm needs Linux: use comms=gloo")
        return problems


def transport_holds(backend: str, device: DeviceSettings, has_buckets: bool) -> Holds:
    """Return what is held of the device's memory; a shared GPU's messages lie in the host's."""
    held = HOLDS_NOTHING if device.is_shared else _HOLDS[backend]
    return held._replace(buckets=has_buckets)


def _has_shm() -> bool:
    return hasattr(os, "memfd_create")  # Linux
