"""Traces that were made up: formats, steps, kernels, names, what-if, profiles; exact where the times are."""

import gzip
import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import yaml

from microp.commands import importing
from microp.config import compose_config, make_pricing_job, read_config
from microp.device import marked
from microp.foreign import (
    TraceError,
    align,
    make_steps,
    profile_of,
    read_lanes,
    read_names,
    step_rows,
    what_if,
)
from microp.profiling import to_plain
from microp.schedule import builders
from microp.schedule.builders import chimera, dualpipe_v, gpipe, interleaved, one_f_one_b, seq_1f1b, zb_h1, zb_h2, zb_v
from microp.simulator import calibrate_steps, for_stages, replay_steps, simulate
from microp.trace import Span, bubble_fraction, busy, makespan, microbatches_in_flight, perfetto

FILES = ("rank0.json", "rank1.json")


def spans_of(schedule, **costs):
    """Spans in nanoseconds, of costs in milliseconds."""
    given = {"forward": 4, "backward": 6, "latency": 1, **costs}
    in_ns = {key: np.multiply(value, 10**6).tolist() for key, value in given.items()}
    return simulate(schedule, for_stages(schedule.stages, **in_ns))


def as_csv(path: Path, *steps, unit="ms") -> Path:
    per = {"ms": 1e6, "us": 1e3, "ns": 1}[unit]
    lines = [f"rank,op,stage,microbatch,start_{unit},end_{unit}"]
    for number, spans in enumerate(steps):
        away = number * 10**9
        lines += [
            f"{s.rank},{s.op},{s.stage},{s.microbatch},{(s.start + away) / per},{(s.end + away) / per}" for s in spans
        ]
    path.write_text("\n".join(lines))
    return path


def as_chrome(folder: Path, spans) -> list[Path]:
    """A file per rank."""
    files = []
    for rank in sorted({span.rank for span in spans}):
        own = [span for span in spans if span.rank == rank]
        events = [slice_of(f"PP:{s.stage}{s.op}{s.microbatch}", s.start / 1e3, s.end / 1e3) for s in own]
        files.append(folder / f"rank{rank}.json")
        files[-1].write_text(json.dumps({"traceEvents": events}))
    return files


def slice_of(name, start, end, **more):
    where = {"ph": "X", "cat": "user_annotation", "pid": 1, "tid": 2}
    return {**where, "name": name, "ts": start, "dur": end - start, **more}


def read(*files, names=None):
    traced = align(make_steps(*read_lanes(files, read_names(names))))
    return traced, traced.notes


def lengths(spans):
    return {span.action: span.end - span.start for span in spans}


@pytest.mark.parametrize("unit", ["ms", "us", "ns"])
def test_csv(tmp_path, unit):
    """Two steps, of which the second is longer."""
    first, second = spans_of(one_f_one_b(4, 8)), spans_of(one_f_one_b(4, 8), forward=5)
    aligned, notes = read(as_csv(tmp_path / "spans.csv", first, second, unit=unit))
    assert notes == []
    assert aligned.schedule == one_f_one_b(4, 8)
    assert [*map(bubble_fraction, aligned.spans.values())] == [bubble_fraction(first), bubble_fraction(second)]
    for rows in aligned.steps.values():
        assert {row.spans[0].wait_start for row in rows} == {rows[0].spans[0].start}  # ranks wait from its begin


@pytest.mark.parametrize("pack", [bytes, gzip.compress])
@pytest.mark.parametrize(
    "schedule", [gpipe(4, 6), one_f_one_b(64, 80), interleaved(4, 8), zb_v(4, 8)], ids=lambda schedule: schedule.name
)
def test_a_file_per_rank(tmp_path, schedule, pack):
    spans = spans_of(schedule, weight=3)
    files = as_chrome(tmp_path, spans)
    for file in files:
        file.write_bytes(pack(file.read_bytes()))
    aligned, notes = read(*files)
    assert notes == []
    assert aligned.schedule == schedule
    assert bubble_fraction(aligned.spans[0]) == pytest.approx(bubble_fraction(spans), abs=1e-6)


def test_traces_of_two_launches_are_refused(tmp_path):
    """Ranks of one host that are never at work together; the clocks of two hosts may be apart."""
    files = as_chrome(tmp_path, spans_of(gpipe(2, 4)))
    for file, base in zip(files, (0, 10**9), strict=True):
        file.write_text(json.dumps({"host_name": "a", "baseTimeNanoseconds": base, **json.loads(file.read_text())}))
    with pytest.raises(TraceError, match=r"rank0.json, rank 0 ends before .*rank 1 begins.*: give the traces of one"):
        read(*files)
    files[1].write_text(files[1].read_text().replace('"a"', '"b"'))
    assert "clocks corrected by up to" in read(*files)[0].clocks


def test_lanes_whose_ranges_have_their_stage_in_their_arguments(tmp_path):
    """As microp's own export has them: the measured one counts, and of several runs it is not known which is meant."""
    schedule = interleaved(2, 4)
    spans = [span._replace(wait_start=span.wait_start - 7, start=span.start - 9) for span in spans_of(schedule)]
    panels = {"measured": [span._replace(ready=span.start - 3) for span in spans]}  # some before their input was made
    aligned, notes = read(perfetto(panels, dict.fromkeys(panels, schedule), tmp_path / "trace.json"))
    assert (notes, aligned.schedule) == ([], schedule)
    begin = min(span.start for span in spans)
    assert aligned.spans[0] == [Span(*span[:4], *(time - begin for time in span[4:])) for span in panels["measured"]]
    panels = {"replayed": spans_of(schedule, forward=9), **panels}
    assert read(perfetto(panels, dict.fromkeys(panels, schedule), tmp_path / "trace.json"))[0].spans == aligned.spans
    runs = {"gpipe-m4-k2": panels["measured"], "1f1b-m4-k2": panels["measured"]}
    said = "of gpipe-m4-k2, ms; 1f1b-m4-k2, ms: keep one, as analysis.timeline of one run"
    with pytest.raises(TraceError, match=said):
        read(perfetto(runs, dict.fromkeys(runs, schedule), tmp_path / "trace.json"))


KNOWN = [(builders.dualpipe(4, 8).apart, 5), (chimera(4, 8).apart, 4), (seq_1f1b(2, 4), 1.5)]  # and in flight


@pytest.mark.parametrize(("schedule", "held"), KNOWN, ids=[schedule.name for schedule, _ in KNOWN])
def test_orders_with_copies_or_slices_are_known(tmp_path, schedule, held, monkeypatch, capsys):
    trace = perfetto({"measured": spans_of(schedule, weight=3)}, {"measured": schedule}, tmp_path / "trace.json")
    found, _ = read(trace)
    assert found.schedule == schedule
    assert max(microbatches_in_flight(schedule, found.spans[0])) == held
    monkeypatch.chdir(tmp_path)
    assert importing.main([str(trace), "--what-if", "chunks=4"]) == 2
    assert "has copies or slices: leave out --what-if" in " ".join(capsys.readouterr().err.split())


def test_begins_and_ends_as_events_of_their_own(tmp_path):
    """As other writers of Chrome's format have them, in an array that is not closed."""
    spans = spans_of(gpipe(2, 3))
    events = []
    for span in spans:
        where = {"pid": 1, "tid": span.rank, "name": f"{span.stage}{span.op}{span.microbatch}"}
        events += [{**where, "ph": "B", "ts": span.start / 1e3}, {**where, "ph": "E", "ts": span.end / 1e3}]
    (tmp_path / "lanes.json").write_text(json.dumps(events)[:-1])
    aligned, notes = read(tmp_path / "lanes.json")
    assert notes == [f"{tmp_path}/lanes.json: it was cut, and is read up to there"]
    assert bubble_fraction(aligned.spans[0]) == bubble_fraction(spans)


def test_kernels_below_a_range_are_its_time(tmp_path):
    """The host runs ahead; the kernels of messages do not count."""
    spans = spans_of(one_f_one_b(2, 4))

    def kernels(rank):
        for number, span in enumerate(span for span in spans if span.rank == rank):
            launch = slice_of("cudaLaunchKernel", 10 * number + 1, 10 * number + 2, args={"correlation": number})
            waits = slice_of("cudaLaunchKernel", 10 * number + 2, 10 * number + 3, args={"correlation": 1000 + number})
            yield from ({**launch, "cat": "cuda_runtime"}, {**waits, "cat": "cuda_runtime"})
            kernel = slice_of("gemm", span.start / 1e3, span.end / 1e3, args={"correlation": number})
            receive = slice_of("ncclDevKernel_SendRecv", 0, span.end / 1e3, args={"correlation": 1000 + number})
            yield from ({**kernel, "cat": "kernel"}, {**receive, "cat": "kernel"})

    for rank in range(2):
        own = [span for span in spans if span.rank == rank]
        host = [slice_of(f"PP:{s.stage}{s.op}{s.microbatch}", 10 * n, 10 * n + 8) for n, s in enumerate(own)]
        (tmp_path / FILES[rank]).write_text(json.dumps({"traceEvents": [*host, *kernels(rank)]}))
    aligned, notes = read(*(tmp_path / name for name in FILES))
    assert notes == ["an action with GPU kernels lasts as long as these, one without as long as its range"]
    assert lengths(aligned.spans[0]) == pytest.approx(lengths(spans))
    assert bubble_fraction(aligned.spans[0]) == pytest.approx(bubble_fraction(spans))


@pytest.mark.parametrize("cat", ["cpu_op", "python_function"])
def test_an_action_ends_with_the_last_operator_of_its_range(tmp_path, cat):
    """Nothing but the action is in a range of microp.marked, which counts in torch's, and in that of a function."""
    events = [slice_of("PP:0F0", 0, 1000), slice_of("PP:0B0", 1000, 2000), slice_of("PP:0B0", 1010, 1900, cat=cat)]
    events += [slice_of("aten::mm", at, at + 600, cat="cpu_op") for at in (0, 1000)]
    (tmp_path / FILES[0]).write_text(json.dumps(events))
    assert [span.end for span in read(tmp_path / FILES[0])[0].spans[0]] == [600_000, 1_900_000]
    (tmp_path / FILES[0]).write_text(json.dumps([*events, slice_of("PP:0F0", 10, 600)]))  # it is not known which counts
    with pytest.raises(TraceError, match="0F0 begins before 0F0 has ended"):
        read(tmp_path / FILES[0])


def test_functions_of_megatron_are_counted(tmp_path):
    """Names without stage and microbatch; a file of a user's own names comes first."""
    spans = spans_of(one_f_one_b(2, 3))
    megatron = {"F": "megatron/core/pipeline_parallel/schedules.py(402): forward_step"}
    megatron["B"] = megatron["F"].replace("forward", "backward")
    for names in (megatron, {"F": "my forward", "B": "my backward"}):
        table = tmp_path / "names.yaml"
        table.write_text("- {pattern: my forward, op: F}\n- {pattern: my backward, op: B}\n")
        for rank in range(2):
            own = [slice_of(names[s.op], s.start / 1e3, s.end / 1e3) for s in spans if s.rank == rank]
            (tmp_path / FILES[rank]).write_text(json.dumps(own))
        aligned, notes = read(*(tmp_path / name for name in FILES), names=table)
        assert notes == []
        assert aligned.schedule == one_f_one_b(2, 3)


@pytest.mark.parametrize(
    "text", ["- {pattern: '(', op: F}", "- {pattern: a}", "- {op: F}", "3", "- {pattern: a, op: X}", "a: ["]
)
def test_a_wrong_table_of_names_is_one_line(tmp_path, text):
    (tmp_path / "names.yaml").write_text(text)
    with pytest.raises(TraceError, match=r"names\.yaml"):
        read_names(tmp_path / "names.yaml")


@pytest.mark.parametrize("action", ["PP:0F9999999999", "PP:9999999999F0", "PP:aF0", "999999999,F,0,0,0,1"])
def test_numbers_that_are_none_or_too_large_are_one_line(tmp_path, action):
    """The last is a row of a table, with a rank for which there is no memory."""
    text = json.dumps([slice_of(action, 0, 1)])
    if "," in action:
        text = "rank,op,stage,microbatch,start,end\n0,F,0,0,0,1\n0,B,0,0,1,2\n" + action
    (tmp_path / FILES[0]).write_text(text)
    (tmp_path / "names.yaml").write_text("- pattern: 'PP:(?P<stage>.+)F(?P<microbatch>.+)'\n  op: F")
    with pytest.raises(TraceError, match=r"numbers below 1e9|ranks 0, 999999999 |on rank 1"):
        read(tmp_path / FILES[0], names=tmp_path / "names.yaml")


@pytest.mark.parametrize("away", [0.1, 5e3, 3.6e9, 1.79e15])
def test_clocks_that_are_far_apart(tmp_path, away):
    """A tenth of a microsecond, five hops, an hour, and the time since 1970; in microseconds."""
    spans = spans_of(one_f_one_b(4, 8))
    files = as_chrome(tmp_path, spans)
    trace = json.loads(files[2].read_text())
    for event in trace["traceEvents"]:
        event["ts"] += away
    files[2].write_text(json.dumps(trace))
    aligned, notes = read(*files)
    assert notes == []
    assert aligned.clocks.startswith("clocks left" if away < 1e3 else "clocks corrected")
    assert bubble_fraction(aligned.spans[0]) == pytest.approx(bubble_fraction(spans), abs=0.005)


def test_clocks_are_bound_by_when_sends_began(tmp_path):
    """torch sends the tensors of a pair after both actions: here everything arrives 5 ms after an action has ended."""
    files = as_chrome(tmp_path, spans_of(gpipe(2, 4), latency=5))
    aligned, notes = read(*files)
    assert "they agree within 5 ms" in aligned.clocks
    assert notes == ["disturbed: clocks may be off by 8 % of a step: synchronise them"]
    for file in files:
        trace = json.loads(file.read_text())
        ends = [(event["name"], event["ts"] + event["dur"]) for event in trace["traceEvents"]]
        trace["traceEvents"] += [slice_of(f"PP:{name[3]}SEND_{name[4:]}", end + 4990, end + 4995) for name, end in ends]
        file.write_text(json.dumps(trace))
    aligned, notes = read(*files)
    assert ("they agree within 0.01 ms" in aligned.clocks, notes) == (True, [])


def test_an_order_that_cannot_be_is_refused_whatever_the_clocks(tmp_path):
    """Two actions of a rank have changed their names."""
    spans = spans_of(one_f_one_b(2, 8))
    files = as_chrome(tmp_path, spans)
    text = files[1].read_text().replace("PP:1F7", "PP:x").replace("PP:1F0", "PP:1F7").replace("PP:x", "PP:1F0")
    files[1].write_text(text)
    with pytest.raises(TraceError, match=r"it deadlocks|before its input was made"):
        read(*files)


def test_waits_in_ranges_that_have_no_receive_are_refused(tmp_path):
    """A range begins when the rank begins to wait."""
    spans = spans_of(gpipe(2, 3))
    early, free = [], [0, 0]
    for span in spans:
        early.append(span._replace(start=free[span.rank]))
        free[span.rank] = span.end
    with pytest.raises(TraceError, match=r"before its input was made: use microp.marked, or mark actions without"):
        read(*as_chrome(tmp_path, early))


def test_actions_outside_of_all_steps_are_refused(tmp_path):
    (tmp_path / FILES[0]).write_text(json.dumps([slice_of("PP:0F0", 5, 6), slice_of("ProfilerStep#1", 0, 2)]))
    with pytest.raises(TraceError, match="rank 0: no action lies within its steps"):
        read(tmp_path / FILES[0])


def test_a_step_of_another_order_is_left_out(tmp_path):
    steps = [spans_of(build(2, 4)) for build in (one_f_one_b, gpipe, one_f_one_b)]
    aligned, notes = read(as_csv(tmp_path / "spans.csv", *steps))
    assert (aligned.schedule.name, list(aligned.steps)) == ("1f1b", [0, 2])
    assert notes == ["left out: step 1: its order is not that of most steps"]


@pytest.mark.parametrize("build", [zb_h2, gpipe])
def test_without_ranges_of_steps_a_step_lasts_from_the_first_start_to_the_last_end(tmp_path, build):
    """Of ZB-H2 the rank that ends last began last."""
    spans = spans_of(build(3, 6), weight=2)
    aligned, _ = read(*as_chrome(tmp_path, spans))
    assert max(row["step_ms"] for row in step_rows(aligned)[0]) == pytest.approx(makespan(spans) / 1e6, rel=1e-6)


def test_what_another_engine_runs_has_no_pairs(tmp_path):
    """It runs F, then B; taken for a pair, the step would be another one."""
    spans = spans_of(dualpipe_v(3, 8), weight=2)
    aligned, rows, _ = traced(tmp_path, dualpipe_v(3, 8), weight=2)
    assert (aligned.schedule.name, aligned.schedule.pairs) == ("dualpipe_v", frozenset())
    assert makespan(replay_steps(aligned.schedule, rows, aligned.spans[0])) * 1e6 == pytest.approx(
        makespan(spans), rel=1e-6
    )


def test_an_order_of_ones_own_is_kept(tmp_path):
    schedule = gpipe(2, 4)
    own = replace(schedule, ranks=tuple((row[1], row[0], *row[2:]) for row in schedule.ranks))
    aligned, _ = read(*as_chrome(tmp_path, spans_of(own)))
    assert aligned.schedule == replace(own, name="foreign")


def traced(tmp_path, schedule, **costs):
    aligned, _ = read(*as_chrome(tmp_path, spans_of(schedule, **costs)))
    rows = step_rows(aligned)
    return aligned, rows, calibrate_steps(aligned.schedule, rows, aligned.spans[0])


@pytest.mark.parametrize(
    ("schedule", "sizes", "expected"),
    [
        (gpipe(4, 16), [], spans_of(gpipe(4, 16))),
        (zb_h1(4, 8), [], spans_of(zb_h1(4, 8), backward=3, weight=3)),
        (interleaved(4, 8), [], spans_of(interleaved(4, 8), forward=2, backward=3)),
        (one_f_one_b(4, 8), [4, 2, 1, 1], spans_of(one_f_one_b(4, 8), forward=[8, 4, 2, 2], backward=[12, 6, 3, 3])),
    ],
)
def test_what_if(tmp_path, schedule, sizes, expected):
    aligned, _, costs = traced(tmp_path, one_f_one_b(4, 8))
    sizes = sizes or [8 // schedule.stages] * schedule.stages
    _, answer, assumed = what_if(schedule, sizes, aligned.schedule, [2] * 4, costs)
    assert makespan(answer) == pytest.approx(makespan(expected) / 1e6)
    assert assumed


@pytest.mark.parametrize("other", [chimera(4, 8), seq_1f1b(4, 8, slices=4)], ids=lambda other: other.name)
def test_copies_and_slices_share_the_work_of_the_trace(tmp_path, other):
    """Partitions of copies are given once for each."""
    aligned, _, costs = traced(tmp_path, one_f_one_b(4, 8))
    sizes = [1, 1, 3, 3] * other.copies
    _, found, assumed = what_if(other, sizes, aligned.schedule, [2] * 4, costs)
    _, alike, _ = what_if(one_f_one_b(4, 8), sizes[:4], aligned.schedule, [2] * 4, costs)
    assert sum(busy(found).values()) == pytest.approx(sum(busy(alike).values()))
    assert len(assumed) == 2


@pytest.mark.parametrize("schedule", [one_f_one_b(4, 8), zb_h1(4, 8), gpipe(2, 8)], ids=lambda schedule: schedule.name)
def test_a_profile_gives_an_emulated_device_the_times_of_the_trace(tmp_path, schedule):
    ranks = len(schedule.ranks)
    times = {"forward": [4] * (ranks - 1) + [5], "weight": 2}
    spans = spans_of(schedule, **times)
    aligned, rows, costs = traced(tmp_path, schedule, **times)
    profile, notes = profile_of(aligned, rows, [8] * ranks, costs, 4)
    assert all(part in " ".join(notes) for part in ("fit within 0 %", "the rest of the traced loop is left out"))
    assert profile.edges == (0, 0)
    path = tmp_path / "profile.yaml"
    path.write_text(yaml.safe_dump(to_plain(profile)))
    words = [
        f"profile={path}",
        "device=emulated",
        f"model.layers={8 * ranks}",
        f"ranks={ranks}",
        "chunks=8",
        "batch_size=32",
    ]
    config = read_config(compose_config(*words, f"schedule={schedule.name}", name="simulate"))
    job = make_pricing_job(config)
    assert makespan(simulate(job.schedule, job.costs)) == pytest.approx(makespan(spans) / 1e6, rel=0.02)


def test_marked_needs_stages():
    with pytest.raises(TypeError, match="give a schedule"), marked(object()):
        pass
