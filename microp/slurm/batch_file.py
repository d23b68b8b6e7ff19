"""Writes the batch file of a job as text.

::

    1 node     python -m module ...                   which starts the ranks itself
    2 nodes    srun ─┬─ torchrun ── ranks of node 1   they meet at the address by which Slurm reaches the first node
                     └─ torchrun ── ranks of node 2
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from microp.settings import SlurmSettings

FIRST_PORT, PORTS = 20_000, 10_000  # where nodes meet; below the ports that Linux gives to programs that ask for any
MEET = r"""first=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
address=$(scontrol show node "$first" --oneliner | sed -n 's/.* NodeAddr=\([^ ]*\).*/\1/p')"""


class BatchJob(NamedTuple):
    """What a job runs.

    Attributes:
        name: of the job.
        ranks: the number of all ranks.
        folder: the folder in which it runs.
        log: the file for its output, to which a job that is started again adds.
        python: the interpreter.
        module: its words are the module that the interpreter runs as a program, and the arguments.
    """

    name: str
    ranks: int
    folder: str
    log: str
    python: str
    module: Sequence[str]


def batch_file(settings: SlurmSettings, job: BatchJob) -> str:
    """Return the text of a job's batch file; the same arguments give the same text."""
    options = "".join(f"#SBATCH {option}\n" for option in _options(settings, job))
    setup = "".join(f"{line}\n" for line in settings.setup)
    return f"#!/bin/bash\n{options}\n{setup}{_command(settings, job)}\n"


def _options(settings: SlurmSettings, job: BatchJob) -> Iterator[str]:
    """Yield the options of sbatch; one that the user gives comes last, and so it counts."""
    per_node = settings.ranks_per_node(job.ranks)
    values = {
        "job-name": job.name,
        "chdir": job.folder,
        "output": job.log.replace("%", "%%"),
        "open-mode": "append",
        "partition": settings.partition,
        "account": settings.account,
        "time": settings.minutes,
        "nodes": settings.nodes,
        "ntasks-per-node": 1,
        "cpus-per-task": per_node * settings.cores_per_rank,
        "gpus-per-node": settings.gpus_per_node or None,
    }
    for key, value in values.items():
        if value is not None:
            yield f"--{key}={shlex.quote(str(value))}"
    yield "--requeue" if settings.requeue else "--no-requeue"
    yield from settings.options


def _command(settings: SlurmSettings, job: BatchJob) -> str:
    """Return the last lines of the file; `exec`, so that Slurm's signals reach the program."""
    python, module = shlex.quote(job.python), shlex.join(["-m", *job.module])
    if settings.nodes == 1:
        return f"exec {python} {module}"
    torchrun = (
        f"--nnodes={settings.nodes} --nproc-per-node={settings.ranks_per_node(job.ranks)} --rdzv-backend=c10d "
        f'--rdzv-id="$SLURM_JOB_ID.${{SLURM_RESTART_COUNT:-0}}" '
        f'--rdzv-endpoint="$address:$(({FIRST_PORT} + SLURM_JOB_ID % {PORTS}))"'
    )
    return (
        f"{MEET}\n"
        'export SRUN_CPUS_PER_TASK="$SLURM_CPUS_PER_TASK"\n'  # srun does not take it from sbatch
        f"exec srun --kill-on-bad-exit=1 {python} -m torch.distributed.run {torchrun} {module}"
    )
