"""The meters count what a calculation by hand counts."""

from itertools import product

import pytest
import torch
from conftest import CHECKPOINTING

from microp.comms import thread_comms
from microp.config import job_of
from microp.device import ActivationMeter, MemoryMeter, memory_probe
from microp.model import Batch, Stage, adds_in_product, build_model
from microp.settings import Checkpointing, MlpSettings

MIB = 2**20


def test_memory_meter_counts_every_storage_once_while_it_lives():
    alive = torch.zeros(MIB // 4)
    meter = MemoryMeter([alive, alive[5:]])
    with meter:
        a = alive + 1  # 2 MiB
        b = a.view(2, -1)  # a view is no more memory
        c = b * 2  # 3 MiB
        del a, b, c
        d = torch.empty(MIB // 2)  # 1 + 2
        d.add_(1)
    assert meter.peak_bytes == 3 * MIB
    first, second = thread_comms(2)
    with MemoryMeter([]) as meter:
        first.send_tensor(torch.ones(MIB // 4), 1)
        assert meter.bytes == 0  # a sent copy is not the sender's memory
        second.recv_tensor([MIB // 4], 0).detach()
    assert meter.peak_bytes == MIB


def test_memory_meter_leaves_out_what_is_only_written_and_counts_received_tensors_apart():
    """A tensor that was there before, as another rank's mailbox is, does not become this rank's by being written."""
    mailbox = torch.zeros(MIB // 4)
    first = mailbox.untyped_storage().data_ptr()
    meter = MemoryMeter([], lambda address: first <= address < first + MIB)
    with meter:
        mailbox.copy_(torch.ones(1))  # 4 bytes of its own
        mailbox.add_(1)
        assert meter.bytes == 0
        own = torch.zeros(MIB // 2)
        del own
        seen = mailbox.detach()  # the receiver's look at it
        assert meter.bytes == MIB
        assert len(seen + 1) == MIB // 4
    assert seen.data_ptr() == mailbox.data_ptr()
    assert (meter.peak_bytes, meter.peak_allocated_bytes, meter.received_bytes) == (2 * MIB, 2 * MIB, MIB)


def test_activation_meter_by_hand():
    model, rows = build_model(MlpSettings("mlp", 6, 64, "float32")), 10
    size = rows * 64 * 4  # one activation, a boundary as well
    layers = [model.layer(i, 0) for i in range(1, 5)]
    expected = {
        "never": 3 * 5 * size,  # the input and four ReLU results of three microbatches
        "except_last": (5 + 1 + 5) * size,  # one recomputed, one input, one kept whole: it is used last
        "always": (2 + 5) * size,  # at the first backward: two inputs and one recomputed
        "segments": (2 * 2 + 1 + 3) * size,  # two inputs each of two, one of its own, half a stage
        "more than layers": (2 * 4 + 3 + 2) * size,  # one per layer
    }
    for name, checkpointing in {**CHECKPOINTING, "more than layers": Checkpointing("segments", 99, False)}.items():
        stage = Stage(layers, None, checkpointing, 3)
        stage.load(Batch(0, None, None, [1.0] * 3))
        meter = ActivationMeter([stage])
        with meter:
            for m in range(3):
                stage.forward(m, torch.randn(rows, 64))
                meter.look()
            for m in range(3):
                stage.backward(m, torch.ones(rows, 64))
                meter.look()
        assert (name, meter.peak_bytes) == (name, expected[name])
        assert meter.peak_in_flight == 3


GPT = "model=gpt model.layers=4 model.dim=16 model.context=8"
SUBJECTS = ["model=mlp model.dim=64", GPT]
SUBJECTS += [f"{GPT} {word}" for word in ("model.tied=true", "model.dropout=0.1", "dtype=bf16")]


@pytest.mark.parametrize("words", SUBJECTS)
def test_fake_layers_need_what_real_ones_need(words, whole, monkeypatch):
    job = job_of(*words.split())
    numbers = (1, 2, 4) if whole else (1, 2)
    kinds = list(product(numbers if "gpt" in words and "dropout" not in words else (1,), (False, True)))
    for slices, split in kinds if whole else kinds[SUBJECTS.index(words) % len(kinds) :: 4]:
        asked = job.model, 6, split, job.computing, slices
        monkeypatch.setattr(memory_probe, "LARGEST", 10**9)
        real = memory_probe.probe_layers(*asked)
        monkeypatch.setattr(memory_probe, "LARGEST", 0)
        adds_in_product.cache_clear()
        assert memory_probe.probe_layers(*asked) == real
    monkeypatch.setattr(memory_probe, "LARGEST", 10**9)
    assert memory_probe.probe_layers(*asked) == real  # nothing fake is left behind
