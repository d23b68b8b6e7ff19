"""What is read off spans, on examples small enough to count."""

from dataclasses import replace
from fractions import Fraction
from random import Random

import numpy as np
import pytest
from drawn import equal, random_cases, read_spans

from microp import trace
from microp.schedule import Action, Op
from microp.schedule.builders import gpipe
from microp.simulator import simulate
from microp.trace import MOMENTS, as_spans, bubble_fraction, busy, column_type, idle_edges, in_flight_peak, makespan

GPIPE = read_spans("F0 F1 F2  .  . B0 B1 B2", " . F0 F1 F2 B0 B1 B2  .")
PARALLELOGRAM = read_spans("F0 F1 F2 B0 W0 B1 W1 B2 W2", " . F0 B0 F1 B1 F2 B2 W0 W1 W2")
SKEWED = read_spans("F0 B0  .  .  .", " .  . F0  . B0")  # rank 1 starts late and is idle inside


@pytest.mark.parametrize(
    ("spans", "gpipe_bubble", "megatron", "zero_bubble"),
    [
        (GPIPE, Fraction(1, 4), Fraction(1, 3), 1 - Fraction(12, 2 * 8)),
        (PARALLELOGRAM, Fraction(1, 10), Fraction(1, 9), 0),
        (SKEWED, Fraction(6, 10), Fraction(6, 4), 1 - Fraction(4, 2 * 3)),
    ],
    ids=["gpipe", "parallelogram", "skewed"],
)
def test_three_bubbles(spans, gpipe_bubble, megatron, zero_bubble):
    assert bubble_fraction(spans) == gpipe_bubble
    assert trace.megatron_bubble(spans) == megatron
    assert trace.zero_bubble_rate(spans) == zero_bubble


def test_what_is_counted():
    assert makespan(GPIPE) == 8
    assert busy(GPIPE) == {0: 6, 1: 6}
    assert in_flight_peak(GPIPE) == {0: 3, 1: 3}
    assert in_flight_peak(PARALLELOGRAM) == {0: 3, 1: 1}
    assert in_flight_peak(read_spans("F0 F1", " . F0")) == {0: 2, 1: 1}  # ranks do not add up
    assert idle_edges(GPIPE) == {0: (0, 0), 1: (1, 1)}
    assert idle_edges(SKEWED) == {0: (0, 3), 1: (2, 0)}
    assert busy([]) == in_flight_peak([]) == {}
    later = [span._replace(**{moment: getattr(span, moment) + 10**15 for moment in MOMENTS}) for span in GPIPE]
    assert (makespan(later), bubble_fraction(later)) == (8, Fraction(1, 4))  # measured times do not begin at 0


def test_columns_are_a_sequence_of_spans():
    spans = simulate(gpipe(2, 3), equal(2, 2, 3, 1))
    assert len(spans) == 12
    assert spans[0] == (0, Op.F, 0, 0, 0, 0, 0, 2)
    assert spans[0].action == Action(Op.F, 0, 0)
    assert type(spans[0].start) is int
    assert spans[-1] == list(spans)[-1] == spans[11]
    assert spans[2:4] == list(spans)[2:4]
    assert [spans.at(position) for position in range(12)] == [span.action for span in spans]
    with pytest.raises(IndexError):
        spans[12]


def test_columns_hold_what_they_are_given_in_any_order():
    for schedule, costs in random_cases(1, 20):
        spans = simulate(schedule, replace(costs, weight=(Fraction(1, 2),) * schedule.stages))
        shuffled = Random(1).sample(list(spans), len(spans))
        assert list(as_spans(shuffled)) == list(spans)
        assert as_spans(spans) is spans
        for read_off in (makespan, busy, bubble_fraction, in_flight_peak, idle_edges):
            assert read_off(shuffled) == read_off(spans)
    half = Fraction(1, 2)
    for values, kind in (([1, 2], np.int64), ([1, 2.5], np.float64), ([half, 1], object), ([1, 2**62], object)):
        assert column_type(values, bound=values[1]) is kind
