"""Emulated devices: what an action costs, that it lasts that long, and that its mathematics is real."""

from dataclasses import replace

import pytest
from conftest import mlp, small_job
from emulation import settings, workload
from one_process import assert_near, by_one_process, by_threads

from microp.records import disturbances, read_rows, read_spans, summarise
from microp.schedule import Action, Op, uniform
from microp.schedule.builders import chimera, dualpipe, dualpipe_v, interleaved, one_f_one_b, zb_h1
from microp.settings import DeviceSettings
from microp.simulator import Costs, closed_forms, nominal_costs
from microp.trace import makespan
from microp.worker.threads import run_threads

# --- what an action costs ------------------------------------------------------------------------


THREES = (2, 2, 2), (6, 6, 6)


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({}, Costs(*THREES)),
        ({"forward_ms": [1, 2, 3]}, Costs((1, 2, 3), (6, 6, 6))),
        ({"weight_ms": 5}, Costs(*THREES, (5, 5, 5))),
        ({"weight_ms": [0, 1, 2]}, Costs(*THREES, (0, 1, 2))),
        ({"weight_ms": 5, "full_ms": 7}, Costs((2, 2, 2), (7, 7, 7))),
        ({"per": ["layer"]}, Costs((6, 4, 2), (18, 12, 6))),
        ({"per": ["row"]}, Costs((8, 8, 8), (24, 24, 24))),
        ({"per": ["layer"], "backward_ms": [3, 6, 9]}, Costs((6, 4, 2), (9, 12, 9))),
        ({"latency_ms": 0.5, "per": ["layer", "row"]}, Costs((24, 16, 8), (72, 48, 24), latency=0.5)),
        ({"recompute_ms": 1}, Costs(*THREES)),  # nothing is recomputed
    ],
    ids=str,
)
def test_a_full_backward(given, expected):
    assert nominal_costs(settings(**given), workload(), rows=4) == expected


@pytest.mark.parametrize(
    ("given", "backward", "weight"),
    [({}, 3, 3), ({"weight_ms": 5}, 6, 5), ({"weight_ms": 0}, 6, 0), ({"backward_ms": [6, 6, 6]}, 3, 3)],
    ids=str,
)
def test_a_divided_backward(given, backward, weight):
    costs = nominal_costs(settings(**given), workload(zb_h1(3, 3)), rows=4)
    assert costs == Costs((2,) * 3, (backward,) * 3, (weight,) * 3)
    assert costs.of(Action(Op.B, 1, 0)) == sum(costs.of(Action(op, 1, 0)) for op in (Op.I, Op.W))


@pytest.mark.parametrize(
    ("given", "checkpointing", "recompute", "spared"),
    [
        ({}, "never", (), ()),
        ({}, "always", (2, 2, 2), ()),
        ({"recompute_ms": 1.5}, "always", (1.5, 1.5, 1.5), ()),
        ({"recompute_ms": 0}, "always", (0, 0, 0), ()),
        ({"recompute_ms": [1, 2, 3], "per": ["layer"]}, "segments", (3, 4, 3), ()),
        ({"forward_ms": [1, 2, 3]}, "except_last", (1, 2, 3), (2,)),
    ],
    ids=str,
)
def test_recomputation(given, checkpointing, recompute, spared):
    costs = nominal_costs(settings(**given), workload(checkpointing=checkpointing), rows=4)
    assert (costs.recompute, costs.spared) == (recompute, spared)


# --- real runs -----------------------------------------------------------------------------------


def run(tmp_path, checkpointing="never", **device):
    schedule, replicas = device.pop("schedule", one_f_one_b(2, 4)), device.pop("replicas", 1)
    given = {"schedule": schedule, "replicas": replicas, "batch_size": 8, "steps": 4, "device": settings(**device)}
    job = small_job(checkpointing, **given, backend="threads")
    run_threads(job, tmp_path)
    return job, read_spans(tmp_path), summarise(job, tmp_path, "finished")


def test_a_run_lasts_what_it_was_told_to(tmp_path):
    job, spans, summary = run(tmp_path, forward_ms=[2.0, 3.0], backward_ms=[4.0, 6.0], latency_ms=1.0)
    nominal = {"0F": 2.0, "1F": 3.0, "0B": 4.0, "1B": 6.0}
    ends = {span.action: span.start + nominal[f"{span.stage}{span.op}"] * 1e6 for span in spans}
    for span in spans:
        assert span.end >= ends[span.action]
        source = job.schedule.source(span.action)
        if source is not None:
            assert (span.start - ends[source]) / 1e6 >= 1.0
    assert summary["step_ms"]["median"] >= 4 * 9 + 2 + 4 + 2  # the slow stage, what is around it, two hops
    assert summary["nominal"]["step"] >= 1
    assert 0 < summary["nominal"]["work"] < 1


@pytest.mark.parametrize(
    "schedule",
    [dualpipe_v(2, 5), dualpipe(2, 6), interleaved(3, 7, 2, extra_warmup=1, overlap=True)],
    ids=lambda s: s.name,
)
def test_a_pair_trains_as_its_two_actions_do(schedule):
    """In float64, with recomputation; a pair waits for both inputs and gives both outputs."""
    device = settings(forward_ms=0.2, backward_ms=0.4, pair_ms=0.5, overhead_ms=0.1)
    given = {"schedule": schedule, "model": mlp("float64"), "device": device, "backend": "threads"}
    job = small_job("except_last", **given)
    for device in (job.device, DeviceSettings("cpu", 1)):
        assert_near(by_threads(replace(job, device=device)), by_one_process(job))


def test_a_step_with_pairs_lasts_what_its_closed_form_says(tmp_path):
    schedule = interleaved(2, 8, 2, extra_warmup=1, overlap=True)
    device = settings(forward_ms=4.0, backward_ms=6.0, pair_ms=7.0)
    job = small_job(schedule=schedule, partition=uniform(6, 4), steps=4, device=device, backend="threads")
    run_threads(job, tmp_path)
    spans = read_spans(tmp_path)
    costs = Costs((4,) * 4, (6,) * 4, pair=(7,) * 4)
    assert makespan(spans) / 1e6 >= closed_forms.makespan(schedule, costs)
    times = {span.action: span for span in spans}
    for forward, backward in schedule.partners.items():
        assert (times[backward].end - times[forward].start) / 1e6 >= 7


@pytest.mark.parametrize(
    ("given", "each", "actions"),
    [
        ({"forward_ms": [30.0, 0.0], "backward_ms": [30.0, 0.0]}, 8, 16),
        ({"forward_ms": 9.0, "backward_ms": 9.0, "reduce_ms": [90.0, 0.0], "replicas": 2}, 1, 32),
        ({"forward_ms": 9.0, "backward_ms": 9.0, "reduce_ms": 0.0, "schedule": chimera(2, 4)}, 1, 16),
    ],
    ids=["actions", "sums over replicas", "sums over copies"],
)
def test_overruns_are_counted_and_said(tmp_path, given, each, actions):
    _, _, summary = run(tmp_path, **given)
    rows = [[row for row in read_rows(tmp_path, rank) if row["phase"] == "measured"] for rank in range(actions // 8)]
    assert all(row["overruns"] >= each for row in rows[1])  # no more, unless the machine stands still
    counted = sum(row["overruns"] for of_rank in rows for row in of_rank)
    assert (summary["overruns"], summary["actions"]) == (counted, 4 * actions)
    assert f"{counted} overruns" in [disturbance.text for disturbance in disturbances(summary, {})]


def test_recomputation_is_booked_as_it_was_told(tmp_path):
    _, spans, summary = run(tmp_path, "except_last", forward_ms=1.0, backward_ms=2.0, recompute_ms=[1.0, 3.0])
    assert summary["time_ms"]["recompute"] == pytest.approx([3 * 1.0, 3 * 3.0])
    for rank in range(2):
        busy_ms = sum(span.end - span.start for span in spans if span.rank == rank) / 1e6
        assert summary["time_ms"]["compute"][rank] + summary["time_ms"]["recompute"][rank] == pytest.approx(busy_ms)
        assert busy_ms >= 4 * 1 + 4 * 2 + 3 * (1, 3)[rank]
