"""The settings of what starts the ranks: their launcher, which `microp.worker` has, or Slurm as jobs."""

from __future__ import annotations

import os
import shutil
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Annotated

from microp.settings.rules import Line, OneOf, Positive, Range, broken_rules
from microp.system import is_joined

MOST = 1_000_000  # minutes, or jobs


@dataclass
class LaunchSettings:
    """The launcher."""

    # `elastic`, which also joins a launch that torchrun made, or `slurm`
    name: Annotated[str, OneOf("elastic", "slurm")]

    def problems(self, ranks: int, replicas: int = 1) -> list[str]:
        """List the values that are wrong or do not fit the environment, one sentence each."""
        problems, processes = broken_rules(self, "launch."), ranks * replicas
        if is_joined() and (world := int(os.environ["WORLD_SIZE"])) != processes:
            problems.append(
                f"ranks={ranks} times replicas={replicas} is {processes}, but torchrun started {world} processes: let "
                f"it start {processes} (--nnodes times --nproc-per-node), or change ranks or replicas"
            )
        elif "RANK" in os.environ and not is_joined():  # as jobs of Kubernetes: each process would run the whole run
            problems.append(
                "RANK is in the environment, but not all that torchrun sets (LOCAL_RANK, ...): start the ranks with "
                "torchrun, or take RANK away, with env -u RANK"
            )
        return problems


@dataclass
class SlurmSettings(LaunchSettings):
    """What a job asks for, and how the jobs of a sweep are followed."""

    # the partition of the jobs; null: the cluster's default
    partition: Annotated[str | None, Line("give a name, or null for the cluster's default")]
    # the account that the jobs are charged to; null: the user's default
    account: Annotated[str | None, Line("give a name, or null for your default")]
    # the time limit of a job, in minutes; null: the partition's
    minutes: Annotated[int | None, Range(1, MOST, "null for the partition's limit")]
    nodes: Annotated[int, Range(1, 10_000)]  # the nodes of a job, among which its ranks are divided
    cores_per_rank: Annotated[int, Range(1, 1024)]  # the CPU cores that a job asks for, for each rank
    gpus_per_node: Annotated[int, Range(0, 1024)]  # the GPUs that a job asks for on each node
    # a list of further options of sbatch, in their long form, such as ['--mem=8G','--qos=low']
    options: Annotated[list[str], Line("give options of sbatch, such as ['--mem=8G']")]
    # a list of shell commands that come before the ranks, such as ['module load cuda']
    setup: Annotated[list[str], Line("give shell commands, such as ['module load cuda']")]
    # let Slurm start a job again that it has ended to make room, or whose node has failed; also one with `minutes`
    # that goes on from snapshots and whose time is over
    requeue: bool
    # the number of jobs that are in the queue at the same time; null: all points of the sweep
    at_once: Annotated[int | None, Range(1, MOST, "null for all")]
    poll_s: Annotated[float, Positive(3600, "use for example 5")]  # the time between two looks at the queue, in seconds

    def problems(self, ranks: int, replicas: int = 1) -> list[str]:
        """List the values that are wrong or do not fit the number of ranks, one sentence each."""
        problems = super().problems(ranks, replicas)
        if words := [option for option in self.options if not option.startswith("--")]:
            problems.append(f"launch.options has {words[0]}: give options of sbatch, such as --mem=8G")
        if self.nodes >= 1 and ranks * replicas % self.nodes:
            who = f"ranks={ranks}" if replicas == 1 else f"ranks={ranks} times replicas={replicas}"
            problems.append(
                f"launch.nodes={self.nodes} does not divide {who}: every node gets as many ranks, "
                f"use launch.nodes=1 or a divisor of {ranks * replicas}"
            )
        return problems

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
