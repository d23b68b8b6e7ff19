"""What is drawn is what the spans say."""

from __future__ import annotations

from microp.costs import equal
from microp.render import figure, text
from microp.schedules import gpipe
from microp.simulate import simulate


def test_text():
    spans = simulate(gpipe(2, 2), equal(2, 4, 6))
    assert text(spans, columns=30).splitlines() == [
        "rank 0 |F0--F1--..........B0====B1====|",
        "rank 1 |....F0--F1--B0====B1====......|",
    ]


def test_a_narrow_drawing_still_shows_every_rank():
    lines = text(simulate(gpipe(3, 40), equal(3, 1, 2)), columns=20).splitlines()
    assert [line[:8] for line in lines] == ["rank 0 |", "rank 1 |", "rank 2 |"]
    assert {len(line) for line in lines} == {29}


def test_the_same_spans_give_the_same_bytes(tmp_path):
    spans = simulate(gpipe(2, 3), equal(2, 4_000_000, 6_000_000))
    first = figure({"predicted": spans, "measured": spans}, "a title", tmp_path / "one")
    second = figure({"predicted": spans, "measured": spans}, "a title", tmp_path / "two")
    assert [file.suffix for file in first] == [".svg", ".png"]
    assert first[0].read_bytes() == second[0].read_bytes()
