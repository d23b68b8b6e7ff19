"""The column that names the question of each row in few characters."""

from __future__ import annotations

import re

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


LONG = {
    "learning_rate": ["0.001", "0.01", "0.01", "0.001"],
    "data.path": ["a", "/home/somebody/one_readme.txt", "/home/somebody/two_readme.txt", "a"],
    "partition": ["uniform", "uniform", "skewed", "uniform"],
}


def test_a_question_is_shortened_within_its_values_and_then_by_whole_keys():
    column, _ = question_column(LONG, ["partition"], 5)
    whole = column.values[2]
    assert whole == "learning_rate=0.01 path=/home/somebody/two_readme.txt skewed"
    for limit in range(18, len(whole) + 1):
        short = column.shorter(column.values, limit)
        if short is None:  # two questions would look alike
            continue
        assert len(set(short)) == 3
        assert max(map(len, short)) <= limit
        for text in short[1:3]:
            assert re.fullmatch(r"learning_rate=0.01( path=\S+)?( skewed)?( \+[12] keys?)?|[23] keys", text), text
    assert column.shorter(column.values, 48)[2].startswith("learning_rate=0.01 path=/home/")
    assert column.shorter(column.values, 28)[1:3] == ["learning_rate=0.01 +1 key", "learning_rate=0.01 +2 keys"]
