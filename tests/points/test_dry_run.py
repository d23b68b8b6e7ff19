"""`dry_run=true` shows the points, their state, their steps and their predicted time, and leaves nothing behind."""

import os

import pytest
from profiled import written
from stored import store_run
from user import SMALL, microp, ran

from microp.commands.interface import measure
from microp.config import ConfigError, job_of
from microp.config.config import compose_config
from microp.records import hold

TIMES = ["device=emulated", "device.forward_ms=10", "device.backward_ms=20", "tracking=disabled", "comms=threads"]
WORDS = [*TIMES, *SMALL]


@pytest.fixture
def dry(tmp_path):
    """Shows what a sweep would do: (exit code, rows of the table, everything that was printed)."""

    def run(*words: str) -> tuple[int, list[str], str]:
        done = microp("-m", *words, "dry_run=true", folder=tmp_path, COLUMNS="200")
        rows = [line for line in done.stdout.splitlines() if line.rstrip().endswith(" -") or "-k2-" in line]
        return done.returncode, rows, done.stdout + done.stderr

    return run


def files(folder) -> list[str]:
    return sorted(str(path) for path in folder.rglob("*"))


def test_each_point_has_its_state_its_steps_and_its_predicted_time(dry, tmp_path):
    store_run(tmp_path / "outputs", "chunks=2", *WORDS)
    before = files(tmp_path)
    code, rows, text = dry("repeat=0,1", "chunks=2,4,400", *WORDS)
    assert code == 2
    assert [row.split()[:2] for row in rows] == [[r, m] for r in "01" for m in ("2", "4", "400")]
    assert [" ".join(row.split()[2:-1]) for row in rows] == [
        "done - -",
        "to run 5 0.8 s",  # 5 steps of (4 + 1) x 30 ms: a warm-up step, 3 measured ones, one for the memory
        "invalid - -",
        "to run 5 0.4 s",  # 5 steps of (2 + 1) x 30 ms
        "to run 5 0.8 s",
        "invalid - -",
    ]
    starts = "and 3 starts of their processes. Nothing was started."
    assert f"1 done, 2 invalid, 3 to run: 15 steps, about 1.9 s, {starts}" in text
    assert "error: chunks=400 is more than batch_size=8 has rows: use at most 8" in text
    assert files(tmp_path) == before
    code, rows, _ = dry("chunks=2", *WORDS, "again=true")
    assert (code, rows[0].split()[:2]) == (0, ["to", "run"])


def test_a_profile_s_doubt_is_repeated(dry, tmp_path):
    written(tmp_path / "outputs", *SMALL, load=2.5)
    assert "was measured beside other work (load average 2.5)" in dry("chunks=2,4", *SMALL)[2]


def test_what_another_process_runs_is_said(dry, tmp_path):
    with hold(tmp_path / "outputs" / "runs" / job_of("chunks=2", *WORDS).run_id):
        code, rows, text = dry("chunks=2,4", *WORDS)
    assert code == 0
    assert f"run by process {os.getpid()} on " in rows[0]
    assert "1 to run: 5 steps" in text


def test_equal_and_left_out_points_and_unused_keys_are_told(dry):
    code, rows, text = dry("learning_rate=1e-3,0.001", "chunks=2,4", "skip=true,false", *WORDS)
    assert code == 0
    assert len(rows) == 2
    assert "4 points are 2 runs" in text
    assert "skip=true leaves 4 of 8 points out" in text
    code, _, text = dry("chunks=2,4", "checkpointing.segments=3", *WORDS)
    assert code == 2
    assert "checkpointing.segments=3 is not used by checkpointing=never" in text


def test_points_that_cannot_be_composed_are_shown_with_the_others(dry):
    code, rows, text = dry("schedule=gpipe,gpip", "chunks=2,many", *WORDS)
    assert code == 2
    assert ["invalid" in row for row in rows] == [False, True, True, True]
    assert "chunks: Value 'many' " in text
    assert "schedule/gpip" in text


def test_a_command_shows_it_and_writes_nothing(tmp_path):
    one = "-cn", "first", "hydra.mode=RUN", "chunks=4", "schedule=gpipe"  # as the report prints a point that is missing
    assert "1 to run" in ran(*one, "dry_run=true", folder=tmp_path).stdout
    done = ran("chunks=4", "dry_run=true", *WORDS, folder=tmp_path)
    assert done.stdout.startswith("a dry run: chunks=4 device=emulated ")
    assert "1 to run: 5 steps, about 0.8 s. Nothing was started." in done.stdout
    assert list(tmp_path.iterdir()) == []
    refused = microp("-m", "chunks=2,4", "dry_run=true,false", *WORDS, folder=tmp_path)
    assert refused.returncode == 2
    assert "error: dry_run=true,false: dry_run is for all points of a sweep: give one value" in refused.stderr
    refused = microp("-m", "chunks=2,4", "schedule.group=2", "dry_run=true", *WORDS, folder=tmp_path)
    assert (refused.returncode, refused.stdout) == (2, "")  # a key that no point uses: none is to run
    assert list(tmp_path.iterdir()) == []


def test_a_price_and_python_refuse_it():
    with pytest.raises(ConfigError, match="dry_run=true is not used by a price: leave it out"):
        compose_config("dry_run=true", name="simulate")
    with pytest.raises(ConfigError, match="dry_run=true is for the command line"):
        measure("dry_run=true")
