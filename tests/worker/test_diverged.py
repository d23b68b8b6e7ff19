"""A loss that is not finite ends a run at its step, on every rank, and is a state of its own."""

import math
import re

import pytest
from conftest import small_job
from user import SMALL, microp, read

from microp.model import Stage
from microp.records import read_errors, read_rows, summarise
from microp.schedule.builders import one_f_one_b
from microp.settings import SnapshotSettings
from microp.worker import RankError, launch_ranks, run_threads

SAVED_THEN = SnapshotSettings("disk", 2, 1, False, None, False)  # before step 2
SAVED_EACH = SnapshotSettings("disk", 1, 1, True, None, True)
LEFT_THEN = SnapshotSettings("disk", None, 1, False, None, True)  # after the last step


@pytest.mark.parametrize(
    ("start", "changes"),
    [
        (launch_ranks, {}),
        (run_threads, {"replicas": 2, "backend": "threads", "snapshot": SAVED_THEN}),
        (run_threads, {"backend": "threads", "steps": 1, "snapshot": LEFT_THEN}),
        (launch_ranks, {"snapshot": SAVED_THEN}),
    ],
)
def test_every_rank_keeps_its_row_of_that_step(start, changes, tmp_path):
    job = small_job(**{"schedule": one_f_one_b(2, 4), "steps": 40, "learning_rate": 1e30, **changes})
    with pytest.raises(RankError, match=r"^loss is nan at step 1 \(rank 1") as refused:
        start(job, tmp_path)
    diverged = [error for error in read_errors(tmp_path) if error["diverged"]]
    assert str(refused.value) == diverged[0]["message"]
    for error in [error for error in diverged if error["rank"] == 1]:  # where the loss is
        replica = f" of replica {error['replica']}" if job.replicas > 1 else ""
        where = f"rank 1{replica}, measured step"
        assert error["message"] == f"loss is nan at step 1 ({where}): lower learning_rate=1e+30"
    assert not [*tmp_path.glob("**/step-*"), *tmp_path.glob("**/weights.pt")]
    for rank in range(job.processes):
        assert [row["step"] for row in read_rows(tmp_path, rank)] == [0, 1]
    assert not any("NaN" in path.read_text() for path in tmp_path.glob("*.json*"))
    assert read_rows(tmp_path, 1)[-1]["loss"] is None
    summary = summarise(job, tmp_path, "diverged")
    assert (summary["steps"], summary["loss"]) == (1, {"first": None, "last": None})


def test_as_typed(tmp_path):
    words = ["-m", "learning_rate=1e6,0.001", "model.layers=12", *SMALL[1:], "comms=threads", "tracking=disabled"]
    done = microp(*words, folder=tmp_path)
    assert done.returncode == 3, done.stderr
    assert "Traceback" not in done.stderr
    assert "1 finished, 1 diverged" in done.stdout
    said = r"loss is nan at step 1 \(rank 1, measured step\): lower learning_rate=1e\+06"
    assert re.search(said, done.stderr), done.stderr
    states = {read(path)["status"] for path in tmp_path.glob("outputs/runs/*/attempt-1/status.json")}
    assert states == {"finished", "diverged"}
    assert not any("NaN" in path.read_text() for path in tmp_path.glob("outputs/**/*.json"))
    listed = microp(folder=tmp_path, program="microp.runs").stdout
    assert "1 finished, 1 diverged" in listed or "1 diverged, 1 finished" in listed
    assert "diverged: gpipe-m4-k2-" in listed


LOWER, LOOK = "lower learning_rate=0.01", "look at the model and the data, for before the first step .*"


@pytest.mark.parametrize(
    ("spoiled", "step", "changes", "said"),
    [
        ("backward", 3, {}, rf"loss is nan at step 4 \(rank 1, measured step\): {LOWER}"),
        ("forward", 0, {}, rf"loss is nan at step 0 .*: {LOOK}"),
        ("backward", 3, {"replicas": 2}, rf"loss is nan at step 4 \(rank 1 of replica [01], measured step\): {LOWER}"),
        ("backward", 3, {"snapshot": SAVED_THEN}, rf"weights .* after step 3 \(.*\), and are not saved: {LOWER}"),
        ("backward", 0, {"snapshot": SAVED_EACH}, rf"weights .* after step 0 .*: {LOOK}"),
        ("backward", 7, {"snapshot": LEFT_THEN}, rf"weights .* after step 7 .*: {LOWER}"),
    ],
)
def test_it_is_named(spoiled, step, changes, said, tmp_path, monkeypatch):
    """Of two replicas the second one is spoiled."""
    job = small_job(**{"schedule": one_f_one_b(2, 4), "steps": 7, "backend": "threads", **changes})
    attempt = tmp_path / "run" / "attempt-1"
    attempt.mkdir(parents=True)
    original = getattr(Stage, spoiled)

    def spoiling(stage: Stage, microbatch: int, x):
        result = original(stage, microbatch, x)
        is_due = (stage.batch.step, microbatch) == (step, 1) and stage.batch.first == 4 * (job.replicas - 1)
        if not is_due or (spoiled == "backward" and stage.losses == {}) or (spoiled == "forward" and x is not None):
            return result
        return None if result is None else result * math.nan

    monkeypatch.setattr(Stage, spoiled, spoiling)
    with pytest.raises(RankError):
        run_threads(job, attempt)
    diverged = [error["message"] for error in read_errors(attempt) if error["diverged"]]
    assert re.fullmatch(said, diverged[0]), diverged
    saved = [int(path.name.removeprefix("step-")) for path in attempt.glob("snapshots/*")]
    assert all(number <= step for number in saved)  # what is not finite is not saved, and no row is lost
    assert not list(attempt.glob("weights.pt"))
    assert step in [row["step"] for row in read_rows(attempt, 1)]
