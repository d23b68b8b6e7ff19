"""The batch file of a job is text that can be read, and that bash accepts."""

from __future__ import annotations

import os
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from microp.settings import SlurmSettings
from microp.slurm import BatchJob, batch_file

SETTINGS = SlurmSettings(
    name="slurm",
    shutdown_s=3,
    partition=None,
    account=None,
    minutes=None,
    nodes=1,
    cores_per_rank=1,
    gpus_per_node=0,
    options=[],
    setup=[],
    requeue=True,
    at_once=None,
    poll_s=5,
)
JOB = BatchJob(
    name="gpipe-m4-k4-9fba154a",
    ranks=4,
    folder="/home/ada/lab",
    log="/home/ada/lab/outputs/sweeps/today/slurm/gpipe-m4-k4-9fba154a.log",
    python="/home/ada/.venv/bin/python",
    module=["microp.point", "outputs/sweeps/today", "gpipe-m4-k4-9fba154a"],
)
ONE_NODE = """#!/bin/bash
#SBATCH --job-name=gpipe-m4-k4-9fba154a
#SBATCH --chdir=/home/ada/lab
#SBATCH --output=/home/ada/lab/outputs/sweeps/today/slurm/gpipe-m4-k4-9fba154a.log
#SBATCH --open-mode=append
#SBATCH --nodes=1
#SBATCH --ntasks-per-node=1
#SBATCH --cpus-per-task=4
#SBATCH --requeue

exec /home/ada/.venv/bin/python -m microp.point outputs/sweeps/today gpipe-m4-k4-9fba154a
"""
TWO_NODES = """#!/bin/bash
#SBATCH --job-name=gpipe-m4-k4-9fba154a
#SBATCH --chdir=/home/ada/lab
#SBATCH --output=/home/ada/lab/outputs/sweeps/today/slurm/gpipe-m4-k4-9fba154a.log
#SBATCH --open-mode=append
#SBATCH --partition=gpu
#SBATCH --account=lovelace
#SBATCH --time=90
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=1
#SBATCH --cpus-per-task=6
#SBATCH --gpus-per-node=2
#SBATCH --no-requeue
#SBATCH --mem=8G

module load cuda
first=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
address=$(scontrol show node "$first" --oneliner | sed -n 's/.* NodeAddr=\\([^ ]*\\).*/\\1/p')
export SRUN_CPUS_PER_TASK="$SLURM_CPUS_PER_TASK"
exec srun --kill-on-bad-exit=1 /home/ada/.venv/bin/python -m torch.distributed.run --nnodes=2 --nproc-per-node=2 \
--rdzv-backend=c10d --rdzv-id="$SLURM_JOB_ID.${SLURM_RESTART_COUNT:-0}" \
--rdzv-endpoint="$address:$((20000 + SLURM_JOB_ID % 10000))" \
-m microp.point outputs/sweeps/today gpipe-m4-k4-9fba154a
"""
FILLED_IN = replace(
    SETTINGS,
    partition="gpu",
    account="lovelace",
    minutes=90,
    nodes=2,
    cores_per_rank=3,
    gpus_per_node=2,
    options=["--mem=8G"],
    setup=["module load cuda"],
    requeue=False,
)


@pytest.mark.parametrize(("settings", "text"), [(SETTINGS, ONE_NODE), (FILLED_IN, TWO_NODES)], ids=["one", "two"])
def test_the_text(settings, text):
    assert batch_file(settings, JOB) == text
    assert subprocess.run(["bash", "-n"], input=text, text=True, capture_output=True).stderr == ""


def test_names_with_blanks_and_signs_stay_whole(tmp_path):
    """The shell gives the module its words as they were; in the name of the log % is no pattern of Slurm's."""
    words = ["microp.point", "my outputs/$HOME", "a'b"]
    job = JOB._replace(python=str(tmp_path / "my python"), module=words, log="/tmp/100%/a b.log")
    text = batch_file(SETTINGS, job)
    assert "--output='/tmp/100%%/a b.log'\n" in text
    Path(job.python).write_text('#!/bin/sh\nfor word; do echo "$word"; done\n')
    Path(job.python).chmod(0o755)
    done = subprocess.run(["bash"], input=text, text=True, capture_output=True, check=True)
    assert done.stdout.splitlines() == ["-m", *words]


def test_the_nodes_meet_at_the_address_by_which_slurm_reaches_the_first_one(tmp_path):
    """A node's name need not resolve on the others; its address does, or Slurm could not reach it either."""
    programs = {
        "scontrol": '[ "$2" = hostnames ] && printf "n7\\nn8\\n" || echo "NodeName=$3 NodeAddr=10.1.2.7 X=x"',
        "srun": 'echo "$@"',
    }
    for name, line in programs.items():
        (tmp_path / name).write_text(f"#!/bin/sh\n{line}\n")
        (tmp_path / name).chmod(0o755)
    path = f"{tmp_path}{os.pathsep}{os.environ['PATH']}"
    slurm = {"SLURM_JOB_NODELIST": "n[7-8]", "SLURM_JOB_ID": "61234", "SLURM_CPUS_PER_TASK": "6", "PATH": path}
    text = batch_file(replace(FILLED_IN, setup=[]), JOB)
    done = subprocess.run(["bash"], input=text, text=True, capture_output=True, env=slurm, check=True)
    assert "--rdzv-id=61234.0 --rdzv-endpoint=10.1.2.7:21234 -m microp.point" in done.stdout
