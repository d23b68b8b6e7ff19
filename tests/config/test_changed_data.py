"""A path says where the data are, and not what they hold: a file that changes is told."""

import json
from pathlib import Path

import pytest
from user import SMALL, microp, ran

import microp as api
from microp import worker
from microp.config import ConfigError, about_resumed, compose_config, job_of, read_config
from microp.results import load_runs

WORDS = [*SMALL, "chunks=2", "tracking=disabled", "comms=threads", "data.path=a.txt"]


@pytest.fixture
def text(tmp_path, monkeypatch) -> Path:
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "a.txt"
    path.write_text("once upon a time " * 100)
    return path


def test_between_two_sweeps_and_in_the_table_of_both(text):
    assert "a.txt" not in microp("-m", "seed=1", *WORDS, folder=text.parent).stderr
    again = microp("-m", "seed=1,2", *WORDS, folder=text.parent)
    assert (again.returncode, "a.txt" in again.stderr) == (0, False)
    text.write_text("once upon a  time " * 100)
    changed = ran("-m", "seed=1,2,3", *WORDS, folder=text.parent)
    before, after = " ".join(changed.stderr.split()).split("warning: data.path=a.txt ")[1:]
    assert before.startswith("has changed: 2 runs read 1700 bytes, written 20")
    assert "; it holds 1800 bytes, written 20" in before
    assert after.startswith("has changed: 2 runs read 1700 bytes, written 20")
    assert ", 1 run read 1800 bytes, written 20" in after
    found = load_runs(text.parent / "outputs")["env.data.start"]
    assert sorted(each.partition(" ")[0] for each in found) == ["1700", "1700", "1800"]


def test_while_a_run_reads_it(text, monkeypatch, capsys):
    run_threads = worker.run_threads

    def changing(*given):
        run_threads(*given)
        text.write_text("something else")

    monkeypatch.setattr(worker, "run_threads", changing)
    run = api.measure(*WORDS)
    assert run.summary["status"] == "finished"
    assert "data.path=a.txt has changed: 1 run read 1700 bytes, written 20" in capsys.readouterr().err
    data = json.loads((run.folder / "env.json").read_text())["data"]
    assert (data["start"][:10], data["end"][:8]) == ("1700 bytes", "14 bytes")


def test_since_the_snapshot_from_which_a_run_goes_on(text):
    job = job_of(*WORDS, "steps=5", f"snapshot.path={api.measure(*WORDS, 'snapshot.every=2').folder}")
    assert len(about_resumed([job])) == 1
    text.write_text("once upon a  time " * 100)
    _, changed = about_resumed([job])
    assert changed.startswith("data.path=a.txt has changed: 1 run read 1700 bytes")
    assert "; it holds 1800 bytes" in changed


SECRETS = {"SLURM_JWT": "canary-slurm", "AWS_SECRET_ACCESS_KEY": "canary-aws", "PLAIN": "canary-plain"}
BUILDER = """
from microp.schedule.builders import gpipe
def build(ranks: int, chunks: int, api_key: str = ""):
    assert api_key.startswith("canary")
    return gpipe(ranks, chunks)
"""


def test_no_file_of_a_sweep_has_a_secret(tmp_path, monkeypatch):
    """The schedule is given a key, and the runs are mirrored to W&B's files."""
    (tmp_path / "mine.py").write_text(BUILDER)
    (tmp_path / "schedule").mkdir()
    (tmp_path / "schedule" / "mine.yaml").write_text("name: mine\nbuilder: mine.build\napi_key: ''\n")
    words = ["schedule=mine", "schedule.api_key=canary-one,canary-two", "+hydra.job.env_set.TOKEN=canary-three"]
    words += [*SMALL, "ranks=1", "comms=threads", "tracking=offline"]
    ran("-cd", ".", "-m", *words, folder=tmp_path, **SECRETS)
    files = [path for path in tmp_path.glob("outputs/**/*") if path.is_file()]
    assert {"env.json", "plan.json", "table.csv", "config.yaml"} <= {path.name for path in files}
    assert any(path.suffix == ".wandb" for path in files)
    assert [str(path) for path in files if b"canary" in path.read_bytes()] == []
    [plan] = tmp_path.glob("outputs/sweeps/*/plan.json")
    command = json.loads(plan.read_text())["command"]
    assert {"schedule=mine", "schedule.api_key=REDACTED", "+hydra.job.env_set.TOKEN=REDACTED"} <= set(command)
    monkeypatch.setenv("SCRATCH", "/scratch")  # a configuration reads the environment by a list
    monkeypatch.setenv("PLAIN", "canary")
    config = read_config(compose_config("output_dir=${oc.env:SCRATCH}/outputs"))
    assert Path(config.output_dir) == Path("/scratch/outputs")
    with pytest.raises(ConfigError, match=r"\$\{oc.env:PLAIN\} would write an environment variable into the records"):
        read_config(compose_config("output_dir=${oc.env:PLAIN,abc}"))
