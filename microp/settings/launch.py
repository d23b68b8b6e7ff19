"""The settings of the launcher, which starts the ranks' processes. `microp.worker` has the launchers."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Annotated

from microp.settings.rules import OneOf, Range, broken_rules, quoted

_TORCHRUN = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE")  # what torchrun sets; others set some of them


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
        lacking = [name for name in _TORCHRUN if not os.environ.get(name, "").isdecimal()]
        if lacking and "RANK" in os.environ:
            found.append(
                f"RANK={quoted(os.environ['RANK'])} is in the environment, but {', '.join(lacking)}, which torchrun "
                f"sets too, {'is' if len(lacking) == 1 else 'are'} missing or no number: start the ranks with "
                "torchrun, or take RANK away, with env -u RANK"
            )
        elif self.name == "torchrun" and lacking:
            found.append(
                "launch=torchrun, but RANK is not in the environment: start with "
                f"`torchrun --nproc_per_node={ranks * replicas} -m microp.run ...`, or use launch=elastic"
            )
        if not lacking and world and int(world) != ranks * replicas:
            found.append(
                f"ranks={ranks}, but torchrun started {world} processes: use ranks={world}"
                if replicas == 1
                else f"ranks={ranks} times replicas={replicas} is {ranks * replicas}, but torchrun started {world} "
                f"processes in all: let it start {ranks * replicas} (--nnodes times --nproc-per-node), or change ranks "
                "or replicas"
            )
        return found


def is_joined() -> bool:
    """Return whether torchrun started this process as one of the ranks; RANK alone is set by others too."""
    return all(os.environ.get(name, "").isdecimal() for name in _TORCHRUN)


def is_over_hosts() -> bool:
    """Return whether torchrun started some of the ranks on other hosts."""
    return is_joined() and os.environ.get("LOCAL_WORLD_SIZE") != os.environ.get("WORLD_SIZE")
