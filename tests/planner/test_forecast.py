"""A profile, written, read and used: what is predicted is what the layers take."""

from __future__ import annotations

from dataclasses import replace

import pytest
from profiled import MACHINE, profile

from microp.job import Workload
from microp.planner import forecast, stage_costs
from microp.planner.profile import interpolate
from microp.schedule.builders import gpipe, one_f_one_b
from microp.settings import NEVER, Checkpointing, MlpSettings
from microp.store import ProfileError, find_profile, read_profile, write_profile

MODEL = MlpSettings("mlp", 8, 64, "float32")
HOP = 0.02 + 0.1 * 512 * 20 / 2**20  # of 20 rows, 512 bytes each


def workload(schedule, rows: int) -> Workload:
    return Workload(schedule, (5, 3), (rows,) * schedule.chunks, NEVER)


def test_stages_take_what_their_layers_take():
    costs = stage_costs(profile(MODEL, after={}), MODEL.kinds, workload(gpipe(2, 4), 20), "shm")
    assert costs.forward == pytest.approx((5 * 3, 3 * 3))
    assert costs.backward == pytest.approx((5 * 6, 3 * 6))
    assert costs.latency == pytest.approx(HOP)
    assert costs.overhead == (0.01, 0.01)


def test_what_follows_another_op_takes_longer():
    alternating, in_a_row = (
        stage_costs(profile(MODEL), MODEL.kinds, workload(build(2, 4), 20), "shm") for build in (one_f_one_b, gpipe)
    )
    assert alternating.forward[1] == pytest.approx(0.5 + 9 * 1.1)  # on rank 1, after the optimizer or a backward
    assert in_a_row.forward[1] == pytest.approx(0.5 / 4 + 9 * (1 + 0.1 / 4))  # only the first one


def test_a_forward_that_keeps_nothing_is_faster():
    always = workload(gpipe(2, 4), 8)._replace(checkpointing=Checkpointing("always", 1, False))
    costs = stage_costs(profile(MODEL, after={}), MODEL.kinds, always, "shm")
    assert costs.forward == pytest.approx((5 * 1.8 * 0.8, 3 * 1.8 * 0.8))
    assert costs.recompute == pytest.approx((5 * 1.8, 3 * 1.8))


def test_a_step_is_its_actions_the_engine_s_time_and_the_optimizer():
    given = profile(MODEL, alone=(1.0, 1.0), after={})
    found = forecast(given, MODEL.kinds, workload(gpipe(2, 1), 20), "shm", batch=0)
    actions = 5 * 9 + 3 * 9 + 2 * HOP + 0.01  # the engine's own time between rank 1's F and B
    assert found.step_ms == pytest.approx(actions + 0.05 + 0.05 + 0.2 + 0.1 * 5)
    assert found.bubble == pytest.approx(1 - 8 * 9 / (2 * actions))
    faster = forecast(
        profile(MODEL, alone=(0.5, 0.5), after={}), MODEL.kinds, workload(gpipe(2, 1), 20), "shm", batch=0
    )
    assert faster.step_ms < 0.6 * found.step_ms


def test_a_profile_is_read_as_it_was_written(tmp_path):
    written = profile(MODEL)
    path = write_profile(tmp_path, written)
    read = read_profile(path)
    assert read == replace(written, path=str(path))


def test_a_profile_is_found_for_its_machine_and_model(tmp_path):
    assert find_profile(tmp_path, MACHINE, MODEL, 64) is None
    for batch_size in (16, 64, 256):
        write_profile(tmp_path, profile(MODEL, batch_size=batch_size))
    write_profile(tmp_path, profile(MODEL, MACHINE._replace(cores=64), batch_size=70))
    (tmp_path / "mlp-broken.yaml").write_text("rows: [")
    found = find_profile(tmp_path, MACHINE, MODEL, 80)
    assert (found.batch_size, found.machine) == (64, MACHINE)
    assert find_profile(tmp_path, MACHINE._replace(torch="3.0"), MODEL, 64) is None
    assert find_profile(tmp_path, MACHINE, MlpSettings("mlp", 8, 128, "float32"), 64) is None
    with pytest.raises(ProfileError, match="does not exist"):
        read_profile(tmp_path / "nowhere.yaml")


def test_between_and_beyond_the_measured_rows():
    assert interpolate((8, 16, 64), (1, 3, 9), 12) == 2
    assert interpolate((8, 16, 64), (1, 3, 9), 4) == 0
    assert interpolate((8, 16, 64), (1, 3, 9), 128) == 17
    assert interpolate((8,), (5,), 99) == 5
