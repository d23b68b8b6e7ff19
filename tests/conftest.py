"""What all tests share."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from recorded import small_sweep

from microp.job import Job
from microp.schedule import uniform
from microp.schedule.builders import gpipe
from microp.settings import (
    Checkpointing,
    DeviceSettings,
    EngineSettings,
    GptSettings,
    MlpSettings,
    SyncSettings,
    TextSettings,
)

CHECKPOINTING = {
    "never": Checkpointing("never", 0, False),
    "except_last": Checkpointing("except_last", 1, True),
    "always": Checkpointing("always", 1, False),
    "segments": Checkpointing("segments", 2, False),
}


def mlp(dtype: str = "float32") -> MlpSettings:
    return MlpSettings("mlp", 6, 32, dtype)


def gpt(dtype: str = "float32", dropout: float = 0.1) -> GptSettings:
    return GptSettings("gpt", 5, 16, dtype, heads=2, context=8, dropout=dropout)


def small_job(**changes) -> Job:
    """A small job: 9 rows, so that most chunk counts do not divide them."""
    schedule, model = changes.pop("schedule", gpipe(2, 4)), changes.pop("model", mlp())
    job = Job(
        run_id="test",
        schedule=schedule,
        partition=changes.pop("partition", uniform(model.layers, schedule.stages)),
        model=model,
        checkpointing=CHECKPOINTING["never"],
        data=TextSettings("text", str(Path(torch.__file__).parent / "serialization.py")),
        device=DeviceSettings("cpu", 1),
        backend="shm",
        timeout_s=20,
        batch_size=9,
        steps=3,
        warmup_steps=1,
        learning_rate=1e-2,
        seed=7,
        engine=EngineSettings("microp", False),
        sync=SyncSettings("flat", "library"),
    )
    return replace(job, **changes)


@pytest.fixture(autouse=True)
def _same_every_time():
    """Sums in the order in which ranks sum, and the same random numbers in every run of the tests."""
    torch.manual_seed(0)
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="session")
def outputs(tmp_path_factory):
    """The folder that a small sweep of two schedules left; only reports may be added to it."""
    return small_sweep(tmp_path_factory.mktemp("sweep"))
