"""What is written is what is read, also when a process was killed in the middle of a line."""

from __future__ import annotations

import json

import pytest

from microp.records import (
    RankRecorder,
    attempts,
    load_runs,
    load_steps,
    new_attempt,
    read_asked,
    read_errors,
    read_rows,
    read_spans,
    write_json,
)
from microp.schedule import Op
from microp.trace import Span


def test_rows_and_spans_round_trip(tmp_path):
    recorder = RankRecorder(tmp_path, 1)
    rows = [{"step": step, "rank": 1, "loss": 0.5 * step} for step in range(3)]
    for row in rows:
        recorder.step(row)
        assert read_rows(tmp_path, 1)[-1] == row  # on disk at once
    spans = [Span(1, Op.F, 1, 0, 10, 20, 9), Span(1, Op.B, 1, 0, 20, 40, 20)]
    recorder.spans(2, spans, [5, 20])
    recorder.close()
    assert read_rows(tmp_path, 1) == rows
    assert read_spans(tmp_path) == spans
    assert read_asked(tmp_path) == {spans[0].action: 5, spans[1].action: 20}
    first = json.loads((tmp_path / "spans.rank1.jsonl").read_text().splitlines()[0])
    assert (first["op"], first["start_ns"], first["end_ns"], first["step"]) == ("F", 10, 20, 2)


def test_a_line_cut_short_loses_only_itself(tmp_path):
    (tmp_path / "steps.rank0.jsonl").write_text('{"step": 0}\n{"step": 1}\n{"st')
    assert [row["step"] for row in read_rows(tmp_path, 0)] == [0, 1]


def test_no_attempt_is_written_over(tmp_path):
    folders = [new_attempt(tmp_path, "run") for _ in range(11)]
    assert [folder.name for folder in folders] == [f"attempt-{n}" for n in range(1, 12)]
    for folder in folders:
        write_json(folder / "status.json", {})
    assert attempts(tmp_path) == folders  # 10 comes after 9


def test_the_cause_comes_before_its_victims(tmp_path):
    for rank, lost, time in ((0, True, 1.0), (1, False, 3.0), (2, True, 2.0)):
        RankRecorder(tmp_path, rank).error({"rank": rank, "lost_peer": lost, "time": time})
    assert [error["rank"] for error in read_errors(tmp_path)] == [1, 0, 2]


def test_frames(tmp_path):
    for number in range(2):
        attempt = new_attempt(tmp_path / "runs", "run")
        write_json(attempt / "status.json", {})
        write_json(attempt / "summary.json", {"chunks": 4, "step_ms": {"median": 10.0 + number}})
        for rank in range(2):
            RankRecorder(attempt, rank).step({"rank": rank, "step_ms": 1.0})
    runs = load_runs(tmp_path)
    assert runs["step_ms.median"].tolist() == [10.0, 11.0]
    assert runs["attempt"].tolist() == ["attempt-1", "attempt-2"]
    assert load_steps(attempt)["rank"].tolist() == [0, 1]


def test_half_a_file_is_never_seen(tmp_path):
    write_json(tmp_path / "a.json", {"old": 1})
    with pytest.raises(TypeError):
        write_json(tmp_path / "a.json", {"new": object()})
    assert json.loads((tmp_path / "a.json").read_text()) == {"old": 1}
