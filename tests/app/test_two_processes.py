"""Two processes that are asked for the same points: each point is run once, and both show its result."""

from __future__ import annotations

import csv
import os
import shutil
import time

from user import SMALL, begin, microp

from microp.app import job_of
from microp.store import hold

WORDS = [*SMALL, "tracking=disabled", "comms=threads"]


def test_two_sweeps_at_once_run_each_point_once_and_have_a_folder_each(tmp_path):
    both = [begin("-m", "chunks=2,3", *WORDS, folder=tmp_path) for _ in range(2)]
    for process in both:
        _, errors = process.communicate(timeout=300)
        assert process.returncode == 0, errors
    attempts = sorted((tmp_path / "outputs" / "runs").glob("*/attempt-*"))
    assert [path.name for path in attempts] == ["attempt-1"] * 2
    tables = [list(csv.DictReader(path.open())) for path in (tmp_path / "outputs" / "sweeps").glob("*/table.csv")]
    assert len(tables) == 2
    for table in tables:
        assert [(row["chunks"], row["status"]) for row in table] == [("2", "finished"), ("3", "finished")]


def test_a_single_run_is_told_who_runs_it(tmp_path):
    run = tmp_path / "outputs" / "runs" / job_of("chunks=2", *WORDS).run_id
    with hold(run):
        done = microp("chunks=2", *WORDS, folder=tmp_path)
    assert done.returncode == 1
    [line] = [each for each in done.stderr.splitlines() if each.startswith("error: ")]
    assert line.startswith(f"error: {run.name} is being run by process {os.getpid()} on ")
    assert line.endswith(f"wait until it has ended, or stop it (it holds outputs/runs/{run.name}/lock)")
    assert list(run.iterdir()) == []  # nothing was started


# --- runs that are removed while a sweep goes on -------------------------------------------------


def until(condition) -> None:
    end = time.monotonic() + 100
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.02)


def test_a_sweep_runs_a_point_itself_if_the_run_that_it_waits_for_is_removed(tmp_path):
    run = tmp_path / "outputs" / "runs" / job_of("chunks=2", *WORDS).run_id
    with hold(run):
        sweep = begin("-m", "chunks=2,3", *WORDS, folder=tmp_path)
        until(lambda: "this sweep waits" in sweep.said())
        shutil.rmtree(run)
        out, errors = sweep.communicate(timeout=200)
    assert sweep.returncode == 0, errors
    assert out.startswith("2 finished")


def test_a_sweep_goes_on_without_the_runs_that_are_removed_and_names_them(tmp_path):
    """One that has finished, one that runs, and one of which a file is missing when the table is made."""
    runs = tmp_path / "outputs" / "runs"
    words = [*SMALL[:-2], "steps=300", "tracking=disabled", "comms=threads"]
    ids = [job_of(f"chunks={chunks}", *words).run_id for chunks in (2, 3, 4, 5)]
    sweep = begin("-m", "chunks=2,3,4,5", *words, folder=tmp_path)

    def has_begun(run: str) -> bool:
        rows = runs / run / "attempt-1" / "steps.rank0.jsonl"
        return rows.exists() and rows.stat().st_size > 0

    until(lambda: has_begun(ids[1]))
    shutil.rmtree(runs / ids[0])
    shutil.rmtree(runs / ids[1])
    until(lambda: has_begun(ids[3]))
    (runs / ids[2] / "attempt-1" / "env.json").write_text("damaged")
    out, errors = sweep.communicate(timeout=200)
    assert sweep.returncode == 1
    assert out.startswith("finished: schedule=gpipe chunks=5 "), out
    [said] = [line for line in errors.splitlines() if line.startswith("error: ")]
    lost = ", ".join(sorted(f"outputs/runs/{run}" for run in ids[:3]))
    assert said == f"error: no result of 3 of 4 points, removed or damaged: {lost}: run the same command again"
