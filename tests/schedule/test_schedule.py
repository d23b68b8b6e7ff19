"""The value, its one dependency rule, and the orders of three builders."""

from __future__ import annotations

from itertools import product

import pytest
from drawn import read

from microp.schedule import Action, Op, from_text, to_text, validate
from microp.schedule.builders import Drain, gpipe, naive, one_f_one_b

GRID = list(product((naive, gpipe, one_f_one_b), range(1, 7), range(1, 13)))


def test_actions_are_spelled_as_torch_does():
    action = Action(Op.F, 1, 0)
    assert str(action) == "1F0"
    assert Action.parse("12B34") == Action(Op.B, 12, 34)
    with pytest.raises(ValueError, match="'1X0' is not an action"):
        Action.parse("1X0")


def test_the_dependency_rule():
    schedule = gpipe(3, 2)
    parents = {str(a): [str(p) for p in schedule.parents(a)] for _, a in schedule}
    assert parents["0F1"] == []
    assert parents["2F1"] == ["1F1"]
    assert parents["2B1"] == ["2F1"]
    assert parents["1B1"] == ["1F1", "2B1"]
    assert [str(p) for p in schedule.parents(Action(Op.W, 1, 0))] == ["1B0"]
    assert str(schedule.source(Action.parse("1B1"))) == "2B1"
    assert schedule.source(Action.parse("2B1")) is None
    assert str(schedule.consumers[Action.parse("0F1")]) == "1F1"


def test_orders_as_drawn():
    assert naive(2, 2).ranks == read("0F0 0B0 0F1 0B1", "1F0 1B0 1F1 1B1", chunks=2).ranks
    assert gpipe(2, 3).ranks == read("0F0 0F1 0F2 0B0 0B1 0B2", "1F0 1F1 1F2 1B0 1B1 1B2", chunks=3).ranks
    assert gpipe(1, 3, Drain.lifo).ranks == read("0F0 0F1 0F2 0B2 0B1 0B0", chunks=3).ranks
    # rank r warms up with K - 1 - r forwards
    assert (
        one_f_one_b(3, 4).ranks
        == read(
            "0F0 0F1 0F2 0B0 0F3 0B1 0B2 0B3",
            "1F0 1F1 1B0 1F2 1B1 1F3 1B2 1B3",
            "2F0 2B0 2F1 2B1 2F2 2B2 2F3 2B3",
            chunks=4,
        ).ranks
    )
    # fewer chunks than ranks: the warmup is clamped
    assert one_f_one_b(3, 1).ranks == read("0F0 0B0", "1F0 1B0", "2F0 2B0").ranks


@pytest.mark.parametrize(("build", "ranks", "chunks"), GRID)
def test_builders_are_valid(build, ranks, chunks):
    schedule = validate(build(ranks, chunks))
    assert (len(schedule.ranks), schedule.chunks, schedule.stages) == (ranks, chunks, ranks)
    assert from_text(to_text(schedule)) == schedule


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "line 1, column 1: expected '# microp schedule"),
        ("# microp schedule x chunks=1 ranks=2\n0F0 0B0", "ranks=2, but 1 rows"),
        ("# microp schedule x chunks=1 ranks=1\n0F0  0Q0", "line 2, column 6: '0Q0' is not an action"),
    ],
)
def test_bad_text_is_named_by_line_and_column(text, message):
    with pytest.raises(ValueError, match="line") as caught:
        from_text(text)
    assert message in str(caught.value)


@pytest.mark.parametrize("numbers", [(0, 1), (1, 0)])
def test_a_schedule_has_ranks_and_chunks(numbers):
    with pytest.raises(ValueError, match="both must be at least 1"):
        gpipe(*numbers)
