"""The column that names the question of each row in few characters."""

from __future__ import annotations

from microp.terminal.question_text import question_column

KEYS = {
    "chunks": ["8", "8", "8", "4"],
    "partition": ["uniform", "uniform", "skewed", "skewed"],
    "partition.share": ["-", "-", "0.5", "0.8"],
    "model.dim": ["64", "64", "64", "32"],
    "data.dim": ["1", "1", "1", "2"],
}


def test_a_row_names_what_differs_from_the_usual_value():
    """Two keys that end alike are named whole; a group is known by its option."""
    column, meaning = question_column(KEYS, ["partition"], 5)
    assert (column.name, column.importance) == ("question", 5)
    assert column.values == ["-", "-", "skewed share=0.5", "chunks=4 skewed share=0.8 model.dim=32 data.dim=2"]
    assert meaning == "question: what differs from chunks=8 uniform model.dim=64 data.dim=1; - is that itself."
