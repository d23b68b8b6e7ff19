"""What is drawn is what the spans say."""

import json
from collections import defaultdict
from fractions import Fraction
from itertools import pairwise
from random import Random

import pytest
from drawn import equal, random_schedule

from microp.schedule import remote_links
from microp.schedule.builders import gpipe, interleaved, one_f_one_b, zb_h1
from microp.simulator import Costs, for_stages, simulate
from microp.trace import MILLISECONDS, UNITS, figure, perfetto, sheet


def test_the_same_spans_give_the_same_bytes(tmp_path):
    spans = simulate(gpipe(2, 3), equal(2, 4_000_000, 6_000_000))
    first = figure({"replayed": spans, "measured": spans}, "a title", tmp_path / "one")
    second = figure({"replayed": spans, "measured": spans}, "a title", tmp_path / "two")
    assert [file.suffix for file in first] == [".svg", ".pdf", ".png"]
    assert [file.read_bytes() for file in first[:2]] == [file.read_bytes() for file in second[:2]]


def test_every_action_that_is_wide_enough_has_its_number_in_each_panel_alike():
    even = simulate(gpipe(2, 4), equal(2, 4, 8))
    narrow = [span for span in even if (span.op, span.stage, span.microbatch) == ("F", 1, 2)]
    noisy = [span._replace(end=span.start + Fraction(1, 9)) if span in narrow else span for span in even]
    drawn = sheet({"replayed": even, "measured": noisy}, UNITS)
    above, below = ([text.get_text() for text in axis.texts] for axis in drawn.axes)
    assert (len(above), sorted([*below, "2"])) == (16, sorted(above))


# --- as a trace for ui.perfetto.dev --------------------------------------------------------------
def traces(seed: int):
    random = Random(seed)
    for schedule in (one_f_one_b(3, 4), zb_h1(2, 4), interleaved(2, 4), gpipe(1, 3)):
        yield schedule, for_stages(schedule.stages, forward=3, backward=5, weight=2, latency=1)
    for _ in range(30):
        schedule = random_schedule(random)
        times = (tuple(random.randint(1, 9) * Fraction(1, 7) for _ in range(schedule.stages)) for _ in range(3))
        yield schedule, Costs(*times, latency=Fraction(random.randint(0, 5), 2))


def test_perfetto_has_a_slice_an_action_and_an_arrow_a_tensor(tmp_path):
    for schedule, costs in traces(11):
        spans = simulate(schedule, costs)
        panels = {"replayed": spans, "measured": list(spans)}
        path = perfetto(panels, dict.fromkeys(panels, schedule), tmp_path / "trace.json", UNITS)
        events = json.loads(path.read_text())["traceEvents"]
        assert {event["ph"] for event in events} <= set("MXsf")
        for panel in (1, 2):
            check_panel(schedule, spans, [event for event in events if event["pid"] == panel])
        ids = [event["id"] for event in events if event["ph"] == "s"]
        assert len(set(ids)) == len(ids)


def check_panel(schedule, spans, events):
    kinds = defaultdict(list)
    for event in events:
        kinds[event["ph"]].append(event)
    slices = {(e["tid"], e["cat"], e["args"]["stage"], e["args"]["microbatch"]): e for e in kinds["X"]}
    assert slices.keys() == {(span.rank, str(span.op), span.stage, span.microbatch) for span in spans}
    assert len(slices) == len(kinds["X"]) == len(spans)
    for span in spans:
        found = slices[span.rank, str(span.op), span.stage, span.microbatch]
        assert found["ts"] == pytest.approx(1000 * float(span.start))
        assert found["dur"] == pytest.approx(1000 * float(span.end - span.start))
        assert found["name"] == f"{span.op}{span.microbatch}"
    for rank in range(len(schedule.ranks)):
        own = sorted((e for e in kinds["X"] if e["tid"] == rank), key=lambda e: e["ts"])
        assert all(a["ts"] + a["dur"] <= b["ts"] + 1e-6 for a, b in pairwise(own))
    arrows = {arrow["id"]: arrow for arrow in kinds["s"]}
    assert arrows.keys() == {arrow["id"] for arrow in kinds["f"]}
    links = remote_links(schedule)
    assert len(kinds["f"]) == len(arrows) == len(links)
    for head in kinds["f"]:
        tail = arrows[head["id"]]
        [target] = [e for e in kinds["X"] if e["tid"] == head["tid"] and e["ts"] == head["ts"]]
        [origin] = [e for e in kinds["X"] if e["tid"] == tail["tid"] and e["ts"] < tail["ts"] < e["ts"] + e["dur"]]
        assert (tail["tid"], head["tid"]) in links.values()
        assert origin["args"]["microbatch"] == target["args"]["microbatch"]
        assert abs(origin["args"]["stage"] - target["args"]["stage"]) == 1
        assert tail["ts"] <= head["ts"]
        assert head["bp"] == "e"  # the head belongs to the slice that is there, not to the next one


def test_perfetto_names_its_rows(tmp_path):
    schedule = gpipe(2, 2)
    spans = [
        span._replace(start=10**15 + 10**6 * span.start, end=10**15 + 10**6 * span.end, ready=10**15)
        for span in simulate(schedule, equal(2, 1, 2))
    ]
    path = perfetto({"measured": spans}, {"measured": schedule}, tmp_path / "trace.json", MILLISECONDS)
    events = json.loads(path.read_text())["traceEvents"]
    names = [(e["name"], e.get("tid"), e["args"]["name"]) for e in events if e["ph"] == "M"]
    assert names == [("process_name", None, "measured, ms"), ("thread_name", 0, "rank 0"), ("thread_name", 1, "rank 1")]
    since_the_first_start = [e["ts"] for e in events if e["ph"] == "X" and e["tid"] == 1]
    assert since_the_first_start == [1000, 2000, 3000, 5000]
