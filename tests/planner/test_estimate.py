"""Layers without measured times are weighed by what they compute and read; a device that is not here is estimated."""

from __future__ import annotations

import pytest
import torch

from microp.app import compose_config, read_config
from microp.app.partition_factory import choose_partition
from microp.job import Workload
from microp.model import build_model
from microp.model.inspection import layer_work
from microp.planner import EstimatedPrices
from microp.schedule import builders
from microp.settings import NEVER, DeviceSettings, EstimateSettings, GptSettings, MlpSettings

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
    for index, (flops, weights) in enumerate(layer_work(layers, inputs)):
        mine = model.work(index)
        assert mine[0] == pytest.approx(flops, rel=0.01)
        assert index == 0 or mine[1] == pytest.approx(weights, rel=0.01)  # the first layer looks up its embedding


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
    far = EstimateSettings("estimate", 1, 1.0, 1.0, link_gb_per_s=0.5, latency_ms=2.0)
    assert EstimatedPrices(far, MLP).costs(workload).hop(1) == pytest.approx(2 + 4 * 512 * ROWS / 0.5e9 * 1e3)
    units = EstimatedPrices(DeviceSettings("cpu", 1), MLP)
    assert not units.is_known
    assert sum(units.costs(workload).forward) == pytest.approx(4 * ROWS)
