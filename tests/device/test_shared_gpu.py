"""What `device.share=true` allows and refuses, and what is recorded of a GPU's use, without a GPU."""

import gc
import os
import signal
from time import perf_counter_ns
from types import SimpleNamespace
from unittest.mock import patch

import pytest
import torch
from configs import config, problems, warnings
from conftest import small_job
from user import until

from microp.commands.profiling import make_cases
from microp.config import machine_of, make_job, memory_cap
from microp.device import Cpu, Utilisation, gpu_of
from microp.records import summarise
from microp.settings import DeviceSettings
from microp.settings.device import CudaSettings
from microp.system import GIB, processor
from microp.worker.threads import run_threads

SHARED = ("device=cuda", "device.share=true")


@pytest.fixture
def two_gpus(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(
        torch.cuda, "get_device_properties", lambda _: SimpleNamespace(name="a card", total_memory=8 * GIB)
    )


def test_as_many_ranks_as_gpus_and_without_one_none(two_gpus, monkeypatch):
    assert problems(config("device=cuda", "ranks=2")) == []
    [problem] = problems(config("device=cuda", "ranks=3"))
    assert problem.startswith("ranks=3 is more than the 2 GPUs here: use at most 2, or device.share=true, by which")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    [problem] = problems(config("device=cuda", "ranks=2"))
    assert "torch sees no GPU" in problem
    assert DeviceSettings("cpu", 0).problems() == ["device.threads=0 is below 1: use at least 1"]


def test_more_ranks_than_gpus_may_share_them(two_gpus):
    assert problems(config(*SHARED, "ranks=4")) == []
    assert memory_cap(config(*SHARED, "ranks=3")) == 4 * GIB  # two of them have one GPU
    assert memory_cap(config("device=cuda", "ranks=2")) == 8 * GIB
    assert make_job(config(*SHARED, "ranks=4")).backend == "shm"
    assert make_job(config("device=cuda", "ranks=2")).backend == "nccl"
    assert [gpu_of(CudaSettings("cuda", 1, share=True), rank) for rank in range(4)] == [0, 1, 0, 1]
    assert [gpu_of(CudaSettings("cuda", 1), rank) for rank in range(2)] == [0, 1]
    [warning] = warnings(config(*SHARED, "ranks=4"))
    assert warning.startswith("ranks=4 share GPUs (device.share=true): they take turns")


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        ("comms=nccl", "comms=nccl cannot move tensors of device=cuda with device.share=true: use comms=auto"),
        ("comms=threads", "comms=threads cannot move tensors of device=cuda with device.share=true: use comms=auto"),
        ("engine=torch", "engine=torch sends a GPU's tensors itself, not with device.share=true: use engine=microp"),
        ("sync=torch_ddp replicas=2 schedule=1f1b", "sync=torch_ddp sends a GPU's tensors itself, not with device"),
    ],
)
def test_what_a_shared_gpu_cannot_do_is_one_error(words, problem, two_gpus):
    [said] = problems(config(*SHARED, *words.split()))
    assert said.startswith(problem)


def nvidia_smi(folder, monkeypatch, script: str) -> None:
    (folder / "nvidia-smi").write_text(f"#!/bin/sh\n{script}\nexec sleep 60\n")
    (folder / "nvidia-smi").chmod(0o755)
    monkeypatch.setenv("PATH", str(folder), prepend=os.pathsep)


def test_nvidia_smi_is_asked_while_the_steps_run(tmp_path, monkeypatch):
    """It answers as nvidia's does: a number per line, or [N/A]; without it nothing is known."""
    asked, go = tmp_path / "asked", tmp_path / "go"
    script = f'echo "$@" > {asked}\necho 10\nread -r _ < {go}\necho "[N/A]"; echo 80; echo 90'
    nvidia_smi(tmp_path, monkeypatch, script)
    os.mkfifo(go)
    busy = Utilisation("GPU-12")
    process = busy._process
    until(lambda: len(busy._answers) == 1)
    since = perf_counter_ns()
    go.write_text("\n")
    until(lambda: len(busy._answers) == 3)
    assert busy.end(since) == 85.0
    assert process.returncode == -signal.SIGTERM
    assert "--id=GPU-12 --query-gpu=utilization.gpu --format=csv,noheader,nounits" in asked.read_text()
    monkeypatch.setenv("PATH", str(tmp_path / "none"))
    assert Utilisation("GPU-12").end(0) is None


def test_nvidia_smi_ends_with_what_asks_it(tmp_path, monkeypatch):
    """A profile opens a device for each of its cases: with one nvidia-smi each, the last cases would share the host."""
    nvidia_smi(tmp_path, monkeypatch, ":")
    busy = Utilisation("GPU-12")
    process = busy._process
    del busy
    gc.collect()
    assert process.wait(60) == -signal.SIGTERM


def test_a_profile_of_a_gpu_uses_a_rank_per_gpu_and_names_the_card(two_gpus, monkeypatch):
    monkeypatch.setattr(os, "cpu_count", lambda: 16)
    for words in (("device=cuda",), SHARED):
        plan = make_cases(make_job(config(*words)))
        assert {case.ranks for case in plan.together} == {2}
        assert not plan.transports  # those of a CPU cannot move a GPU's tensors
    assert machine_of("cuda", 1).processor == "a card"
    assert machine_of("cpu", 1).processor == processor()


def test_the_driver_s_count_stands_beside_that_of_the_actions(tmp_path):
    job = small_job(steps=2, device=CudaSettings("cpu", 1, share=True))  # the device itself is the CPU
    with patch.object(Cpu, "utilisation", lambda _: 93.5):
        run_threads(job, tmp_path)
    summary = summarise(job, tmp_path, "finished")
    found = summary["utilisation"]
    assert found["nvidia_smi"] == [93.5, 93.5]
    assert all(0 < percent < 100 for percent in found["actions"])
    assert summary["shared_gpu"] is True
