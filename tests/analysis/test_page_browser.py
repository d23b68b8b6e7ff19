"""The report in a browser: every figure fills its card, and its caption stands beside it or below it."""

from __future__ import annotations

import pytest

from analysis import __main__ as report
from tests.boxes import CARD
from tests.browser import chromium

MEASURE = """() => [...document.querySelectorAll("figure")].map((figure) => {
  const box = (name) => figure.querySelector(name).getBoundingClientRect(), card = figure.querySelector(".card");
  const inside = card.clientWidth - parseFloat(getComputedStyle(card).paddingLeft) * 2;
  return { inside, image: box("img").width, hidden: card.scrollWidth - card.clientWidth,
    link: figure.querySelector(".card > a").getAttribute("href") === `${figure.id}.svg`,
    text: box("figcaption").left >= box(".card").right ? "beside" : "below",
    filter: getComputedStyle(card).filter };
})"""


@pytest.fixture(scope="module")
def shown(outputs):
    """Chromium, and the address of the page; without Chromium there is no report either."""
    with chromium() as browser:
        assert report.main([str(outputs)]) == 0
        yield browser, (outputs / "report" / "report.html").as_uri()


@pytest.mark.parametrize(
    ("width", "scheme", "texts", "filters"),
    [(1280, "light", {"beside"}, {"none"}), (390, "dark", {"below"}, {"invert(0.92) hue-rotate(180deg)"})],
)
def test_figures_fill_their_cards(shown, width, scheme, texts, filters):
    browser, address = shown
    page = browser.new_page(viewport={"width": width, "height": 800}, color_scheme=scheme)
    page.goto(address)
    figures = page.evaluate(MEASURE)
    assert page.evaluate("document.documentElement.scrollWidth") == width
    assert len(figures) >= 5
    for each in figures:
        assert abs(each["image"] - each["inside"]) <= 1
        assert each["hidden"] == 0
        assert each["link"]
        assert each["image"] >= (CARD - 1 if width == 390 else 0)
    assert {each["text"] for each in figures} == texts
    assert {each["filter"] for each in figures} == filters
