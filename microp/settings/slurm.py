"""The settings of the jobs that Slurm runs."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Annotated

from microp.settings.launch import LaunchSettings
from microp.settings.rules import Line, Positive, Range

MOST = 1_000_000


@dataclass
class SlurmSettings(LaunchSettings):
    """What a job asks for, and how the jobs of a sweep are followed.

    Attributes:
        partition: the partition of the jobs; null: the cluster's default.
        account: the account that the jobs are charged to; null: the user's default.
        minutes: the time limit of a job, in minutes; null: the partition's.
        nodes: the nodes of a job, among which its ranks are divided.
        cores_per_rank: the CPU cores that a job asks for, for each rank.
        gpus_per_node: the GPUs that a job asks for on each node.
        options: a list of further options of sbatch, in their long form, such as ['--mem=8G','--qos=low'].
        setup: a list of shell commands that come before the ranks, such as ['module load cuda'].
        requeue: let Slurm start a job again that it has ended to make room, or whose node has failed; also one with
            `minutes` that goes on from snapshots and whose time is over.
        at_once: the number of jobs that are in the queue at the same time; null: all points of the sweep.
        poll_s: the time between two looks at the queue, in seconds.
    """

    partition: Annotated[str | None, Line("give a name, or null for the cluster's default")]
    account: Annotated[str | None, Line("give a name, or null for your default")]
    minutes: Annotated[int | None, Range(1, MOST, "null for the partition's limit")]
    nodes: Annotated[int, Range(1, 10_000)]
    cores_per_rank: Annotated[int, Range(1, 1024)]
    gpus_per_node: Annotated[int, Range(0, 1024)]
    options: Annotated[list[str], Line("give options of sbatch, such as ['--mem=8G']")]
    setup: Annotated[list[str], Line("give shell commands, such as ['module load cuda']")]
    requeue: bool
    at_once: Annotated[int | None, Range(1, MOST, "null for all")]
    poll_s: Annotated[float, Positive(3600, "use for example 5")]

    def problems(self, ranks: int, replicas: int = 1) -> list[str]:
        """List the values that are wrong or do not fit the number of ranks, one sentence each."""
        found = super().problems(ranks, replicas)
        if words := [each for each in self.options if not each.startswith("--")]:
            found.append(f"launch.options has {words[0]}: give options of sbatch, such as --mem=8G")
        if self.nodes >= 1 and ranks * replicas % self.nodes:
            who = f"ranks={ranks}" if replicas == 1 else f"ranks={ranks} times replicas={replicas}"
            found.append(
                f"launch.nodes={self.nodes} does not divide {who}: every node gets as many ranks, "
                f"use launch.nodes=1 or a divisor of {ranks * replicas}"
            )
        return found

    def ranks_per_node(self, ranks: int) -> int:
        """Return how many of all ranks run on each node."""
        return ranks // self.nodes


def no_slurm() -> list[str]:
    """Return why no job can be submitted from this host, if none can."""
    if find_spec("submitit") is None:
        return ["launch=slurm needs submitit, which submits its jobs: pip install 'microp[slurm]'"]
    if missing := [program for program in ("sbatch", "srun", "squeue", "scancel") if shutil.which(program) is None]:
        return [
            f"launch=slurm, but {missing[0]} is not on PATH: type it on a host of a cluster with Slurm, "
            "or use launch=elastic"
        ]
    return []
