"""Stages that train nothing have no W, and the gradients of the others are the single process's bit for bit."""

import pytest
from conftest import CHECKPOINTING
from one_process import assert_equal, by_threads
from own_model import own_job, partly_frozen, peaks_of, settings_of

from microp.schedule import of_sizes, validate
from microp.schedule.builders import gpipe, one_f_one_b, two_bp, zb_h1, zb_h2, zb_v

CASES = [  # schedule, sizes, the stages that train nothing, the layers that are frozen
    (zb_h1(2, 1), (3, 6), (1,), (3, 9)),
    (zb_h1(2, 3), (5, 4), (1,), (5, 9)),
    (zb_h1(2, 4), (3, 6), (0,), (0, 3)),
    (zb_h1(3, 2), (3, 3, 3), (1,), (3, 6)),
    (zb_h1(3, 5), (3, 3, 3), (1,), (3, 6)),
    (zb_h2(3, 7), (3, 3, 3), (1, 2), (3, 9)),
    (one_f_one_b(3, 4), (3, 3, 3), (1,), (3, 6)),
    (two_bp(3, 2), (2, 3, 4), (1,), (2, 5)),
    (zb_v(2, 3), (2, 1, 3, 3), (1, 2), (2, 6)),
    (zb_v(2, 5), (3, 2, 1, 3), (2,), (5, 6)),
    (gpipe(2, 3), (4, 5), (0,), (0, 4)),  # from the first layer on: nothing is kept, no backward is run
    (one_f_one_b(3, 4), (2, 3, 4), (0, 1), (0, 6)),
    (zb_h1(3, 4), (3, 3, 3), (0, 1), (0, 7)),
    (zb_h1(3, 4), (3, 3, 3), (0,), (0, 4)),
    (zb_v(2, 3), (2, 1, 3, 3), (0, 1), (0, 4)),
]


def job_of(number: int, backend: str = "threads"):
    order, sizes, stages, (first, stop) = CASES[number]
    schedule = validate(order.without_weight_gradients(stages))
    given = {"partition": of_sizes(9, schedule.stages, list(sizes)), "mode": [*CHECKPOINTING][number % 4]}
    return own_job(settings_of(partly_frozen, frozen=first, stop=stop), schedule=schedule, backend=backend, **given)


@pytest.mark.parametrize("number", range(len(CASES)))
def test_bit_for_bit(number):
    job = job_of(number)
    trained = by_threads(job)
    assert_equal(job, trained)
    assert [bool(gradients) for gradients in trained[1]] == [i not in job.model.frozen for i in range(9)]


@pytest.mark.parametrize("mode", CHECKPOINTING)
def test_layers_before_the_first_trained_one_need_no_memory_for_a_backward(mode):
    for build, stop in ((gpipe, 6), (gpipe, 4), (zb_h1, 5)):
        model, cut = settings_of(partly_frozen, frozen=0, stop=stop), of_sizes(9, 3, [3, 3, 3])
        job = own_job(model, schedule=build(3, 4), partition=cut, mode=mode, backend="threads", batch_size=256)
        measured, predicted = peaks_of(job)
        tensor = 4 * 8 * 4 * job.workload.mean_rows / 2**20  # between two layers: 4 tokens of 8 numbers
        assert predicted == pytest.approx(measured, rel=0.002, abs=1.01 * tensor), (build, stop)
