"""Snapshots as a user asks for them: what is refused before anything starts, a killed run that goes on, the weights."""

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import rank_faults
import torch
import user
from configs import config
from stored import spoil

import microp
from microp import worker
from microp.config import ConfigError, job_of, make_job, nothing_to_resume
from microp.model import open_data
from microp.model.layers import Bits
from microp.records import read_json, read_rows

TEXT = f"data.path={Path(torch.__file__).parent / 'serialization.py'}"
SMALL = ["model.layers=4", "model.dim=32", "batch_size=8", "tracking=disabled", "snapshot.final=true", TEXT]
WORDS = [*SMALL, "steps=4", "warmup_steps=1", "snapshot.every=2", "snapshot.keep=9"]


def problems(*words: str) -> list[str]:
    """What keeps a run alone from being started."""
    try:
        point = config(*words)
        return nothing_to_resume(point, make_job(point))
    except ConfigError as error:
        return error.problems


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """The attempt of a finished run with snapshots after 2 and 4 of 5 steps."""
    folder = tmp_path_factory.mktemp("saved")
    return microp.measure(*WORDS, "comms=threads", f"output_dir={folder}/outputs").folder


@pytest.fixture
def attempt(saved, tmp_path):
    """A copy of it to be damaged, as if it had been killed."""
    copy = tmp_path / "outputs" / "runs" / saved.parent.name / saved.name
    shutil.copytree(saved, copy)
    status = copy / "status.json"
    status.write_text(status.read_text().replace('"finished"', '"running"'))
    return copy


OTHERS = {
    "model.dim=64": "it has model.dim=32, this run has model.dim=64: give the same values",
    "model=gpt": "model.name=mlp",
    f"data.path={__file__}": f"this run has data.path={__file__}: give the same values",
    "seed=1": "seed=0",
    "learning_rate=0.1": "learning_rate=0.001",
    "dtype=bf16": "it has dtype=None, this run has dtype=bf16: give the same values",
    "steps=1": "step-4 has 4 steps, which are all 2 of this run (warmup_steps=1, steps=1): give more steps",
}


@pytest.mark.parametrize("word", OTHERS)
def test_a_snapshot_of_another_training_is_refused(word, saved, tmp_path):
    [problem] = problems(*WORDS, word, f"snapshot.path={saved}", f"output_dir={tmp_path}")
    assert OTHERS[word] in problem


def test_another_number_of_ranks_partition_or_schedule_is_not(saved, tmp_path):
    words = ["ranks=3", "schedule=1f1b", "partition=skewed", "chunks=2", "checkpointing=always", "comms=gloo"]
    for path in (saved, saved.parent, saved / "snapshots" / "step-4"):
        assert problems(*WORDS, *words, f"snapshot.path={path}", f"output_dir={tmp_path}") == []


DAMAGES = [
    *(("layer-2.pt", how) for how in ("missing", "cut", "one bit", "not a snapshot")),
    *(("snapshot.json", how) for how in ("missing", "{}")),
    ("snapshot.json", '{"format": 2, "step": 4, "training": {}}'),  # of a newer microp
]


@pytest.mark.parametrize(("name", "how"), DAMAGES)
def test_a_damaged_snapshot_is_refused(name, how, attempt):
    spoil(attempt / "snapshots" / "step-4" / name, how)
    [problem] = problems(*WORDS, "comms=threads", "snapshot.resume=true", f"output_dir={attempt.parents[2]}")
    end = "(remove the snapshot, or go on from another one|update microp)"
    assert re.fullmatch(rf".*snapshots/step-4.*{name}.*{end}", problem)


def test_a_removed_damaged_one_leaves_the_one_before_it_and_asking_is_the_same_question(attempt):
    shutil.rmtree(attempt / "snapshots" / "step-4")
    point = config(*WORDS, "comms=threads", "snapshot.resume=true", f"output_dir={attempt.parents[2]}")
    assert make_job(point).resumed.step == 2
    plain, other = make_job(config()), make_job(config("snapshot.every=3", "snapshot.keep=2", "snapshot.final=true"))
    assert (plain.run_id, plain.question_id) == (other.run_id, other.question_id)


def losses(attempt: Path) -> dict[tuple[int, str], float]:
    """Of the last rank, by step and phase."""
    return {(row["step"], row["phase"]): row["loss"] for row in read_rows(attempt, 1)}


def test_a_killed_run_goes_on_and_says_so(tmp_path, monkeypatch):
    """The ranks are processes, and one kills itself in its third step."""
    words = [*WORDS, "model=gpt", "model.dropout=0.1", "snapshot.every=1", "snapshot.keep=1", f"output_dir={tmp_path}"]
    with monkeypatch.context() as patch:
        launch = worker.launch_ranks
        fault = rank_faults.Fault("kill", "forward")
        patch.setattr(worker, "launch_ranks", lambda *words: launch(*words[:3], fault))
        with pytest.raises(microp.RunError, match="rank 1 was killed by SIGKILL"):
            microp.measure(*words)
    [killed] = tmp_path.glob("runs/*/attempt-1")
    assert [path.name for path in (killed / "snapshots").iterdir()] == ["step-2"]
    resumed = microp.measure(*words, "snapshot.resume=true")
    assert resumed.folder == killed.parent / "attempt-2"
    came_from = {"step": 2, "snapshot": f"{killed.parent.name}/attempt-1/snapshots/step-2"}
    assert resumed.summary["resumed"] == read_json(resumed.folder / "status.json")["resumed"] == came_from
    assert (resumed.summary["steps"], resumed.summary["step_ms"]["n"]) == (3, 3)
    assert [path.name for path in killed.parent.glob("*/snapshots/*")] == ["step-5"]
    whole = microp.measure(*words, "comms=threads")
    expected = losses(whole.folder)
    assert losses(resumed.folder) == {key: expected[key] for key in expected if key != (1, "measured")}
    one, other = (torch.load(run.folder / "weights.pt", weights_only=True) for run in (whole, resumed))
    assert all(torch.equal(one[name], other[name]) for name in one)
    assert whole.summary["resumed"] is None
    assert microp.load_runs(tmp_path)["status"].tolist().count("finished") == 2


def test_in_a_sweep_points_without_a_snapshot_start_at_their_beginning(saved, tmp_path):
    shutil.copytree(saved.parents[2], tmp_path / "outputs")
    [status] = (tmp_path / "outputs" / "runs").glob("*/attempt-1/status.json")
    status.write_text(status.read_text().replace('"finished"', '"failed"'))
    words = ["-m", "chunks=2,4", *WORDS, "comms=threads", "snapshot.resume=true"]
    done = user.ran(*words, folder=tmp_path)
    assert f"{saved.parent.name} goes on after step 4 of 5, from outputs/runs/" in done.stderr
    found = {path.parts[-3][:9]: read_json(path)["resumed"] for path in tmp_path.glob("outputs/runs/*/*/summary.json")}
    assert found["gpipe-m2-"] is None
    steps = [read_json(path)["steps"] for path in tmp_path.glob("outputs/runs/gpipe-m4-*/attempt-2/summary.json")]
    assert steps == [1]
    again = user.ran(*words, folder=tmp_path)
    assert "2 of 2 points are finished already" in again.stderr


def test_the_readme_s_lines_load_the_weights_without_microp(tmp_path):
    """The model of the default configuration; its loss on the last batch falls when plain PyTorch computes it."""
    words = ["comms=threads", "tracking=disabled", "steps=2", "warmup_steps=0", "chunks=1", "batch_size=256"]
    run = microp.measure(*words, f"output_dir={tmp_path}", "snapshot.final=true")
    [path] = tmp_path.glob("runs/*/attempt-1/weights.pt")
    code = f"""
import sys
sys.modules["microp"] = None  # an import of it raises ImportError
{user.readme_block("python", "weights.pt")}
torch.set_num_threads(1)
bits = torch.load("inputs.pt")
with torch.no_grad():
    print(torch.nn.functional.cross_entropy(model(bits["inputs"]), bits["targets"]).item())
"""
    job = job_of(*words)
    window = open_data(job.data, job.batch_size, job.model.row_bytes, job.seed)(2)  # the batch of the step for memory
    inputs = Bits(torch.float32)(window[:, :-1])
    torch.save({"inputs": inputs, "targets": window[:, -1]}, path.parent / "inputs.pt")
    done = subprocess.run([sys.executable, "-c", code], cwd=path.parent, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    [memory] = [row["loss"] for row in read_rows(run.folder, 1) if row["phase"] == "memory"]
    assert float(done.stdout) == pytest.approx(memory, rel=1e-6)
