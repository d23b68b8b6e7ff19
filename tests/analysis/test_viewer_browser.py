"""The timeline viewer in a real browser: what a user does, and what is then shown."""

import json
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from browser import Viewer, chromium
from drawn import equal
from made_up import run

from analysis import __main__ as report
from analysis.page import html
from microp.schedule.builders import gpipe, interleaved, one_f_one_b, zb_h1

PHONE = {"viewport": {"width": 390, "height": 844}, "has_touch": True, "is_mobile": True, "device_scale_factor": 2}
DESKTOP = {"viewport": {"width": 1280, "height": 600}}
LISTS = ("about", "experiments", "over_all", "not_run", "without_result")
EMPTY = {"overview": "", "own": None, **{key: [] for key in LISTS}}
NASTY = "</script><img src=x onerror='document.title=1'>"


@pytest.fixture(scope="module")
def browser():
    with chromium() as started:
        yield started


@pytest.fixture(scope="module")
def made(tmp_path_factory) -> Path:
    """A page with six runs: the first one's last backward on rank 0 starts 2 ms late and lasts 1 ms longer."""
    folder = tmp_path_factory.mktemp("viewer")
    traces = folder / "traces"
    traces.mkdir()
    late = run(traces, gpipe(2, 4), equal(2, 4, 8), run_id="gpipe-m4-k2-aaaa", **{"env.experiment": "my_sweep"})
    spans = Path(late["folder"]) / "spans.rank0.jsonl"
    *rows, last = map(json.loads, spans.read_text().splitlines())
    last |= {"start_ns": last["start_ns"] + 2_000_000, "end_ns": last["end_ns"] + 3_000_000}
    spans.write_text("\n".join(map(json.dumps, [*rows, last])))
    summed = run(traces, one_f_one_b(2, 3), equal(2, 4, 8), run_id="1f1b-m3-k2-bbbb", replicas=2)
    for rank in (0, 1):
        sums = {"rank": rank, "stage": rank, "start_ns": 40_000_000, "end_ns": 60_000_000}
        (Path(summed["folder"]) / f"reductions.rank{rank}.jsonl").write_text(json.dumps(sums))
    others = [
        run(traces, interleaved(2, 4), equal(4, 4, 8), run_id="interleaved-m4-k2-cccc"),
        run(traces, zb_h1(4, 8), equal(4, 4, 4, 4), run_id="zb_h1-m8-k4-dddd", device="cpu"),
        run(traces, one_f_one_b(16, 100), equal(16, 4, 8), run_id="1f1b-m100-k16-eeee"),
        run(traces, gpipe(2, 2), equal(2, 4, 8), run_id="gpipe-m2-k2-ffff", model=NASTY, **{"env.experiment": NASTY}),
    ]
    file = folder / "report.html"
    file.write_text(html(EMPTY, folder, pd.DataFrame([late, summed, *others])))
    return file


@pytest.fixture
def opened(browser, made):
    """Opens a page in a window; at the end, nothing was fetched and the console is empty."""
    contexts, wrong, fetched = [], [], []

    def open_page(options: dict[str, Any] = DESKTOP, file: Path = made) -> Viewer:
        context = browser.new_context(**options, offline=True)
        contexts.append(context)
        page = context.new_page()
        page.set_default_timeout(10_000)
        page.on("console", lambda message: wrong.append(message.text))
        page.on("pageerror", lambda error: wrong.append(str(error)))
        page.on("request", lambda request: fetched.append(request.url))
        page.goto(file.as_uri())
        return Viewer(page)

    yield open_page
    for context in contexts:
        context.close()
    assert wrong == []
    assert all(url.startswith(("file:", "data:")) for url in fetched)


@pytest.fixture
def viewer(opened):
    """The viewer with the run whose replay differs from the measurement."""
    shown = opened()
    shown.show("aaaa")
    return shown


def test_replayed_is_above_measured_on_one_axis(viewer):
    above, below = json.loads(viewer.state("rows"))
    assert len(above) == len(below) == 2
    assert max(above) < min(below)
    assert viewer.page.locator("[data-part=facts]").text_content() == (
        "replayed 60 ms, bubble 0.200 measured 63 ms (+5.0 %), bubble 0.230 gpipe-m4-k2-aaaa "
    )
    (x, _), (later, _) = viewer.place(0, "0B3"), viewer.place(1, "0B3")  # their middles are 2.5 ms apart
    begin, end = viewer.range
    width = viewer.canvas.bounding_box()["width"] - int(viewer.state("left"))
    assert later - x == pytest.approx(2500 / (end - begin) * width, abs=0.1)
    for panel, name in enumerate(("replayed", "measured")):
        viewer.hover(panel, "0B3")
        assert viewer.state("pointed") == f"{name} 0B3"


def test_the_tooltip_is_beside_the_action_and_has_both_times_and_their_difference(viewer):
    viewer.hover(1, "0B3")
    assert viewer.tip.locator("tr").all_inner_texts() == [
        "ms\treplayed\tmeasured\tdifference",
        "start\t52.000\t54.000\t+2.000",
        "end\t60.000\t63.000\t+3.000",
        "duration\t8.000\t9.000\t+1.000",
        "wait before\t0.000\t2.000\t+2.000",
    ]
    assert viewer.tip.inner_text().startswith("0B3 backward of stage 0, microbatch 3, rank 0\n")
    (x, y), (earlier, _), box = viewer.place(1, "0B3"), viewer.place(0, "0B3"), viewer.tip.bounding_box()
    half = (x - earlier) / 2.5 * 4  # of the replayed action, in pixels: their middles are 2.5 ms apart
    assert 0 < box["y"] - y < 30
    assert box["x"] + box["width"] == pytest.approx(earlier - half - 10, abs=1)  # right of both is no room
    for panel in (0, 1):  # the sentence has the same differences
        viewer.hover(panel, "0B3")
        assert viewer.told.text_content().endswith(" (measured − replayed): start +2.000 ms, duration +1.000 ms.")
    viewer.page.mouse.move(5, 5)
    assert viewer.tip.is_hidden()


def test_the_wheel_scrolls_the_page_and_zooms_only_with_ctrl(viewer):
    page, whole = viewer.page, viewer.range
    viewer.hover(0, "1B2")
    (x, _), before = viewer.place(0, "1B2"), page.evaluate("scrollY")
    page.mouse.wheel(0, 60)
    page.wait_for_function("before => scrollY > before", arg=before)
    assert viewer.range == whole

    viewer.hover(0, "1B2")
    before = page.evaluate("scrollY")
    viewer.keyboard.down("Control")
    page.mouse.wheel(0, -240)
    page.wait_for_function("whole => Number(document.getElementById('viewer').dataset.to) < whole", arg=whole[1])
    viewer.keyboard.up("Control")
    assert viewer.range[1] - viewer.range[0] < 0.7 * (whole[1] - whole[0])
    assert viewer.place(0, "1B2")[0] == pytest.approx(x, abs=1)  # what is under the pointer stays there
    assert page.evaluate("scrollY") == before
    assert viewer.state("pointed") == "replayed 1B2"


def test_runs_are_found_by_typing_any_part_of_their_names(viewer):
    for words, ids in {
        "zb_h1": ["zb_h1-m8-k4-dddd"],
        "M=100": ["1f1b-m100-k16-eeee"],
        "k = 16": ["1f1b-m100-k16-eeee"],
        "cpu mlp": ["zb_h1-m8-k4-dddd"],
        "my_sweep": ["gpipe-m4-k2-aaaa"],
        "bbbb": ["1f1b-m3-k2-bbbb"],
        "K=2 1F1B": ["1f1b-m3-k2-bbbb"],
        "gpipe": ["gpipe-m2-k2-ffff", "gpipe-m4-k2-aaaa"],
        "gpipe m=3": [],
    }.items():
        viewer.find.click()
        assert viewer.options.count() == 6
        viewer.keyboard.type(words)
        shown, before = viewer.options.locator("small").all_text_contents(), viewer.state("run")
        assert sorted(text.split(" · ")[0] for text in shown) == ids
        found = viewer.page.locator("[data-part=found]").text_content()
        assert found == (f"{len(ids)} of 6 runs" if ids else "No run has all of these words.")
        viewer.keyboard.press("Enter")
        assert viewer.state("run") in (ids or [before])
        viewer.keyboard.press("Escape")


def test_names_that_users_chose_are_text(viewer):
    viewer.show("ffff")
    assert NASTY in viewer.find.input_value()
    viewer.find.fill("ffff")
    assert NASTY in viewer.options.first.text_content()
    assert viewer.page.title() == "microp: report"


def test_arrows_go_from_action_to_action_and_enter_selects(viewer):
    viewer.canvas.focus()
    for keys, pointed in (
        ("ArrowRight ArrowRight ArrowRight", "replayed 0F2"),
        ("ArrowDown", "replayed 1F1"),  # the same time, on the next rank
        ("ArrowDown", "measured 0F2"),  # and below the last rank the next panel
        ("ArrowLeft ArrowUp", "replayed 1F0"),
        ("End", "replayed 1B3"),
        ("Home p", "measured 1F0"),
    ):
        for key in keys.split():
            viewer.keyboard.press(key)
        assert viewer.state("pointed") == pointed
    assert viewer.tip.is_visible()
    assert viewer.told.text_content() == (
        "1F0, forward of stage 1, microbatch 0, rank 1, measured: from 4.000 to 8.000 ms; takes 4.000 ms, "
        "after the rank waited 4.000 ms. Difference (measured − replayed): start 0.000 ms, duration 0.000 ms."
    )
    viewer.keyboard.press("Enter")
    viewer.keyboard.press("ArrowRight")
    assert viewer.state("selected") == "1F0"
    viewer.keyboard.press("Escape")
    assert viewer.state("selected") == ""


def test_a_phone_scrolls_pans_pinches_and_taps(opened):
    viewer = opened(PHONE)
    viewer.show("aaaa")
    viewer.keyboard.press("Tab")
    assert viewer.told.text_content() == "Tap an action for its times."
    page, whole = viewer.page, viewer.range
    viewer.canvas.scroll_into_view_if_needed()
    assert page.evaluate("document.documentElement.scrollWidth") == 390
    page.touchscreen.tap(*viewer.place(0, "1B1"))
    assert viewer.state("selected") == "1B1"
    box = viewer.tip.bounding_box()
    assert box["x"] >= 0
    assert box["x"] + box["width"] <= 390
    assert box["y"] >= viewer.canvas.bounding_box()["y"] + viewer.canvas.bounding_box()["height"]
    assert page.evaluate("document.documentElement.scrollWidth") == 390

    x, y = viewer.place(0, "1B1")
    viewer.touch("touchStart", (x - 20, y), (x + 20, y))
    viewer.touch("touchMove", (x - 50, y), (x + 50, y))
    viewer.touch("touchEnd")
    near = viewer.range
    assert near[1] - near[0] == pytest.approx(0.4 * (whole[1] - whole[0]), rel=0.05)
    viewer.touch("touchStart", (x, y))
    for left in (20, 40, 60):
        viewer.touch("touchMove", (x - left, y))
    viewer.touch("touchEnd")
    panned = viewer.range
    assert panned[0] > near[0]

    before = page.evaluate("scrollY")
    viewer.touch("touchStart", (x, y))
    for up in (20, 40, 60, 80):
        viewer.touch("touchMove", (x, y - up))
    viewer.touch("touchEnd")
    page.wait_for_function("before => scrollY > before", arg=before)
    assert viewer.range == panned
    assert viewer.state("selected") == "1B1"


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_whole_page_fits_a_phone(opened, outputs, scheme, capsys):
    file = outputs / "report" / "report.html"
    if not file.exists():
        assert report.main([str(outputs)]) == 0
    capsys.readouterr()
    page = opened({**PHONE, "color_scheme": scheme}, file).page
    for details in page.locator("details > summary").all():
        details.evaluate("summary => { summary.parentElement.open = true; }")
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
    assert page.locator("#viewer canvas").is_visible()
    for box in (picture.bounding_box() for picture in page.locator(".card img").all()):
        assert box["x"] >= 0
        assert box["x"] + box["width"] <= 390  # nothing of a figure has to be scrolled to
    time = page.locator("#own-sweeps ~ figure th", has_text="step_ms.median").first.bounding_box()
    assert time["x"] + time["width"] < 390  # the first result of a sweep is seen without scrolling
