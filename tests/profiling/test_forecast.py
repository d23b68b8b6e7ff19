"""A profile, written, read and used: what is predicted is what the layers take."""

from dataclasses import replace

import pytest
import torch
from own_model import partly_frozen, settings_of
from profiled import MACHINE, profile

from microp.config import compose_config, read_config
from microp.config.job_factory import choose_partition
from microp.job import Workload
from microp.model import build_model
from microp.model.inspection import layer_work
from microp.planner import EstimatedPrices
from microp.profiling import forecast, read_plain, stage_costs, to_plain
from microp.profiling.profile import interpolate
from microp.records import ProfileError, find_profile, read_profile, write_profile
from microp.schedule import Action, Op, builders
from microp.schedule.builders import chimera, gpipe, one_f_one_b, seq_1f1b
from microp.settings import NEVER, Checkpointing, DeviceSettings, EstimateSettings, GptSettings, MlpSettings

MODEL = MlpSettings("mlp", 8, 64, "float32")
HOP = 0.02 + 0.1 * 512 * 20 / 2**20  # of 20 rows, 512 bytes each


def workload(schedule, rows: int) -> Workload:
    return Workload(schedule, (5, 3), (rows,) * schedule.chunks, NEVER)


def test_slices_take_their_part_of_a_microbatch_and_copies_take_as_long_as_the_model():
    made = profile(MODEL, after={})
    whole = stage_costs(made, MODEL.kinds, workload(one_f_one_b(2, 4), 20), "shm")
    sliced = stage_costs(made, MODEL.kinds, workload(seq_1f1b(2, 2, 2), 20), "shm")
    assert [sliced.of(Action(Op.F, stage, 0)) * 2 for stage in (0, 1)] == pytest.approx(whole.forward)
    order = chimera(2, 4)
    both = stage_costs(made, MODEL.kinds, workload(order, 20)._replace(layers=workload(order, 20).layers * 2), "shm")
    assert both.forward == pytest.approx((15, 9, 15, 9))


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
    found = forecast(given, MODEL.kinds, workload(gpipe(2, 1), 20), "shm", batch=(0, 0))
    actions = 5 * 9 + 3 * 9 + 2 * HOP + 0.01  # the engine's own time between rank 1's F and B
    assert found.step_ms == pytest.approx(actions + 0.05 + 0.05 + 0.2 + 0.1 * 5)
    assert found.bubble == pytest.approx(1 - 8 * 9 / (2 * actions))
    made = profile(MODEL, alone=(0.5, 0.5), after={})
    faster = forecast(made, MODEL.kinds, workload(gpipe(2, 1), 20), "shm", batch=(0, 0))
    assert faster.step_ms < 0.6 * found.step_ms


def test_a_profile_is_read_as_it_was_written_and_found_for_its_machine_and_model(tmp_path):
    path = write_profile(tmp_path / "one", profile(MODEL))
    assert read_profile(path) == replace(profile(MODEL), path=str(path))
    assert find_profile(tmp_path, MACHINE, MODEL, 64) is None
    for batch_size in (16, 64, 256):
        write_profile(tmp_path, profile(MODEL, batch_size=batch_size))
    write_profile(tmp_path, profile(MODEL, MACHINE._replace(cores=64), batch_size=70))
    (tmp_path / "mlp-broken.yaml").write_text("rows: [")
    found = find_profile(tmp_path, MACHINE, MODEL, 80)
    assert (found.batch_size, found.machine) == (64, MACHINE)
    assert find_profile(tmp_path, MACHINE._replace(torch="3.0"), MODEL, 64) is None
    assert find_profile(tmp_path, MACHINE, MlpSettings("mlp", 8, 128, "float32"), 64) is None
    with pytest.raises(ProfileError, match="No such file"):
        read_profile(tmp_path / "nowhere.yaml")


def test_a_time_between_two_measured_numbers_of_rows_is_on_the_line_through_them():
    assert [interpolate((8, 16, 64), (1, 3, 9), rows) for rows in (12, 4, 128)] == [2, 0, 17]
    assert interpolate((8,), (5,), 99) == 5


@pytest.mark.parametrize("wrong", [float("nan"), float("inf"), -0.5])
def test_a_time_that_is_none_is_refused(wrong):
    with pytest.raises(ValueError, match=f"{wrong} is no number from 0"):
        read_plain({**to_plain(profile(MODEL)), "edges": [0.1, wrong]}, "file")


GPT = GptSettings("gpt", 4, 32, "float32", 4, 16, 0.0, 1000)
MLP = MlpSettings("mlp", 4, 512, "float32")
ROWS = 8


@pytest.mark.parametrize("model", [GPT, MLP], ids=lambda model: model.name)
def test_the_work_of_built_in_layers_is_what_torch_counts(model):
    """The numbers of the models that are built in are formulas, those of a user's own are counted."""
    layers = [layer.to("meta") for layer in build_model(model).build(range(model.layers), 0)]
    inputs = [torch.zeros(2, model.row_bytes, dtype=torch.int64, device="meta")]
    for layer in layers[:-1]:
        inputs.append(layer(inputs[-1]))
    for index, (*flops, weights) in enumerate(layer_work(layers, inputs)):
        *mine, read = model.work(index)
        assert mine == pytest.approx(flops, rel=0.01)
        assert index == 0 or read == pytest.approx(weights, rel=0.01)  # the first layer looks up its embedding


def test_a_head_of_many_words_counts_as_what_it_computes():
    words = ["model=gpt", "model.vocabulary=50000", "model.dim=128", "batch_size=32", "ranks=4", "chunks=8"]
    config = read_config(compose_config(*words, "schedule=1f1b", "partition=balanced", "output_dir=nowhere"))
    chosen = choose_partition(config, builders.one_f_one_b(4, 8))
    assert chosen.partition.sizes[-1] == 1
    assert "weighs layers by their FLOPs and bytes" in chosen.notes[0]


def test_a_forward_takes_its_operations_or_its_bytes():
    workload = Workload(builders.gpipe(4, 1), (1, 1, 1, 1), (ROWS,), NEVER)
    fast = EstimatedPrices(EstimateSettings("estimate", 1, 1.0, 1e6), MLP).costs(workload)
    assert fast.forward[1] == pytest.approx(2 * 512 * 512 * ROWS / 1e12 * 1e3)
    slow = EstimatedPrices(EstimateSettings("estimate", 1, 1e6, 1.0), MLP).costs(workload)
    assert slow.forward[1] == pytest.approx(4 * (513 * 512 + 2 * 512 * ROWS) / 1e9 * 1e3)
    assert fast.backward[:2] == pytest.approx((fast.forward[0], 2 * fast.forward[1]))
    gpt = EstimatedPrices(EstimateSettings("estimate", 1, 1.0, 1e6), GPT).costs(workload)
    assert gpt.backward == pytest.approx([2 * time for time in gpt.forward])  # of the block behind the embedding too
    far = EstimateSettings("estimate", 1, 1.0, 1.0, link_gb_per_s=0.5, latency_ms=2.0)
    assert EstimatedPrices(far, MLP).costs(workload).hop(1) == pytest.approx(2 + 4 * 512 * ROWS / 0.5e9 * 1e3)
    frozen = EstimatedPrices(EstimateSettings("estimate", 1, 1.0, 1e6), settings_of(partly_frozen, frozen=3, stop=6))
    costs = frozen.costs(Workload(builders.zb_h1(3, 1), (3, 3, 3), (ROWS,), NEVER))
    assert costs.weight == pytest.approx((costs.forward[0], 0, costs.forward[2]))
    assert costs.full[1:] == pytest.approx((costs.forward[1], 2 * costs.forward[2]))
    assert 1.999 * costs.forward[0] < costs.full[0] < 2 * costs.forward[0]  # the first layer's input has no gradient
    tuned = EstimatedPrices(EstimateSettings("estimate", 1, 1.0, 1e6), settings_of(partly_frozen, frozen=0, stop=4))
    checkpointed = Workload(builders.gpipe(3, 1), (3, 3, 3), (ROWS,), Checkpointing("always", 1, False))
    costs = tuned.costs(checkpointed)  # of the second stage one layer is frozen; the next one's norm needs a gradient
    assert costs.recompute == pytest.approx((0, costs.forward[1], costs.forward[2]))
    assert costs.backward == pytest.approx((0, 4 / 3 * costs.forward[1], 2 * costs.forward[2]))
    units = EstimatedPrices(DeviceSettings("cpu", 1), MLP)
    assert not units.is_known
    assert sum(units.costs(workload).forward) == pytest.approx(4 * ROWS)
