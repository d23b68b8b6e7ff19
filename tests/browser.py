"""A headless Chromium for tests of the report, or the reason why there is none, and what a user does in it."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from playwright.sync_api import Browser

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
ARGUMENTS = ["--no-sandbox", "--disable-background-networking", "--disable-component-update", "--no-first-run"]
NO_PLAYWRIGHT = "Playwright is not installed: .venv/bin/python -m pip install -e '.[browser]'"
NO_CHROMIUM = "no Chromium was found: install one (apt-get install chromium, or .venv/bin/playwright install chromium)"


@contextmanager
def chromium() -> Iterator[Browser]:
    """Start Chromium, the machine's or Playwright's own; skips the test where there is none."""
    try:
        from playwright.sync_api import sync_playwright
    except ImportError:
        pytest.skip(NO_PLAYWRIGHT)
    with sync_playwright() as playwright:
        found = next(filter(None, map(shutil.which, NAMES)), playwright.chromium.executable_path)
        if not Path(found).exists():
            pytest.skip(NO_CHROMIUM)
        browser = playwright.chromium.launch(executable_path=found, args=ARGUMENTS)
        yield browser
        browser.close()


class Viewer:
    """The timeline viewer of a page: what is shown, and what a user does."""

    def __init__(self, page: Any) -> None:
        self.page, self.canvas, self.keyboard = page, page.locator("#viewer canvas"), page.keyboard
        self.tip, self.told = page.locator("[data-part=tip]"), page.locator("[data-part=told]")
        self.find, self.options = page.locator("#viewer-find"), page.locator("#viewer [role=option]")
        self.fingers: Any = None

    def state(self, name: str) -> str:
        return self.page.locator("#viewer").get_attribute(f"data-{name}")

    @property
    def range(self) -> tuple[float, float]:
        return float(self.state("from")), float(self.state("to"))

    def show(self, words: str) -> None:
        self.find.fill(words)
        self.find.press("Enter")

    def place(self, panel: int, action: str) -> tuple[float, float]:
        """The middle of an action, in the window."""
        [run] = [each for each in self.data()["runs"] if each["id"] == self.state("run")]
        rows = [run["actions"][at : at + 4] for at in range(0, len(run["actions"]), 4)]
        number = [f"{stage}{'FBIW'[op]}{microbatch}" for _, op, stage, microbatch in rows].index(action)
        start, length, _ = run["panels"][panel]["times"][3 * number : 3 * number + 3]
        (begin, end), left = self.range, int(self.state("left"))
        box = self.canvas.bounding_box()
        share = (start + length / 2 - begin) / (end - begin)
        x = box["x"] + left + share * (box["width"] - left)
        return x, box["y"] + json.loads(self.state("rows"))[panel][rows[number][0]]

    def data(self) -> dict[str, Any]:
        return json.loads(self.page.locator("#timelines").text_content())

    def hover(self, panel: int, action: str) -> None:
        self.canvas.scroll_into_view_if_needed()
        self.page.mouse.move(*self.place(panel, action))

    def touch(self, kind: str, *points: tuple[float, float]) -> None:
        """Send a touch event with these fingers."""
        self.fingers = self.fingers or self.page.context.new_cdp_session(self.page)
        places = [{"x": x, "y": y, "id": number} for number, (x, y) in enumerate(points)]
        self.fingers.send("Input.dispatchTouchEvent", {"type": kind, "touchPoints": places})
