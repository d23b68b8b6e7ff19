"""The checker of figures finds what is cut, what lies on another, and what a legend does not explain."""

from __future__ import annotations

import pytest
from matplotlib.figure import Figure

from tests.boxes import faults, unnamed


def sheet() -> tuple[Figure, list]:
    """A figure without faults: two panels with a title each, a line with a marker, and a legend above both."""
    figure = Figure(figsize=(6, 3), layout="constrained")
    axes = list(figure.subplots(1, 2))
    for axis in axes:
        axis.plot([0, 10], [0, 10], "o-", label="gpipe")
        axis.set(title="a panel", xlabel="microbatches M", ylabel="step time, ms")
    figure.legend(*axes[0].get_legend_handles_labels(), loc="outside upper center")
    return figure, axes


def test_a_figure_without_faults():
    figure, _ = sheet()
    assert faults(figure) == unnamed(figure) == []


@pytest.mark.parametrize(
    ("spoil", "found"),
    [
        (lambda f, a: f.text(0.99, 0.5, "outside"), "text 'outside' is cut"),
        (lambda f, a: a[0].set_title("a title that is longer than two panels " * 3), "is cut"),
        (lambda f, a: f.legend(*a[0].get_legend_handles_labels(), loc=(0.95, 0.5)), "legend ['gpipe'] is cut"),
        (
            lambda f, a: a[0].set_title("a title that runs into the next one, above its panel", x=0, ha="left"),
            "lies on text 'a panel'",
        ),
        (
            lambda f, a: a[0].set_xticks(range(11), [f"tick {n}" for n in range(11)]),
            "text 'tick 1' lies on text 'tick 2'",
        ),
        (lambda f, a: f.legend(*a[0].get_legend_handles_labels(), loc="center left"), "lies on the panel 'a panel'"),
        (lambda f, a: a[0].text(4, 4.2, "K = 4"), "text 'K = 4' is struck by a line in the panel 'a panel'"),
        (lambda f, a: a[0].annotate("M", (0, 8), (9.5, 9.5)), "text 'M' is struck"),
        (lambda f, a: a[0].errorbar([2], [7], [3]) and a[0].text(1.5, 8, "bar"), "text 'bar' is struck"),
        (lambda f, a: a[0].text(1, 8, "tiny", fontsize=5), "text of 5 points in 6.0 inches is 4.0 pixels high"),
        (lambda f, a: f.set_figwidth(9), "the figure is 9.0 inches wide"),
    ],
    ids=["text cut", "title cut", "legend cut", "titles", "ticks", "legend", "line", "marker", "bar", "tiny", "wide"],
)
def test_a_fault_is_found(spoil, found):
    figure, axes = sheet()
    spoil(figure, axes)
    assert any(found in fault for fault in faults(figure)), faults(figure)


def test_what_is_not_drawn_is_no_fault():
    figure, axes = sheet()
    axes[0].text(4, 4, "struck, but hidden", visible=False)
    axes[0].set_xticks(range(100))
    axes[0].set_xlim(0, 5)  # the labels of ticks beyond it are made, but not drawn
    assert faults(figure) == []


@pytest.mark.parametrize(
    ("add", "found"),
    [
        (lambda axis: axis.plot([1, 2], [3, 4], "s", color="red"), "no legend explains marker s #ff0000"),
        (lambda axis: axis.plot([1, 2], [3, 4], "--"), "no legend explains dashes"),
        (
            lambda axis: axis.plot([1, 2], [3, 4], "--"),
            "a dashed line, which stands for what was measured, has no markers",
        ),
        (
            lambda axis: axis.plot([1, 2], [3, 4], ":o"),
            "a dotted line, which stands for what was computed, has markers",
        ),
        (lambda axis: axis.axhline(3, color="0.6"), "no legend explains line #999999"),
        (lambda axis: axis.plot([1], [3], "o", markerfacecolor="white"), "no legend explains hollow markers"),
        (lambda axis: axis.set_ylabel(""), "the vertical axis of 'a panel' has no label"),
        (lambda axis: axis.set_xlabel(""), "the horizontal axis of 'a panel' has no label"),
    ],
    ids=["marker", "dashes", "dashed", "dotted", "line", "hollow", "vertical", "horizontal"],
)
def test_what_no_legend_explains_is_found(add, found):
    figure, [first, second] = sheet()
    add(first)
    if "label" in found:
        second.set(xlabel="", ylabel="")
    assert found in unnamed(figure)
