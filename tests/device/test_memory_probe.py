import pytest

from microp.config import job_of
from microp.device import memory_probe

SUBJECTS = [
    "model=mlp model.dim=64",
    "model=gpt model.layers=4",
    "model=gpt model.layers=4 model.tied=true",
    "model=gpt model.layers=4 model.dropout=0.1",
    "model=gpt model.layers=4 dtype=bf16",
]


@pytest.mark.parametrize("split", [False, True])
@pytest.mark.parametrize("words", SUBJECTS)
def test_fake_layers_need_what_real_ones_need(words, split, monkeypatch):
    job = job_of(*words.split())
    for slices in (1, 2, 4) if "gpt" in words and "dropout" not in words else (1,):
        asked = job.model, 6, split, job.computing, slices
        monkeypatch.setattr(memory_probe, "LARGEST", 10**9)
        real = memory_probe.probe_layers(*asked)
        monkeypatch.setattr(memory_probe, "LARGEST", 0)
        assert memory_probe.probe_layers(*asked) == real
        monkeypatch.setattr(memory_probe, "LARGEST", 10**9)
        assert memory_probe.probe_layers(*asked) == real  # nothing fake is left behind
