"""What is measured keeps the order and the dependencies."""

from itertools import pairwise

import pytest
from conftest import small_job
from training import trained

from microp.comms import thread_comms
from microp.records import read_spans
from microp.schedule.builders import gpipe, naive, one_f_one_b
from microp.trace import in_flight_peak
from microp.worker import launch_ranks, run_threads


@pytest.mark.parametrize(
    ("schedule", "peaks", "start"),
    [
        (gpipe(3, 5), [5, 5, 5], run_threads),
        (one_f_one_b(3, 5), [3, 2, 1], launch_ranks),
        (naive(2, 5), [1, 1], run_threads),
    ],
)
def test_measured_spans_keep_the_order_and_the_dependencies(schedule, peaks, start, tmp_path):
    start(small_job(schedule=schedule, backend="shm" if start is launch_ranks else "threads"), tmp_path)
    spans = read_spans(tmp_path)
    ends = {span.action: span.end for span in spans}
    assert len(ends) == len(spans) == 2 * 5 * len(schedule.ranks)
    for rank, row in enumerate(schedule.ranks):
        own = sorted((span for span in spans if span.rank == rank), key=lambda span: span.start)
        assert tuple(span.action for span in own) == row
        assert all(a.end <= b.start for a, b in pairwise(own))
    for span in spans:
        assert all(ends[parent] <= span.start for parent in schedule.parents(span.action))
    assert in_flight_peak(spans) == dict(enumerate(peaks))


def test_gradients_are_dropped_between_steps():
    [comms] = thread_comms(1)
    trainer, _ = trained(small_job(schedule=gpipe(1, 2)), comms, 1)
    weight = next(trainer.stages[0].layers.parameters())
    assert weight.grad is not None
    trainer.load(1)
    assert weight.grad is None
