"""No secret of the command and nothing of the environment reaches a file, but for the names on a list."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from user import SMALL, microp

from microp.app.config import VARIABLES, compose_config, read_config
from microp.app.errors import ConfigError

SECRETS = {"SLURM_JWT": "canary-slurm", "AWS_SECRET_ACCESS_KEY": "canary-aws", "PLAIN": "canary-plain"}
BUILDER = """
from microp.schedule.builders import gpipe


def build(ranks: int, chunks: int, api_key: str = ""):
    assert api_key.startswith("canary")
    return gpipe(ranks, chunks)
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A sweep and a single run of a schedule that is given a key, mirrored to W&B's files."""
    made = tmp_path_factory.mktemp("secrets")
    (made / "mine.py").write_text(BUILDER)
    (made / "schedule").mkdir()
    (made / "schedule" / "mine.yaml").write_text("name: mine\nbuilder: mine.build\napi_key: ''\n")
    words = ["schedule=mine", "schedule.api_key=canary-one,canary-two", "+hydra.job.env_set.TOKEN=canary-three"]
    words += [*SMALL, "ranks=1", "comms=threads", "tracking=offline"]
    done = microp("-cd", ".", "-m", *words, folder=made, **SECRETS)
    assert done.returncode == 0, done.stderr
    return made


def test_no_file_has_a_secret(folder):
    files = [path for path in folder.glob("outputs/**/*") if path.is_file()]
    assert {"env.json", "plan.json", "table.csv", "config.yaml"} <= {path.name for path in files}
    assert any(path.suffix == ".wandb" for path in files)
    assert [str(path) for path in files if b"canary" in path.read_bytes()] == []


def test_the_rest_of_a_command_is_recorded(folder):
    [plan] = folder.glob("outputs/sweeps/*/plan.json")
    command = json.loads(plan.read_text())["command"]
    assert {"schedule=mine", "schedule.api_key=REDACTED", "+hydra.job.env_set.TOKEN=REDACTED"} <= set(command)


def test_a_configuration_reads_the_environment_by_a_list(monkeypatch):
    monkeypatch.setenv("SCRATCH", "/scratch")
    monkeypatch.setenv("PLAIN", "canary")
    assert "SCRATCH" in VARIABLES
    config = read_config(compose_config("output_dir=${oc.env:SCRATCH}/outputs"))
    assert Path(config.output_dir) == Path("/scratch/outputs")
    with pytest.raises(ConfigError, match=r"\$\{oc.env:PLAIN\} would write an environment variable into the records"):
        read_config(compose_config("output_dir=${oc.env:PLAIN,abc}"))
