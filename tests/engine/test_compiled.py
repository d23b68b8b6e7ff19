"""`compile=true`: compiled layers give the gradients of the single process but for the last bits; what it refuses."""

import sysconfig
import time
from dataclasses import replace
from functools import partial
from pathlib import Path
from shutil import which

import pytest
import torch
import training
from conftest import CHECKPOINTING, gpt, mlp, small_job
from one_process import assert_near, by_one_process, by_threads
from own_model import mixed, settings_of
from threads import in_threads

from microp.model import stage
from microp.schedule import builders, skewed
from microp.schedule.builders import gpipe, interleaved
from microp.settings import AS_WRITTEN, Computing, MlpSettings
from microp.worker import RankError, Trainer, building
from microp.worker.threads import run_threads

pytestmark = pytest.mark.skipif(  # `compile=true comms=threads` is refused there
    torch.__version__.startswith(("2.11.", "2.12.")), reason="this torch cannot compile in two threads"
)
COMPILED = Computing(compile=True)
MODELS = {"mlp": mlp, "gpt": lambda: replace(gpt(dropout=0), layers=3), "mixed": partial(settings_of, mixed, middle=1)}
MODES = {"mlp": ("segments",), "gpt": ("except_last",)}  # all of them with `--whole`
WITHOUT_W = ("naive", "gpipe", "one_f_one_b", "eager_1f1b", "interleaved", "breadth_first")


@pytest.fixture
def graphs(monkeypatch):
    """Whatever is compiled, by a backend that generates no code: the graphs, with and without gradients."""
    from torch._dynamo.backends.debugging import aot_eager

    torch._dynamo.reset()
    found = []

    def record(graph, inputs):
        found.append(graph)
        return aot_eager(graph, inputs)

    monkeypatch.setattr(stage, "BACKEND", record)
    return found


NEAR = {"rtol": 1e-4, "atol": 1e-6, "of_loss": 1e-5}


@pytest.mark.parametrize("name", MODELS)
def test_gradients_are_those_of_the_single_process(name, graphs, whole):
    if name == "mixed" and not whole:
        pytest.skip("to compile all kinds of layers takes a minute: with --whole")
    for turn, mode in enumerate(CHECKPOINTING):
        if not whole and mode not in MODES[name]:
            continue
        schedule = getattr(builders, WITHOUT_W[(turn + 2) % len(WITHOUT_W)])(2, 4)
        job = small_job(mode, skewed, schedule=schedule, model=MODELS[name](), backend="threads", computing=COMPILED)
        assert_near(by_threads(job, 300), by_one_process(job), **NEAR)
    assert graphs


def test_bf16_compiled_is_bf16_as_it_is_written(graphs):
    job = small_job(schedule=gpipe(2, 4), backend="threads", computing=Computing("bf16", True))
    losses, written = (by_threads(run, 300)[0] for run in (job, replace(job, computing=Computing("bf16"))))
    assert losses == pytest.approx(written, rel=1e-3)
    assert graphs


def test_all_is_compiled_before_the_first_step(graphs, tmp_path):
    """Two numbers of rows, forwards with and without a graph; the step for memory runs layers as they are written."""
    schedule = interleaved(2, 4)
    job = small_job("except_last", schedule=schedule, backend="threads", computing=COMPILED)

    def train(comms):
        trainer = Trainer(job, comms)
        comms.barrier()
        found = [len(graphs)]
        for step in range(2):
            trainer.load(step)
            trainer.step(step)
            comms.barrier()
            found.append(len(graphs))
        trainer.load(2)
        peak = trainer.memory_step(2)["peak_memory_mib"]
        comms.barrier()
        return [*found, len(graphs)], peak

    both = in_threads(2, train, timeout_s=300)
    for counts, _ in both:
        assert counts[0] == counts[-1] > 0
    written = in_threads(2, partial(training.peak_memory, replace(job, computing=AS_WRITTEN)), timeout_s=300)
    assert [peak for _, peak in both] == written


def test_while_a_rank_compiles_the_others_wait_for_a_short_time_only(monkeypatch):
    monkeypatch.setattr(building, "PAUSE_S", 0.0)
    meetings = [0, 0]

    def work(comms):
        meet = comms.gather_all

        def gather_all(value):
            meetings[comms.rank] += 1
            return meet(value)

        comms.gather_all = gather_all
        with building._beside_the_others(comms):
            while comms.rank == 1 and meetings[0] < 20:
                time.sleep(0.001)
        return meetings[0]

    assert min(in_threads(2, work, timeout_s=300)) >= 20


def test_ranks_that_wait_for_a_compiler_learn_that_a_rank_has_failed():
    def work(comms):
        try:
            with building._beside_the_others(comms):
                if comms.rank == 1:
                    comms.abort()
                    raise ValueError("no code for this")
        except (ConnectionError, ValueError) as error:
            return str(error)

    assert in_threads(2, work, timeout_s=300) == ["another rank failed", "no code for this"]


def test_a_layer_that_cannot_be_compiled_is_named(monkeypatch, tmp_path):
    def fails(graph, inputs):
        raise ValueError("no code for this")

    torch._dynamo.reset()
    monkeypatch.setattr(stage, "BACKEND", fails)
    job = small_job(schedule=gpipe(1, 2), backend="threads", computing=COMPILED)
    with pytest.raises(RankError) as error:
        run_threads(job, tmp_path)
    said = str(error.value)
    assert said.startswith("rank 0, compiling its layers, step 0: ")
    assert "no code for this" in said
    assert "\n" not in said


HEADER = Path(sysconfig.get_path("include"), "Python.h")


@pytest.mark.skipif(
    which("g++") is None or not HEADER.exists(), reason="a C++ compiler and Python's headers are needed"
)
def test_generated_code():
    """One small model on one rank: nothing else here waits for a C++ compiler, which takes seconds per kernel."""
    torch._dynamo.reset()
    model = MlpSettings("mlp", 1, 16, "float32")
    job = small_job(schedule=gpipe(1, 3), model=model, backend="threads", computing=COMPILED)
    assert_near(by_threads(job, 300), by_one_process(job), **NEAR)
