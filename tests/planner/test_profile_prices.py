"""Profiles give partitions and plans their times, on a machine that is not here too."""

from __future__ import annotations

import profiled
import pytest
from user import microp, read

from microp.planner import ProfilePrices, Task, balanced
from microp.planner.prices import stage_loads
from microp.schedule import builders, uniform
from microp.settings import DeviceSettings, MlpSettings
from microp.store import write_profile

MODEL = MlpSettings("mlp", 64, 8, "float32")
DEVICE = DeviceSettings("cpu", 1)


def prices(device: DeviceSettings = DEVICE) -> ProfilePrices:
    return ProfilePrices(profiled.profile(MODEL), MODEL.kinds, device, "shm")


@pytest.mark.parametrize("device", [DEVICE, DeviceSettings("cpu", 1, speed=[1, 0.5, 1, 1])], ids=["equal", "one slow"])
def test_loads_are_those_of_the_costs(device):
    """Up to what an action after one of another op takes longer, which only the simulation counts."""
    task = Task(builders.gpipe(4, 8), (8,) * 8, prices(device))
    workload = task.workload((16, 16, 16, 16))
    loads = task.prices.loads(workload).of_ranks(workload.layers)
    assert list(loads) == pytest.approx(stage_loads(workload, task.prices.costs(workload)), rel=0.05)


def test_a_slow_rank_gets_fewer_layers():
    equal, slow = (
        balanced(64, 4, Task(builders.gpipe(4, 8), (8,) * 8, prices(device)))
        for device in (DEVICE, DeviceSettings("cpu", 1, speed=[1, 0.5, 1, 1]))
    )
    assert equal == uniform(64, 4)
    assert slow.sizes[1] < 12


def test_a_laptop_plans_for_64_ranks(tmp_path):
    path = write_profile(tmp_path, profiled.profile(MODEL, batch_size=512))
    words = [f"profile={path}", "model.layers=64", "model.dim=8", "ranks=64", "batch_size=512"]
    done = microp(*words, "chunks=64", "schedule=1f1b,zb_h1", folder=tmp_path, program="microp.plan")
    assert done.returncode == 0, done.stderr
    [plans] = (tmp_path / "outputs" / "plans").glob("*.json")
    assert read(plans)["times"] == f"profile {path}"
    assert read(plans)["plans"][0]["sizes"] == [1] * 64
