"""A text that is laid out once looks as if it had been laid out each time."""

from __future__ import annotations

from contextlib import nullcontext

import pandas as pd
from matplotlib.text import Text

from analysis import plot, text_layouts
from analysis.exhibit import Exhibit


def exhibit() -> Exhibit:
    """A figure with labels that change with the layout, and texts of all kinds."""
    figure, axes = plot.panels(3)
    for number, axis in enumerate(axes):
        axis.plot([1, 2, 30], [number, 200, 3e-4], label=f"line {number}\nof two")
        plot.titled(axis, f"panel {number}", "a long name of an axis, " * 3, "y", own=True)
        axis.tick_params(axis="x", rotation=20 * number)
    axes[0].text(2, 100, "across", rotation=45, rotation_mode="anchor", ha="right", va="top", fontsize=14)
    axes[1].text(2, 100, "a text that is wrapped where its figure ends, " * 2, wrap=True)
    axes[1].text(2, 50, "turned with its axis", rotation=30, transform_rotates_text=True)
    axes[2].text(2, 100, "three\nlines of\nit", multialignment="right", linespacing=2)
    axes[2].set_xscale("log")
    plot.legend(figure)
    return Exhibit("test", "", "", figure, pd.DataFrame(), pd.DataFrame())


def test_files_have_the_same_bytes(tmp_path, monkeypatch):
    kept = exhibit().save(tmp_path / "kept")
    monkeypatch.setattr(text_layouts, "kept", nullcontext)
    anew = exhibit().save(tmp_path / "anew")
    assert [path.read_bytes() for path in kept] == [path.read_bytes() for path in anew]


def test_a_text_is_laid_out_once_for_each_resolution(tmp_path, monkeypatch):
    laid_out = []
    layout = Text._get_layout
    monkeypatch.setattr(Text, "_get_layout", lambda text, renderer: laid_out.append(text) or layout(text, renderer))
    figure, [axis] = plot.panels(1)
    title = axis.set_title("a title that no other figure has")
    Exhibit("test", "", "", figure, pd.DataFrame(), pd.DataFrame()).save(tmp_path)
    assert laid_out.count(title) == 2


def test_matplotlib_is_left_as_it_was():
    before = Text._get_layout
    with text_layouts.kept():
        assert Text._get_layout is not before
    assert Text._get_layout is before
