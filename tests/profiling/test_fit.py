"""The times of layers are found again in the times of stages."""

from dataclasses import replace
from itertools import product

import numpy as np
import pytest
from profiled import case, profile

from microp import profiling
from microp.job import Workload
from microp.profiling import Case, between, fit_times, fit_transport, line, samples_of
from microp.schedule import partition, spread
from microp.schedule.builders import breadth_first, gpipe, one_f_one_b, zb_h1
from microp.settings import NEVER, Checkpointing, MlpSettings
from microp.simulator import LayerTimes

KINDS = (0, 1, 1, 1, 1, 1, 1, 7)
ALWAYS = Checkpointing("always", 1, False)


def times_at(rows: float) -> list[LayerTimes]:
    """A first layer that is heavy, a last one that is light; linear in the rows."""
    inside = LayerTimes(
        0.1 + 0.01 * rows, 0.1 + 0.012 * rows, 0.05 + 0.01 * rows, 0.12 + 0.02 * rows, 0.05 + 0.005 * rows
    )
    return [LayerTimes(*(2 * time for time in inside)), *[inside] * 6, LayerTimes(*(time / 2 for time in inside))]


def cases(rows: float, chunks: int = 8):
    layers = times_at(rows)
    even = partition.uniform(8, 2).sizes
    fixed = LayerTimes(0.03, 0.03, 0.03, 0.03, 0.015)  # half a forward, as the recomputation of a layer
    options = {"fixed": fixed, "latency": 0.02, "overhead": (0.01,) * 2}
    yield case(layers, even, gpipe(2, chunks), rows, **options)
    yield case(layers, even, one_f_one_b(2, chunks), rows, **options)
    yield case(layers, even, zb_h1(2, chunks), rows, **options)
    yield case(layers, (2, 2, 2, 2), breadth_first(2, chunks, 2), rows, **{**options, "overhead": (0.01,) * 4})
    yield case(layers, (6, 2), one_f_one_b(2, chunks), rows, **options)
    yield case(layers, (6, 2), zb_h1(2, chunks), rows, **options)
    lighter = [times._replace(forward=0.8 * times.forward) for times in layers]  # a forward that keeps only its input
    options["fixed"] = fixed._replace(forward=0.8 * fixed.forward)
    yield case(lighter, even, one_f_one_b(2, chunks), rows, ALWAYS, **options)


@pytest.mark.parametrize("rows", [4.0, 64.0])
def test_layers_are_found_in_stages(rows):
    samples = [sample for each in cases(rows) for sample in samples_of(each, KINDS)]
    whole = case(times_at(rows), (8,), gpipe(1, 8), rows, fixed=LayerTimes(0.03, 0.03, 0.03, 0.03, 0))
    found = fit_times(samples, samples_of(whole, KINDS), KINDS)
    truth = dict(zip(KINDS, times_at(rows), strict=True))
    for kind, times in truth.items():
        for name, values in found.layers[kind].items():
            assert values[0] == pytest.approx(getattr(times, name), rel=0.02, abs=0.003), (kind, name)
    assert found.fixed["forward"][0] == pytest.approx(0.03, abs=0.005)
    assert found.checkpointed[0] == pytest.approx(0.8, abs=0.005)
    assert found.alone[0] == pytest.approx(1, abs=0.01)
    for op, known in found.after.items():
        for what, after in known.items():
            taken = after.added[0] + after.factor[0] * 0.5  # of half a millisecond
            assert taken == pytest.approx(0.5, abs=0.02), (op, what)
    assert max(found.spread.values()) == 0
    once = [replace(each, times=[times[:1] for times in each.times]) for each in cases(rows)]
    found = fit_times([sample for each in once for sample in samples_of(each, KINDS)], [], KINDS)
    assert set(found.spread.values()) == {None}  # of one step it is not known


def test_what_ran_before_is_found():
    """A forward after a backward takes a tenth longer and 0.2 ms, and the first one of a step 0.4 ms longer."""
    samples = []
    for each in cases(16.0):
        for sample in samples_of(each, KINDS):
            usual = sample.ms
            more = {("forward", "backward"): 0.2 + 0.1 * usual, ("forward", "optimizer"): 0.4}
            samples.append(sample._replace(ms=usual + more.get((sample.op, sample.before), 0.0)))
    found = fit_times(samples, [], KINDS).after["forward"]
    assert found["backward"].added[0] == pytest.approx(0.2, abs=0.03)
    assert found["backward"].factor[0] == pytest.approx(1.1, abs=0.02)
    assert found["optimizer"].added[0] == pytest.approx(0.4, abs=0.05)
    assert found["optimizer"].factor[0] == pytest.approx(1, abs=0.02)


def test_hops_and_the_engine_s_own_time():
    found = fit_transport([between(each) for rows in (4.0, 64.0) for each in cases(rows)])
    assert found.latency == pytest.approx(0.02, abs=1e-4)
    assert found.per_mib == pytest.approx(0, abs=1e-3)
    assert found.overhead == pytest.approx(0.01, abs=1e-4)
    assert between(next(cases(4.0))).optimizer == [(2**20, 0.25)] * 2
    assert line([(1, 3), (2, 5), (3, 7)]) == pytest.approx((1, 2))
    assert line([(1, 5), (2, 4), (3, 3)])[1] == 0  # it is never negative
    assert (line([]), line([(2, 7), (2, 9)])) == ((0, 0), (8, 0))


def disturbed(measured: Case, chance: np.random.Generator) -> Case:
    """The same case on a busy machine: two steps, times that differ by factors, and some actions that stood still."""
    times = []
    for own in measured.times:
        changed = own[:2].copy()
        took = (changed[:, :, 2] - changed[:, :, 1]) * np.exp(chance.normal(0, 2, changed.shape[:2]))
        took += np.where(chance.random(took.shape) < 0.05, 5e8 * chance.random(took.shape), 0)
        changed[:, :, 2] = changed[:, :, 1] + took.astype(np.int64)
        times.append(changed)
    return replace(measured, times=times)


@pytest.mark.parametrize("seed", range(8))
def test_no_stage_is_said_to_take_longer_than_the_longest_action_of_a_busy_machine(seed):
    """Each number of rows is measured with two orders only: what ran before is known at one and not at the next."""
    chance = np.random.default_rng(seed)
    quiet = [each for rows, chunks in ((1.0, 8), (4.0, 2)) for each in cases(rows, chunks)]
    samples = [s for each in (*quiet[:1], *quiet[2:3], *quiet[7:8]) for s in samples_of(disturbed(each, chance), KINDS)]
    found = fit_times(samples, [], KINDS)
    layers = {kind: found.layers[kind] for kind in KINDS}
    made = profile(
        MlpSettings("mlp", 8, 16, None), rows=found.rows, layers=layers, fixed=found.fixed, after=found.after
    )
    longest = max(sample.ms for sample in samples)
    for chunks, build in product((2, 3, 4, 5, 8), (gpipe, one_f_one_b, zb_h1)):
        workload = Workload(build(2, chunks), (4, 4), tuple(spread(8, chunks)), NEVER)
        costs = profiling.stage_costs(made, KINDS, workload, "shm")
        assert max(*costs.forward, *costs.backward, *(costs.weight or (0,))) <= longest * 1.001


def test_layers_that_no_stage_shows_apart_take_about_as_long_as_the_others():
    """The first and the last layer are in stages of the same size where only the needed cases were run."""
    alike = case([LayerTimes(1, 1, 1, 2, 1)] * 8, (4, 4), gpipe(2, 8), 16.0)
    samples = [s._replace(ms=s.ms * (1.2 if dict(s.kinds).get(0) else 1)) for s in samples_of(alike, KINDS)]
    layers = fit_times(samples, [], KINDS).layers
    assert [layers[kind]["forward"][0] for kind in (0, 1, 7)] == pytest.approx([1.5, 1.1, 0.7], rel=0.03)
