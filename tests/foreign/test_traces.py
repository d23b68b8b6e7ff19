"""Traces of torch's own pipeline runtime, each beside what `engine=torch` records of the same steps.

What two clocks say of the same moments is compared, on machines that are busy: the bounds are wider than what is found
on a quiet one, which is in `analysis/log/`.
"""

import gzip
import json
import random
import re
from copy import deepcopy
from pathlib import Path
from statistics import median

import pytest
from foreign.traced import RUNTIME, SCHEDULES, make_traces

from microp.foreign import TraceError, align, make_steps, read_lanes, read_names, step_rows
from microp.schedule import Op
from microp.simulator import replay_steps
from microp.trace import Span, bubble_fraction, makespan

EVERY = {**SCHEDULES, RUNTIME: "zb_h1"}


@pytest.fixture(scope="module")
def traces(tmp_path_factory):
    return make_traces(3, tmp_path_factory.mktemp("traces"))


def read(files):
    """The steps on one clock, the rows, and all notes."""
    traced = align(make_steps(*read_lanes(files, read_names())))
    return traced, step_rows(traced), traced.notes


def timed(folder: Path, step: int) -> list[Span]:
    """What the stages' own clock says of a step, as `engine=torch` records it."""
    ranks = [json.loads((folder / f"timed{rank}.json").read_text()) for rank in range(len(files_of(folder)))]
    return [
        Span(rank, Op(op), stage, microbatch, start, start, start, end)
        for rank, steps in enumerate(ranks)
        for op, stage, microbatch, start, end in steps[step]
    ]


def files_of(folder: Path) -> list[Path]:
    return sorted(folder.glob("rank*.json"))


@pytest.mark.parametrize("name", EVERY)
def test_a_trace_says_what_torch_ran(traces, name):
    aligned, rows, notes = read(files_of(traces / name))
    assert notes == []
    assert aligned.schedule.name == EVERY[name]
    bubbles, work = [], []
    for step, spans in aligned.spans.items():
        own = timed(traces / name, step)
        for rank in range(len(aligned.schedule.ranks)):
            ours, theirs = ([span for span in each if span.rank == rank] for each in (spans, own))
            assert [span.action for span in ours] == [span.action for span in theirs]
            lengths = [sum(span.end - span.start for span in each) for each in (ours, theirs)]
            work.append(lengths[0] / lengths[1])
        bubbles.append(bubble_fraction(spans) - bubble_fraction(own))
    assert abs(median(bubbles)) < 0.02
    assert 0.95 < median(work) < 1.05
    middle = list(aligned.spans.values())[aligned.middle]
    replayed = float(makespan(replay_steps(aligned.schedule, [rows[aligned.middle]], middle))) * 1e6
    assert 0.75 < replayed / float(makespan(middle)) < 1.3  # on crowded cores


@pytest.mark.parametrize("name", EVERY)
def test_other_clocks_give_the_same_figures(traces, name, tmp_path):
    """Up to 50 ms apart, with a drift of up to 20 ppm."""
    draw = random.Random(name)
    before, _, _ = read(files_of(traces / name))
    for rank, file in enumerate(files_of(traces / name)):
        trace, shift, drift = json.loads(file.read_text()), draw.uniform(-5e4, 5e4), draw.uniform(-2e-5, 2e-5)
        begin = min(event["ts"] for event in trace["traceEvents"] if "dur" in event)
        for event in trace["traceEvents"]:
            if "ts" in event:
                event["ts"] += shift + drift * (event["ts"] - begin)
        (tmp_path / f"rank{rank}.json").write_text(json.dumps(trace))
    after, _, notes = read(files_of(tmp_path))
    assert notes == []
    assert after.schedule == before.schedule
    assert "they agree within" in after.clocks
    for step, spans in before.spans.items():
        assert abs(bubble_fraction(after.spans[step]) - bubble_fraction(spans)) < 0.02  # .0057 on crowded cores


SPOILT = ("cut", "drop", "repeats", "double", "rename", "swap", "other", "bad", "no rank", "same", "messages")
OTHERS = (
    *(b"", b"{}", b"[]", b"[1, 2]", b"null", b'{"traceEvents": 3}', b'{"traceEvents": [{}]}', b'{"a": [[[['),
    *(b"\x00\xff\xfe", b"\x1f\x8b\x08abc", b"rank,op\n1,2\n", b"rank,op,stage,microbatch,start,end\n0,F,0,0,1,2\n"),
)


def is_action(event) -> bool:
    name = str(event.get("name"))
    return name.startswith(("PP:", "Forward", "Backward")) and not re.search("SEND|RECV|SHARD|REDUCE", name)


def change(kind: str, events: list, draw: random.Random) -> None:
    """Damage the events of one rank."""
    actions = [event for event in events if is_action(event)]
    messages = [event for event in events if "gloo:" in str(event.get("name")) or "RECV" in str(event.get("name"))]
    one, two = draw.sample(actions, 2)
    if kind in ("drop", "repeats", "messages"):
        dropped = messages if kind == "messages" else actions
        for event in draw.sample(dropped, draw.choice((1, 3, len(dropped) // 2))):
            events.remove(event)
    elif kind == "double":
        events.append({**one, "ts": one["ts"] + draw.choice((0, 30, 1.01 * one["dur"]))})
    elif kind == "rename":
        one["name"] = draw.choice(("PP:9F9", "PP:0F0", "Forward 77", "Backward 1", "hello", "PP:1B2"))
    elif kind == "swap":
        one["name"], two["name"] = two["name"], one["name"]
    elif kind == "bad":
        one[draw.choice(("ts", "dur"))] = draw.choice((None, "x", float("nan"), -1e6, 1e30, [1], 100 * one["dur"]))


def spoil(kind: str, traces: list, draw: random.Random) -> list[bytes]:
    """The text of each rank's file; one is damaged, or missing."""
    traces, which = deepcopy(traces), draw.randrange(len(traces))
    change(kind, traces[which]["traceEvents"], draw)
    if kind == "repeats":  # steps that are not marked
        for trace in traces:
            trace["traceEvents"] = [e for e in trace["traceEvents"] if "ProfilerStep" not in str(e.get("name"))]
    if kind == "no rank":
        del traces[which]
    if kind == "same":
        traces[which] = traces[which - 1]
    texts = [json.dumps(trace).encode() for trace in traces]
    if kind == "cut":
        text = draw.choice((bytes, gzip.compress))(texts[which])
        texts[which] = text[: draw.randrange(len(text))]
    if kind == "other":
        texts[which] = draw.choice(OTHERS)
    return texts


def without_operators(file: Path) -> dict:
    """A trace of a tenth of the size."""
    trace = json.loads(file.read_text())
    kept = [e for e in trace["traceEvents"] if e.get("cat") == "user_annotation" or e["name"].startswith("PP:")]
    return {**trace, "traceEvents": kept}


def test_a_spoilt_trace_gives_a_line_or_the_right_bubble(traces, tmp_path):
    def written(texts: list[bytes]) -> list[Path]:
        files = [tmp_path / f"rank{rank}.json" for rank in range(len(texts))]
        for file, text in zip(files, texts, strict=True):
            file.write_bytes(text)
        return files

    draw, right, refusals = random.Random(0), {}, []
    names = [*filter(EVERY.get, ("ScheduleGPipe", "Schedule1F1B", "ScheduleZBVZeroBubble", "ScheduleDualPipeV"))]
    documents = {name: [without_operators(file) for file in files_of(traces / name)] for name in names}
    for name in names:
        files = written([json.dumps(trace).encode() for trace in documents[name]])
        right[name] = {step: bubble_fraction(spans) for step, spans in read(files)[0].spans.items()}
    for number in range(len(names) * len(SPOILT)):
        name, kind = names[number % len(names)], SPOILT[number // len(names) % len(SPOILT)]
        files = written(spoil(kind, documents[name], draw))
        try:
            aligned, _, notes = read(files)
        except TraceError as error:
            refusals.append(str(error))
            continue
        off = max(abs(bubble_fraction(spans) - right[name].get(step, 9)) for step, spans in aligned.spans.items())
        assert notes or off < 0.005, (kind, name, off)
    assert refusals
    assert not [line for line in refusals if "\n" in line]
