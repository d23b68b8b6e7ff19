"""The settings of the launcher, which starts the ranks' processes. `microp.worker` has the launchers."""

from __future__ import annotations

import os
import resource
import socket
import sys
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Annotated

from microp.settings.rules import OneOf, Range, broken_rules

DESCRIPTORS, PER_RANK = 64, 8  # that the launcher and a rank need at most, W&B included


@dataclass
class LaunchSettings:
    """The launcher and its time-out.

    Attributes:
        name: `elastic`, `slurm`, or `torchrun` to join a launch that torchrun made, if RANK is in the environment.
        shutdown_s: the time that the other ranks have to end after one has failed, in seconds.
    """

    name: Annotated[str, OneOf("elastic", "slurm", "torchrun")]
    shutdown_s: Annotated[int, Range(1, 86_400)]

    def problems(self, ranks: int, replicas: int = 1) -> list[str]:
        """List the values that are wrong or do not fit the environment, one sentence each."""
        found = broken_rules(self, "launch.")
        world = os.environ.get("WORLD_SIZE")
        if self.name == "torchrun" and not is_joined():
            found.append(
                "launch=torchrun, but RANK is not in the environment: start with "
                f"`torchrun --nproc_per_node={ranks * replicas} -m microp.run ...`, or use launch=elastic"
            )
        if is_joined() and world and int(world) != ranks * replicas:
            found.append(
                f"ranks={ranks}, but torchrun started {world} processes: use ranks={world}"
                if replicas == 1
                else f"ranks={ranks} times replicas={replicas} is {ranks * replicas}, but torchrun started {world} "
                f"processes in all: let it start {ranks * replicas} (--nnodes times --nproc-per-node), or change ranks "
                "or replicas"
            )
        return found


def no_proc() -> list[str]:
    """Return that Linux's /proc is not there, if so."""
    if sys.platform != "linux" or Path("/proc/self/fd").is_dir():
        return []
    return ["/proc is not mounted, through which ranks find each other: mount it, with mount -t proc proc /proc"]


@cache
def no_loopback() -> list[str]:
    """Return that this host cannot reach itself, if so: torch would try for 5 minutes."""
    try:
        with socket.create_server(("127.0.0.1", 0)) as listening:
            socket.create_connection(listening.getsockname()).close()
    except OSError as error:
        return [
            f"127.0.0.1 cannot be reached ({error.strerror}), through which ranks find each other: "
            "set it up, with ip link set lo up, or use comms=threads"
        ]
    return []


def too_few_descriptors(ranks: int) -> list[str]:
    """Return what is wrong with this system's limit for so many ranks, if anything."""
    limit, needed = resource.getrlimit(resource.RLIMIT_NOFILE)[0], DESCRIPTORS + PER_RANK * ranks
    if limit >= needed:
        return []
    return [
        f"{ranks} ranks need {needed} file descriptors, and a process may have {limit}: "
        "raise the limit, for example with ulimit -n 4096"
    ]


def is_joined() -> bool:
    """Return whether torchrun started this process as one of the ranks."""
    return "RANK" in os.environ


def is_over_hosts() -> bool:
    """Return whether torchrun started some of the ranks on other hosts."""
    return is_joined() and os.environ.get("LOCAL_WORLD_SIZE") != os.environ.get("WORLD_SIZE")
