"""The four rules, drawn: tensors from rank 0 to rank 1, an F a digit long for each unit of time."""

from __future__ import annotations

import pytest

from microp.schedule import Op
from microp.schedule.builders import gpipe, naive, one_f_one_b
from microp.simulator import LINK_MODELS, Costs, simulate
from microp.simulator.link_model import Asynchronous, Rendezvous, SenderBusy, SerialLink
from microp.trace import makespan


def drawn(spans, ranks: int) -> tuple[str, ...]:
    rows = [["."] * makespan(spans) for _ in range(ranks)]
    for span in spans:
        rows[span.rank][span.start : span.end] = str(span.microbatch) * (span.end - span.start)
    return tuple("".join(row).rstrip(".") for row in rows)


@pytest.mark.parametrize(
    ("transfer", "forward", "hop", "rows"),
    [
        (Asynchronous(), 1, 2, ("0123", "...0123")),
        (SenderBusy(), 1, 2, ("0..1..2..3", "...0..1..2..3")),
        (SerialLink(), 1, 2, ("0123", "...0.1.2.3")),
        (Rendezvous(), 1, 2, ("0123", "...0..1..2..3")),
        (Asynchronous(), 2, 1, ("00112233", "...00112233")),
        (SenderBusy(), 2, 1, ("00.11.22.33", "...00.11.22.33")),
        (SerialLink(), 2, 1, ("00112233", "...00112233")),
        (Rendezvous(), 2, 1, ("00112233", "...00.11.22.33")),
    ],
)
def test_hops_longer_and_shorter_than_a_forward(transfer, forward, hop, rows):
    costs = Costs((forward, forward), (1, 1), latency=hop, transfer=transfer)
    assert drawn([span for span in simulate(gpipe(2, 4), costs) if span.op is Op.F], 2) == rows


@pytest.mark.parametrize("transfer", LINK_MODELS.values(), ids=LINK_MODELS)
def test_one_tensor_under_way_at_a_time_costs_the_same_by_every_rule(transfer):
    costs = Costs((1, 1, 1), (2, 2, 2), latency=5, transfer=transfer)
    assert makespan(simulate(naive(3, 4), costs)) == 4 * (3 * (1 + 2) + 4 * 5)


@pytest.mark.parametrize("transfer", LINK_MODELS.values(), ids=LINK_MODELS)
def test_without_hops_the_rules_are_one(transfer):
    spans = simulate(gpipe(3, 4), Costs((1, 2, 3), (3, 2, 4), transfer=transfer))
    assert spans.end.tolist() == simulate(gpipe(3, 4), Costs((1, 2, 3), (3, 2, 4))).end.tolist()


def test_the_two_directions_of_a_link_do_not_queue():
    """The activation of F1 is under way from 4 to 7, the gradient of B0 from 6 to 9."""
    costs = Costs((1, 1), (1, 1), latency=3, transfer=SerialLink())
    starts = {str(span.action): span.start for span in simulate(one_f_one_b(2, 3), costs)}
    assert (starts["1F0"], starts["1B0"], starts["1F1"], starts["0B0"]) == (4, 5, 7, 9)


def test_rules_are_values():
    assert Costs((1,), (1,)) == Costs((1,), (1,), transfer=Asynchronous()) != Costs((1,), (1,), transfer=SerialLink())
    assert {name: type(rule).__name__ for name, rule in LINK_MODELS.items()} == {
        "asynchronous": "Asynchronous",
        "sender_busy": "SenderBusy",
        "serial_link": "SerialLink",
        "rendezvous": "Rendezvous",
    }
