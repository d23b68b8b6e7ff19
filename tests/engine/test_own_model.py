"""A model of one's own equals its single process, in every schedule and checkpointing mode."""

from __future__ import annotations

import threading
from dataclasses import replace
from functools import cache, partial

import pytest
import torch
import training
from conftest import CHECKPOINTING, small_job
from own_model import (
    drawing_of_many,
    mixed,
    narrowing,
    normalised_together,
    normed,
    own_job,
    passing,
    rooted,
    settings_of,
    tied_layers,
)
from test_every_schedule import run_in_threads

from microp.comms import thread_comms
from microp.engine import ActionError
from microp.model.own import seeded
from microp.model.randomness import GENERATOR, generator_states
from microp.schedule import Partition
from microp.schedule.builders import gpipe, one_f_one_b, zb_h1, zb_v
from microp.settings import EngineSettings, OwnSettings, SnapshotSettings
from microp.worker import RankError, Trainer, launch_ranks, monolith
from microp.worker.threads import run_threads


@cache
def model_of(dtype: str, dropout: float = 0.1):
    return settings_of(mixed, dtype=dtype, dropout=dropout)


def expected_of(model: OwnSettings, chunks: int):
    done = list(monolith.steps(own_job(model, schedule=gpipe(1, chunks)), training.STEPS))
    return [step.loss for step in done], done[-1].gradients


@pytest.mark.parametrize("mode", CHECKPOINTING)
def test_other_sums_to_1e_12(mode):
    """W of several microbatches at once."""
    job = own_job(
        model_of("float64"),
        schedule=zb_h1(3, 4),
        checkpointing=CHECKPOINTING[mode],
        backend="threads",
        engine=EngineSettings("microp", True),
    )
    losses, layers = run_in_threads(job)
    want_losses, want = expected_of(model_of("float64"), 4)
    assert losses == pytest.approx(want_losses, abs=1e-12)
    for index, gradients in enumerate(want):
        for mine, theirs in zip(layers[index], gradients, strict=True):
            torch.testing.assert_close(mine, theirs, rtol=0, atol=1e-12)


def test_processes_and_torch_s_engine(tmp_path):
    """Each rank imports the function itself."""
    model = model_of("float32")
    torch_engine = EngineSettings("torch", False)
    jobs = [
        own_job(model, schedule=zb_v(2, 4), checkpointing=CHECKPOINTING["segments"]),
        own_job(model, schedule=one_f_one_b(2, 3), engine=torch_engine),
        own_job(model, schedule=gpipe(2, 3), engine=torch_engine, checkpointing=CHECKPOINTING["always"]),
    ]
    shared = settings_of(tied_layers)
    jobs += [
        own_job(shared, schedule=zb_h1(2, 3)),
        own_job(shared, schedule=gpipe(2, 3), engine=torch_engine),
        own_job(settings_of(passing), schedule=zb_v(2, 8), partition=Partition((2, 2, 1, 2))),
    ]
    jobs = [replace(job, backend="gloo") for job in jobs]
    results = launch_ranks(jobs[0], tmp_path, 3, partial(training.train_all, jobs))
    for number, job in enumerate(jobs):
        losses, want = expected_of(job.model, job.schedule.chunks)
        got = {index: bits for rank in range(2) for index, bits in results[rank][number][1].items()}
        assert [got[index] for index in range(job.model.layers)] == list(map(training.digest, want)), number
        assert results[job.schedule.placement[job.schedule.stages - 1]][number][0] == losses


def test_declared_buffers_are_those_of_the_single_process():
    """Every schedule forwards microbatches in order, so that running statistics are the same."""
    model = settings_of(normed)
    done = list(monolith.steps(own_job(model, schedule=gpipe(1, 3)), training.STEPS))
    losses, layers = run_in_threads(own_job(model, schedule=one_f_one_b(2, 3), backend="threads"))
    assert losses == [step.loss for step in done]
    assert [training.digest(layers[i]) for i in range(5)] == [training.digest(own) for own in done[-1].gradients]


def test_a_draw_that_no_trial_saw_ends_the_step():
    model = settings_of(drawing_of_many)
    assert not model.draws
    job = own_job(model, schedule=gpipe(1, 1))  # 9 rows, in the one thread that has the generators
    trainer = Trainer(job, thread_comms(1, 20)[0], 0)
    trainer.load(0)
    with pytest.raises(RuntimeError, match="drawn random numbers, though none did when they were tried"):
        trainer.step(0)


def test_a_tensor_of_another_shape_than_in_the_trials_does_not_leave():
    job = own_job(settings_of(narrowing), schedule=gpipe(2, 1), backend="threads")
    with pytest.raises(ActionError, match=r"rank 0, action 0F0, step 0: made torch.float32 \[9, 4\], 1F0 takes"):
        run_in_threads(job)


def test_layers_whose_rows_depend_on_each_other_are_known():
    model = settings_of(normalised_together)
    assert model.facts.mixing == (2,)
    assert settings_of(mixed).facts.mixing == ()


def test_a_gradient_that_is_not_finite_is_left_to_the_run_which_names_its_step(tmp_path):
    job = own_job(settings_of(rooted), snapshot=SnapshotSettings("disk", 1, 1, False, None, False), backend="threads")
    with pytest.raises(RankError, match=r"weights are not finite after step 0 \(.* look at the model and the data"):
        run_threads(job, tmp_path, 1)


def test_a_layer_is_divided_while_no_other_rank_makes_its_layers():
    """torch's checkpoint in a layer sets the generator back from which another thread's weights may be drawn."""
    job = small_job(schedule=zb_h1(1, 2), backend="threads")  # of a model that draws nothing
    setting_up = threading.Thread(target=Trainer, args=(job, thread_comms(1, 20)[0]))
    with GENERATOR:
        setting_up.start()
        setting_up.join(1)
        assert setting_up.is_alive()
    setting_up.join(20)
    assert not setting_up.is_alive()


def test_generators_are_looked_at_while_no_other_rank_makes_its_layers():
    """Else what another thread has drawn, and sets back, would count as drawn in a step."""
    before, seen = generator_states(), []
    looking = threading.Thread(target=lambda: seen.append(generator_states()))
    with GENERATOR, seeded(1):
        looking.start()
        looking.join(0.2)
        assert seen == []
    looking.join()
    assert seen == [before]
