"""A profile is measured by its command, and then a run is predicted before its ranks start."""

from __future__ import annotations

import time

import pytest
from user import microp, read

from microp.store import read_rows

MODEL = ["model.layers=4", "model.dim=16", "batch_size=4"]


@pytest.fixture(scope="module")
def profiled(tmp_path_factory):
    folder = tmp_path_factory.mktemp("profiled")
    done = microp(*MODEL, "seconds=1", folder=folder, program="microp.profile")
    assert done.returncode == 0, done.stderr
    return folder, done


def test_the_command_writes_a_profile_and_says_what_it_found(profiled):
    folder, done = profiled
    [path] = (folder / "outputs" / "profiles").glob("mlp-*.yaml")
    assert path.read_text().startswith("# Times of mlp on ")
    assert f"outputs/profiles/{path.name}" in done.stdout
    assert "mlp: one layer of 4, ms per microbatch" in done.stdout
    assert "gloo: hop " in done.stdout


def test_a_run_is_predicted_before_its_ranks_start(profiled):
    folder, _ = profiled
    done = microp(*MODEL, "steps=3", "warmup_steps=1", "seed=7", folder=folder)
    assert done.returncode == 0, done.stderr
    assert "no profile of this model" not in done.stderr
    [config] = (folder / "outputs" / "runs").glob("*/attempt-1/config.yaml")
    attempt = config.parent
    predicted = read(attempt / "predicted.json")
    assert predicted["source"].startswith("outputs/profiles/mlp-")
    assert predicted["step_ms"] > 0
    assert 0 < predicted["bubble"] < 1
    assert len(predicted["peak_memory_mib"]) == 2
    assert read(attempt / "summary.json")["predicted"] == {k: v for k, v in predicted.items() if k != "source"}
    first_step = read_rows(attempt, 0)[0]["began_ns"] / 1e9 + time.time() - time.monotonic()  # as a file's time
    assert (attempt / "predicted.json").stat().st_mtime < first_step
    assert "predicted ms: of a step, known before the run." in done.stdout
    assert f"predicted {predicted['step_ms']:.4g}" in done.stdout
