"""What is written is what is read, also when a process was killed in the middle of a line."""

import json
import tracemalloc
from itertools import pairwise

import pytest
from stored import store_run

from microp import records
from microp.records import RankRecorder, SweepPlan, new_attempt, read_reductions, read_rows, read_spans, write_json
from microp.results import finished_runs, load_runs
from microp.schedule import Op
from microp.trace import Reduction, Span, Spans


def test_rows_and_spans_round_trip(tmp_path):
    recorder = RankRecorder(tmp_path, 1)
    rows = [{"schema_version": 3, "step": step, "rank": 1, "loss": 0.5 * step} for step in range(3)]
    for row in rows:
        recorder.step({key: value for key, value in row.items() if key != "schema_version"})
        assert read_rows(tmp_path, 1)[-1] == row  # on disk at once
    spans = [Span(1, Op.F, 1, 0, 5, 9, 10, 20), Span(1, Op.B, 1, 0, 20, 20, 20, 40)]
    recorder.spans(2, spans)
    recorder.close()
    assert read_rows(tmp_path, 1) == rows
    assert isinstance(read_spans(tmp_path), Spans)
    assert list(read_spans(tmp_path)) == spans
    first = json.loads((tmp_path / "spans.rank1.jsonl").read_text().splitlines()[0])
    assert (first["schema_version"], first["op"], first["step"], first["replica"]) == (3, "F", 2, 0)
    assert [first[f"{moment}_ns"] for moment in ("wait_start", "ready", "start", "end")] == [5, 9, 10, 20]


def test_records_of_a_time_without_i_are_read_with_it(tmp_path):
    times = {"0F": 1.0, "0B": 2.0, "0W": 3.0, "0X": 4.0, "1F": 5.0, "1B": 6.0}
    (tmp_path / "steps.rank0.jsonl").write_text(json.dumps({"schema_version": 2, "action_ms": times}) + "\n")
    today = {"0F": 1.0, "0I": 2.0, "0W": 3.0, "0B": 4.0, "1F": 5.0, "1B": 6.0}
    assert read_rows(tmp_path, 0)[0]["action_ms"] == records.read_some_rows(tmp_path, 1)[0][0]["action_ms"] == today
    divided = [Span(0, op, 0, 0, *[moment] * 4) for moment, op in enumerate((Op.F, Op.B, Op.W))]
    RankRecorder(tmp_path, 0).spans(2, [*divided, Span(0, Op.B, 1, 0, 9, 9, 9, 9)])
    assert [str(span.action) for span in read_spans(tmp_path)] == ["0F0", "0I0", "0W0", "1B0"]


def test_the_sums_of_each_replica_round_trip(tmp_path):
    """The number in a file's name counts all ranks; a row has the rank within its pipeline."""
    for number, (replica, rank) in enumerate([(0, 0), (0, 1), (1, 0), (1, 1)]):
        RankRecorder(tmp_path, number, replica).reductions(3, [Reduction(rank, rank, 10 * number, 10 * number + 5)])
    assert read_reductions(tmp_path, 1) == [Reduction(0, 0, 20, 25), Reduction(1, 1, 30, 35)]
    assert json.loads((tmp_path / "reductions.rank0.jsonl").read_text())["schema_version"] == 3
    RankRecorder(tmp_path, 9).reductions(3, [])
    assert not (tmp_path / "reductions.rank9.jsonl").exists()


def test_no_attempt_is_written_over(tmp_path):
    folders = [new_attempt(tmp_path, "run") for _ in range(11)]
    assert [folder.name for folder in folders] == [f"attempt-{n}" for n in range(1, 12)]
    for folder in folders:
        write_json(folder / "status.json", {})
    copy = tmp_path / "run" / "attempt-3.copy"
    copy.mkdir()
    write_json(copy / "status.json", {})
    assert records.attempts(tmp_path) == folders  # 10 comes after 9, and a folder with another name is no attempt


def test_the_cause_comes_before_its_victims(tmp_path):
    for rank, lost, time in ((0, True, 1.0), (1, False, 3.0), (2, True, 2.0)):
        RankRecorder(tmp_path, rank).error({"rank": rank, "lost_peer": lost, "time": time})
    assert [error["rank"] for error in records.read_errors(tmp_path)] == [1, 0, 2]


def test_a_run_is_one_row_of_its_newest_finished_attempt(tmp_path):
    """A run that never finished is its newest attempt."""
    for status, step_ms in (("finished", 10.0), ("finished", 11.0), ("failed", 13.0)):
        finished = store_run(tmp_path, "chunks=4", "model.dim=64", status=status, step_ms=step_ms)
    for status in ("interrupted", "running"):
        running = store_run(tmp_path, "chunks=8", "model.dim=64", status=status)
    runs = load_runs(tmp_path).set_index("run_id")
    assert runs.attrs["unreadable"] == []
    assert runs["attempt"].to_dict() == {finished: "attempt-2", running: "attempt-2"}
    assert runs["status"].to_dict() == {finished: "finished", running: "running"}
    assert runs.loc[finished, "step_ms.median"] == 11.0
    assert runs.loc[finished, "question"] == runs.loc[finished, "question_id"]
    assert (runs["config.model.dim"] == 64).all()
    assert str(runs["step_ms.n"].dtype) == "Int64"  # although the running one has none
    assert runs.loc[running, "folder"] == str(tmp_path / "runs" / running / "attempt-2")
    assert finished_runs(tmp_path)["run_id"].tolist() == [finished]


def test_a_folder_without_runs_has_no_rows_and_one_that_cannot_be_made_is_named(tmp_path):
    assert load_runs(tmp_path).empty
    assert finished_runs(tmp_path).empty
    (tmp_path / "outputs").symlink_to(tmp_path / "nowhere")
    (tmp_path / "file").touch()
    for place in ("outputs", "file"):
        with pytest.raises(OSError, match=place):
            new_attempt(tmp_path / place / "runs", "run")


@pytest.mark.parametrize("cut", [b"", b'{"phase": "mea'])
def test_of_very_many_steps_pieces_are_read_and_no_file_is_held_in_memory(tmp_path, monkeypatch, cut):
    engines = ("torch", "microp")  # in turns
    for rank in range(2):
        rows = [{"phase": "measured", "engine": engines[step % 2], "step": step} for step in range(20_000)]
        lines = [*rows, {"phase": "memory", "engine": "microp", "step": 20_000}]
        text = "".join(json.dumps({**row, "rank": rank, "more": "." * 200}) + "\n" for row in lines).encode()
        (tmp_path / f"steps.rank{rank}.jsonl").write_bytes(text + cut * rank)  # one was killed in a line
    whole = [read_rows(tmp_path, rank) for rank in range(2)]
    monkeypatch.setattr(records.records, "MOST_ROWS", 100_000)
    assert records.read_some_rows(tmp_path, 3) == [*whole, []]
    monkeypatch.setattr(records.records, "MOST_ROWS", 2_000)
    tracemalloc.start()
    some = records.read_some_rows(tmp_path, 2)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 6 * 2**20 < sum(path.stat().st_size for path in tmp_path.iterdir())
    steps, others = ([row["step"] for row in own] for own in some)
    assert steps == others
    assert [row["rank"] for own in some for row in (own[0], own[-1])] == [0, 0, 1, 1]
    assert 1_800 < sum(map(len, some)) < 2_400
    assert (steps[:2], steps[-1]) == ([0, 1], 20_000)
    assert max(after - before for before, after in pairwise(steps)) < 1_500
    assert len({row["engine"] for row in some[0][:-1]}) == 2


HEAD = {"schema_version": 3, "name": "config", "again": False}
POINTS = [
    {"run_id": "gpipe-m2", "overrides": ["chunks=2"], "config": {"chunks": 2}},
    {"overrides": ["chunks=3"], "left_out": "skip=true"},
]
MORE = {"run_id": "gpipe-m4", "overrides": ["chunks=4"], "config": {"chunks": 4}}


def test_a_point_is_found_by_its_overrides(tmp_path):
    plan = SweepPlan(tmp_path)
    assert plan.find(["chunks=2"]) is None  # there is no plan yet
    plan.write(HEAD, POINTS)
    other = SweepPlan(tmp_path)
    for each in (plan, other):
        assert each.find(["chunks=2"]) == POINTS[0]
        assert each.find(["chunks=3"]) == POINTS[1]
        assert each.find(["chunks=4"]) is None
    plan.add(MORE)
    assert other.find(["chunks=4"]) == MORE  # another process sees it
    assert other.points() == [*POINTS, MORE]
    listed = json.loads((tmp_path / "plan.json").read_text())["points"]  # those that are run
    assert listed == [{key: point[key] for key in ("run_id", "overrides")} for point in (POINTS[0], MORE)]


def test_two_sweeps_of_one_second_have_a_folder_each(tmp_path):
    wanted = tmp_path / "sweeps" / "2026-01-01_00-00-00_config"
    folders = [records.claim_folder(wanted) for _ in range(3)]
    assert [folder.name for folder in folders] == [wanted.name, f"{wanted.name}_2", f"{wanted.name}_3"]
    assert sorted(folders) == folders  # the report reads them in the order in which they were started


SAID = {
    "the layer is broken": ValueError("the layer is broken"),
    "ValueError: two lines": ValueError("two\n  lines"),
    "KeyError: 'missing'": KeyError("missing"),
    "RuntimeError": RuntimeError(),
    f"{'much ' * 59}mu...": ValueError("much " * 1000),
    "a\\x1b[31m": ValueError("a\x1b[31m"),
    "out of memory (no room)": MemoryError("no\nroom"),
}
SYSTEM = {
    "a file or a pipe cannot be written (Too many": OSError(24, "Too many open files"),
    "x.json cannot be written (Too many open files): raise the limit": OSError(24, "Too many open files", "x.json"),
    "two lines": OSError("two\nlines"),
}


def test_an_error_is_one_line_in_words():
    assert [records.in_words(error) for error in SAID.values()] == list(SAID)
    for said, error in SYSTEM.items():
        assert records.in_a_line(error).startswith(said)
        assert "\n" not in records.in_a_line(error)
