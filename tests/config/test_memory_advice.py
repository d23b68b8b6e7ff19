"""A run that needs more memory than its ranks have is refused with advice; one that runs out of it gets the same."""

from __future__ import annotations

import re
import subprocess
import sys

from configs import config, problems
from user import environment_of, microp

from microp.config import job_of, memory_advice
from microp.config.memory_advice import with_advice


def test_a_rank_that_needs_more_than_it_has_is_refused_with_what_would_fit():
    [problem] = problems(config("device.memory_gib=0.035", "schedule=gpipe", "ranks=4", "chunks=8", "batch_size=4096"))
    assert re.match(r"rank [03] needs [\d.]+ MiB \(.*activations [\d.]+ MiB \([78] in flight x [\d.]+ MiB\)", problem)
    assert "more than device.memory_gib=0.035: use " in problem
    words, least = re.search(r"use (\S+) \(([\d.]+) MiB, step [+-]\d+ %\)", problem).groups()
    assert float(least) / 1024 <= 0.035
    assert problems(config("device.memory_gib=0.035", "ranks=4", "chunks=8", "batch_size=4096", words)) == []


def test_a_limit_that_is_kept_changes_nothing():
    assert job_of("device.memory_gib=1").run_id == job_of().run_id
    assert job_of("device.memory_gib=1").question_id == job_of().question_id


def test_no_partition_that_fits_is_told_as_advice_too():
    [problem] = problems(config("partition=balanced", "device.memory_gib=0.001"))
    assert "more than device.memory_gib=0.001" in problem
    assert "the one that needs least is " in problem


def test_the_same_sizes_are_the_same_question():
    """However they were found."""
    chosen = job_of("partition=balanced", "device=emulated", "device.per=[layer]", "device.speed=[1,0.5]")
    assert chosen.partition.sizes == (11, 5)
    typed = ["partition=sizes", "partition.sizes=[11,5]", "device=emulated", "device.per=[layer]"]
    assert chosen.run_id == job_of(*typed, "device.speed=[1,0.5]").run_id
    assert chosen.run_id != job_of(*typed).run_id


def fails(*_):
    raise ValueError("layer 0 cannot be measured")


def test_only_a_failure_for_lack_of_memory_gets_advice(monkeypatch):
    asked, job = config(), job_of()
    assert with_advice(asked, job, "rank 0 waited 60 s") == "rank 0 waited 60 s"
    for text in ("out of memory", "CUDA out of memory. Tried", "DefaultCPUAllocator: can't allocate memory"):
        said = with_advice(asked, job, text)
        assert "; predicted: rank 0 needs " in said
        assert "to need less, use " in said
    monkeypatch.setattr(memory_advice, "layer_memory", fails)  # so no plan has a price
    said = with_advice(asked, job, "out of memory")
    assert said == "out of memory; to need less, use more chunks, checkpointing=always or a smaller batch_size"


def test_a_rank_that_runs_out_of_memory_gets_the_advice(tmp_path):
    """Its address space is limited, so that the logits of the batch do not fit."""
    words = "batch_size=600000 chunks=1 model.dim=8 model.layers=2 steps=1 warmup_steps=0 data=synthetic comms=threads"
    command = f"ulimit -v 2200000; exec {sys.executable} -m microp.run {words}"
    own = environment_of(tmp_path, {})
    done = subprocess.run(["bash", "-c", command], cwd=tmp_path, env=own, capture_output=True, text=True, timeout=300)
    assert done.returncode == 1
    assert "predicted: rank " in done.stderr
    assert "to need less, use " in done.stderr


def test_a_balanced_run_is_the_same_question_as_its_sizes(tmp_path):
    words = ["ranks=2", "model.layers=5", "model.dim=32", "batch_size=8", "steps=1", "warmup_steps=0"]
    done = microp(*words, "partition=balanced", folder=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "partition=balanced [4, 1] weighs layers by their FLOPs and bytes" in " ".join(done.stderr.split())
