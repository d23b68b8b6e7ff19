"""A sweep as jobs of a real Slurm on this host. Skipped, with the reason, where its programs are not installed."""

import csv
import signal
import subprocess
import time
from itertools import product
from pathlib import Path

import pytest
from cluster import Cluster, NoSlurmError
from user import SMALL, begin, read, until

QUIET = ["tracking=disabled", *SMALL]
POLL = ["launch=slurm", "launch.poll_s=0.5"]
EMULATED = ["device=emulated", "device.forward_ms=5", "device.backward_ms=10"]
LATER = "launch.options=['--begin=now+1hour']"
LONGEST_S = 120
_started: list[begin] = []


@pytest.fixture(scope="module")
def slurm():
    try:
        with Cluster() as cluster:
            yield cluster
            for sweep in _started:
                if sweep.poll() is None:
                    sweep.send_signal(signal.SIGKILL)
    except NoSlurmError as reason:
        pytest.skip(str(reason))


def start(slurm: Cluster, folder: Path, *words: str) -> begin:
    sweep = begin("-m", *POLL, *QUIET, *words, folder=folder, **slurm.environment)
    _started.append(sweep)
    return sweep


def end(sweep: begin) -> tuple[int, str, str]:
    """Wait for a sweep: its exit code, and what it printed."""
    try:
        out, err = sweep.communicate(timeout=LONGEST_S)
    except subprocess.TimeoutExpired:
        raise AssertionError(sweep.said()) from None
    return sweep.returncode, out, err


def states(slurm: Cluster, folder: Path) -> dict[str, str]:
    """The states of the jobs that run in a folder, by the ids of their runs."""
    lines = slurm.run("squeue", "--states=all", "--noheader", "--format=%j|%T|%Z").splitlines()
    rows = [line.split("|") for line in lines]
    return {name: state for name, state, where in rows if where == str(folder)}


def test_a_sweep_one_job_of_which_is_preempted_comes_back_whole(slurm, whole, tmp_path):
    """The job that Slurm ends and starts again goes on from its snapshot; the others are not touched.

    There are two jobs, four with `--whole`.
    """
    saves = ["snapshot.every=20", "snapshot.resume=true"]
    chunks = ["2", "4"] if whole else ["4"]
    words = ["schedule=gpipe,1f1b", f"chunks={','.join(chunks)}", *EMULATED, "steps=200", *saves]
    sweep = start(slurm, tmp_path, *words)
    runs = tmp_path / "outputs" / "runs"
    until(lambda: list(runs.glob("gpipe-m4-*/attempt-1/snapshots/step-*")), sweep.said)
    [run] = [path.name for path in runs.glob("gpipe-m4-*")]
    job = slurm.run("squeue", "--noheader", f"--name={run}", "--format=%i").strip()
    slurm.run("scontrol", "requeue", job)
    until(lambda: states(slurm, tmp_path)[run] == "PENDING", sweep.said)
    # Slurm would wait two minutes, and refuses a start in the second in which the job ended.
    slurm.run("scontrol", "update", f"JobId={job}", "StartTime=now+2")
    code, out, err = end(sweep)
    assert code == 0, err
    points = list(product(("gpipe", "1f1b"), chunks))
    assert f"{len(points)} finished" in out
    [table] = (tmp_path / "outputs" / "sweeps").glob("*/table.csv")
    rows = list(csv.DictReader(table.open()))
    found = [(row["schedule"], row["chunks"], row["status"]) for row in rows]
    assert found == [(*point, "finished") for point in points]
    first, second = (read(runs / run / f"attempt-{number}" / "status.json") for number in (1, 2))
    assert first["status"] in ("failed", "killed")
    assert second["status"] == "finished"
    assert first["slurm_job"] == second["slurm_job"] == job
    assert second["resumed"]["step"] >= 20
    jobs = [read(path / "attempt-1" / "status.json")["slurm_job"] for path in runs.iterdir()]
    assert len(set(jobs)) == len(points)
    assert {f"{job}_submission.sh" for job in jobs} <= {path.name for path in table.parent.glob("slurm/*.sh")}


def test_two_nodes_meet_and_run_one_pipeline(slurm, tmp_path):
    code, _, err = end(start(slurm, tmp_path, "launch.nodes=2", "chunks=2"))
    logs = [path.read_text() for path in tmp_path.glob("outputs/sweeps/*/slurm/*.err")]
    assert code == 0, (err, logs)
    [attempt] = (tmp_path / "outputs" / "runs").glob("*/attempt-1")
    assert read(attempt / "summary.json")["ranks"] == 2
    assert len(list(attempt.glob("steps.rank*.jsonl"))) == 2


def test_ctrl_c_cancels_the_jobs(slurm, tmp_path):
    sweep = start(slurm, tmp_path, "chunks=2,3,4", LATER)
    until(lambda: len(states(slurm, tmp_path)) == 3, sweep.said)
    time.sleep(0.5)
    sweep.send_signal(signal.SIGINT)
    code, _, err = end(sweep)
    assert code == 130
    [line] = [line for line in err.splitlines() if "cancelled" in line]
    assert line.startswith("cancelled in Slurm: 3 jobs, ")
    assert set(states(slurm, tmp_path).values()) == {"CANCELLED"}
