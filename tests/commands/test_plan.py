"""`python -m microp.plan`: a table of plans, each with a command that runs."""

from __future__ import annotations

import shlex

from user import microp, read

WORDS = ["device=emulated", "device.per=[layer,row]", "device.forward_ms=0.1", "device.backward_ms=0.2"]
SMALL = ["model.layers=4", "model.dim=32", "batch_size=8"]


def test_a_plan_says_what_to_run(tmp_path):
    words = [*WORDS, *SMALL, "ranks=2", "replicas=1,2", "chunks=2,4", "memory_gib=1"]
    done = microp(*words, folder=tmp_path, program="microp.plan")
    assert done.returncode == 0, done.stderr
    [path] = (tmp_path / "outputs" / "plans").glob("plan-k2-b8-*.json")
    found = read(path)
    assert found["plans"]
    assert found["memory_gib"] == 1
    steps = [plan["step"] for plan in found["plans"]]
    assert steps == sorted(steps)
    for plan in found["plans"]:
        assert plan["command"] in done.stdout
        assert plan["chunks"] in (2, 4)
    again = microp(*words, folder=tmp_path, program="microp.plan")
    assert again.stdout == done.stdout
    command = shlex.split(found["plans"][0]["command"])
    run = microp(*command[1:], "steps=1", "warmup_steps=0", folder=tmp_path)
    assert run.returncode == 0, run.stderr


def test_where_nothing_fits_it_says_by_how_much(tmp_path):
    done = microp(*WORDS, *SMALL, "ranks=2", "memory_gib=0.00001", folder=tmp_path, program="microp.plan")
    assert done.returncode == 0, done.stderr
    said = " ".join(done.stderr.split())
    assert "nothing fits into" in said
    assert "more; use more ranks" in said
