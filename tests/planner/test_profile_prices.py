"""Profiles give partitions and plans their times, on a machine that is not here too."""

import shlex

import profiled
import pytest
from user import microp, ran, read

from microp.job import Workload
from microp.planner import ProfilePrices, Task
from microp.records import write_profile
from microp.schedule import balanced, builders, uniform
from microp.settings import NEVER, DeviceSettings, MlpSettings

MODEL = MlpSettings("mlp", 64, 8, "float32")


@pytest.mark.parametrize("speed", [[], [1, 0.5, 1, 1]], ids=["equal", "one slow"])
def test_a_slow_rank_gets_fewer_layers(speed):
    prices = ProfilePrices(profiled.profile(MODEL), MODEL.kinds, DeviceSettings("cpu", 1, speed=speed), "shm")
    sizes = balanced(64, 4, Task(Workload(builders.gpipe(4, 8), (), (8,) * 8, NEVER), prices)).sizes
    assert sizes[1] < 12 if speed else sizes == uniform(64, 4).sizes


def test_a_laptop_plans_for_64_ranks(tmp_path):
    path = write_profile(tmp_path, profiled.profile(MODEL, batch_size=512))
    words = [f"profile={path}", "model.layers=64", "model.dim=8", "ranks=64", "batch_size=512"]
    done = ran(*words, "chunks=64", "schedule=1f1b", folder=tmp_path, program="microp.plan")
    [plans] = (tmp_path / "outputs" / "plans").glob("*.json")
    assert read(plans)["times"] == f"profile {path}"
    assert read(plans)["plans"][0]["sizes"] == [1] * 64
    done = microp(*words[:3], "ranks=2", words[4], "chunks=2", "schedule=1f1b", folder=tmp_path, program="microp.plan")
    assert "microbatches of 256 rows are outside of what " in done.stdout + done.stderr


def test_a_plan_for_another_machine_runs_on_emulated_ranks_as_it_was_priced(tmp_path):
    """The run computes with a smaller model than that of the profile; a step, told before it, is that of the plan."""
    model = MlpSettings("mlp", 5, 512, "float32")
    machine = profiled.MACHINE._replace(device="cuda", cores=96)
    made = profiled.profile(model, machine, after={}, optimizer=(2.0, 1.0))
    path = write_profile(tmp_path, made).rename(tmp_path / "elsewhere.yaml")
    words = [f"device={path.name}", "model.layers=5", "ranks=2", "batch_size=32", "memory_gib=1"]
    done = ran(*words, "schedule=zb_h1", "chunks=2", folder=tmp_path, program="microp.plan")
    assert "microbatches of" not in done.stdout
    [plans] = (tmp_path / "outputs" / "plans").glob("*.json")
    plan = read(plans)["plans"][0]
    assert f"-cd outputs/plans/{plans.stem} -cn plan1\n" in done.stdout
    command = shlex.split(plan["command"])
    assert command[:3] == ["microp", "device=emulated", "profile=elsewhere.yaml"]
    run = ran(*command[1:], "model.dim=8", "steps=2", "warmup_steps=0", "comms=threads", folder=tmp_path)
    assert f"elsewhere.yaml is of another machine ({machine}): the times" in " ".join(run.stderr.split())
    [summary] = (tmp_path / "outputs" / "runs").glob("*/attempt-1/summary.json")
    found = read(summary)
    assert found["predicted"]["step_ms"] == pytest.approx(plan["step"])
    assert found["step_ms"]["median"] > 0.99 * plan["step"]  # a busy machine can only be slower
    # 3 layers of 2.6 ms for F; their optimizer takes at least 2 ms and 1 ms per layer.
    config = (summary.parent / "config.yaml").read_text()
    assert "- 7.8\n" in config
    assert "- 5.0\n" in config
