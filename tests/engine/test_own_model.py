"""What a model of one's own does that its trials did not show; `test_every_schedule.py` trains such models."""

import threading

import pytest
from conftest import CHECKPOINTING, small_job
from one_process import by_threads
from own_model import drawing_of_many, narrowing, own_job, peaks_of, residual, rooted, settings_of

from microp.comms import thread_comms
from microp.engine import ActionError
from microp.model.randomness import GENERATOR, generator_states, seeded
from microp.schedule.builders import gpipe, one_f_one_b, zb_h1, zb_v
from microp.settings import SnapshotSettings
from microp.worker import RankError, Trainer
from microp.worker.threads import run_threads


@pytest.mark.parametrize("backend", ["shm", "threads"])
def test_a_draw_that_no_trial_saw_ends_the_step(backend):
    model = settings_of(drawing_of_many)
    assert not model.draws
    job = own_job(model, schedule=gpipe(1, 1), backend=backend)  # 9 rows, in the one thread that has the generators
    trainer = Trainer(job, thread_comms(1, 20)[0], 0)
    trainer.load(0)
    with pytest.raises(RuntimeError, match="drawn random numbers, though none did when they were tried"):
        trainer.step(0)


def test_a_tensor_of_another_shape_than_in_the_trials_does_not_leave():
    job = own_job(settings_of(narrowing), schedule=gpipe(2, 1), backend="threads")
    with pytest.raises(ActionError, match=r"rank 0, action 0F0, step 0: made torch.float32 \[9, 4\], 1F0 takes"):
        by_threads(job)


def test_a_gradient_that_is_not_finite_is_left_to_the_run_which_names_its_step(tmp_path):
    job = own_job(settings_of(rooted), snapshot=SnapshotSettings("disk", 1, 1, False, None, False), backend="threads")
    with pytest.raises(RankError, match=r"weights are not finite after step 0 \(.* look at the model and the data"):
        run_threads(job, tmp_path)


def test_generators_are_left_alone_while_another_rank_makes_its_layers():
    """A layer is divided later: torch's checkpoint in it sets the generator back. So are their states looked at."""
    before, seen = generator_states(), []
    job = small_job(schedule=zb_h1(1, 2), backend="threads")  # of a model that draws nothing
    others = [
        threading.Thread(target=Trainer, args=(job, thread_comms(1, 20)[0])),
        threading.Thread(target=lambda: seen.append(generator_states())),
    ]
    with GENERATOR, seeded(1):
        for other in others:
            other.start()
        for other in others:
            other.join(0.5)
            assert other.is_alive()
    for other in others:
        other.join(20)
        assert not other.is_alive()
    assert seen == [before]


@pytest.mark.parametrize("mode", CHECKPOINTING)
@pytest.mark.parametrize("adapters", [False, True])
def test_what_enters_a_layer_is_kept_only_if_an_operation_keeps_it(adapters, mode):
    for build in (one_f_one_b, zb_h1, zb_v):
        schedule = build(2, 4)
        job = own_job(
            settings_of(residual, adapters=adapters), schedule=schedule, mode=mode, backend="threads", batch_size=256
        )
        measured, predicted = peaks_of(job)
        tensor = 4 * 16 * 4 * job.workload.mean_rows / 2**20  # between two layers; up to nine were too many
        assert predicted == pytest.approx(measured, rel=0.003, abs=2.01 * tensor), build
