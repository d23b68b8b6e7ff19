"""Draws spans, simulated or measured, as a figure.

::

    measured: 63.0 ms, bubble 0.211
    rank 0 ▕ 0▏ 1▏        ▕ 0  ▏ 1  ▏         numbers of microbatches, where they fit
    rank 1    ▕ 0▏ 0  ▏ 1▏ 1  ▏▁▁▁▁▁          below the actions: a sum over the replicas
           └───────┴───────┴───────┴─ ms
"""

from __future__ import annotations

import logging
import textwrap
from collections import defaultdict
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from io import StringIO
from pathlib import Path
from statistics import median
from typing import Any

from microp.schedule import Op
from microp.trace.look import COLOURS, INK, MILLISECONDS, NAMES, REDUCTION, Scale, shade
from microp.trace.metrics import bubble_fraction, makespan
from microp.trace.reductions import Reduction, ends_at
from microp.trace.spans import Span, may_be_slices

logging.getLogger("matplotlib").setLevel(logging.ERROR)  # it warns if the home folder cannot be written


WIDTH = 6.4  # inches: the text of a page
ENDINGS = "svg", "pdf", "png"
DRAWN = 20_000  # actions; with more, a figure is unreadable and a trace takes hundreds of megabytes
EDGE = 0.15  # of a bar's length: its white edge, which would cover short ones
POINTS = 9.5  # the size of text: that of the figures in analysis
LETTER = 0.64  # the width of a letter of a name, relative to its size
BESIDE, NARROW = 0.55, 5.5  # inches of the names of ranks, and points of a letter of a title, on average
TEXT: dict[Any, Any] = {
    "pdf.fonttype": 42,  # TrueType: journals refuse Type 3
    "text.parse_math": False,  # a title names a folder, which may have a $
    "font.size": POINTS,
    "axes.titlesize": POINTS,
    "axes.labelsize": POINTS,
    "legend.fontsize": POINTS,
}


def figure(
    panels: Mapping[str, Sequence[Span]],
    title: str,
    path: Path,
    scale: Scale = MILLISECONDS,
    sums: Mapping[str, Sequence[Reduction]] | None = None,
    endings: Sequence[str] = ENDINGS,
    width: float = WIDTH,
) -> list[Path]:
    """Draw timelines one above the other on a common time axis, each from its first start; return the files.

    Args:
        panels: name -> spans, e.g. `predicted` and `measured`.
        title: what the files say of themselves; it is not drawn, because what shows a figure has its own heading.
        path: the files' path without an ending, of which each kind in `endings` is written.
        sums: name -> the reductions over the replicas, drawn as thin bars below the actions.
        width: inches, which a narrow column of a paper has fewer of.
    """
    with _style():
        return save(sheet(panels, scale, sums, width=width), path, endings, title)


def save(drawn: Any, path: Path, endings: Sequence[str] = ENDINGS, title: str | None = None) -> list[Path]:
    """Write a figure as files of these kinds, `path` with their endings, and return them; see `figure`."""
    files = [path.with_name(f"{path.name}.{end}") for end in endings]
    for file in files:  # without dates, so that the same drawing gives the same bytes
        about = {".svg": ("Date", "Creator"), ".pdf": ("CreationDate", "Creator", "Producer")}.get(file.suffix, ())
        drawn.savefig(file, dpi=200, metadata={**dict.fromkeys(about), **({"Title": title} if title else {})})
    return files


def sheet(
    panels: Mapping[str, Sequence[Span]],
    scale: Scale = MILLISECONDS,
    sums: Mapping[str, Sequence[Reduction]] | None = None,
    row: float = 0.4,
    width: float = WIDTH,
) -> Any:
    """Return the drawing of `figure` as matplotlib's Figure, with rows of so many inches."""
    from matplotlib.figure import Figure

    sums = sums or {}
    ranks = max(len(_by_rank(spans)) for spans in panels.values())
    until = max(_length(spans, sums.get(name, ())) for name, spans in panels.items())
    letters = int((width - BESIDE) * 72 / NARROW)
    with _style():
        drawn = Figure(figsize=(width, len(panels) * (0.5 + row * ranks) + 1.0), layout="constrained")
        axes = drawn.subplots(len(panels), 1, sharex=True, squeeze=False)
        for axis, (name, spans) in zip(axes[:, 0], panels.items(), strict=True):
            draw(axis, spans, scale.length, sums.get(name, ()), until)
            time, bubble = float(makespan(spans)) / scale.length, float(bubble_fraction(spans))
            title = f"{name}: {time:.1f}\xa0{scale.unit}, bubble\xa0{bubble:.3f}"  # not broken within a figure
            axis.set_title(textwrap.fill(title, letters, break_on_hyphens=False).replace("\xa0", " "), loc="left")
        axes[-1, 0].set_xlabel(f"time since the step's first action, {scale.unit}")
        sliced = ", or slices of them" * any(map(may_be_slices, panels.values()))
        numbers = f"numbers: microbatches{sliced}" * any(axis.texts for axis in axes[:, 0])
        handles = keys([span for spans in panels.values() for span in spans], any(sums.values()), numbers)
        drawn.legend(handles=handles, loc="outside lower center", ncols=1 if width < WIDTH else 2, frameon=False)
    return drawn


def svg(
    panels: Mapping[str, Sequence[Span]],
    title: str,
    scale: Scale = MILLISECONDS,
    sums: Mapping[str, Sequence[Reduction]] | None = None,
) -> str:
    """Return the drawing of `figure` as an SVG element as wide as its place, for HTML; empty for over DRAWN actions."""
    if sum(map(len, panels.values())) > DRAWN:
        return ""
    file = StringIO()
    with _style():
        sheet(panels, scale, sums).savefig(file, format="svg", metadata={"Date": None, "Title": title})
    text = file.getvalue()
    return text[text.index("<svg") :].replace("<svg", '<svg style="max-width: 100%; height: auto"', 1)


def _style() -> AbstractContextManager[Any]:
    """Return what a drawing is made and saved in; the same drawing gives the same bytes."""
    from matplotlib import rc_context

    return rc_context({**TEXT, "svg.hashsalt": "microp"})


def draw(axis: Any, spans: Sequence[Span], unit: float, sums: Sequence[Reduction] = (), until: Any = None) -> None:
    """Draw spans on a matplotlib axis, with the numbers of their microbatches where these fit, and the sums below them.

    `unit` is the length of the axis' unit of time; `until` the time that it shows, from the first start; None: all of
    it.
    """
    begin = min(span.start for span in spans)
    until = _length(spans, sums) if until is None else until
    letters = 0.85 * axis.figure.get_figwidth() * 72 / (LETTER * POINTS)  # along the whole axis
    width = axis.figure.get_figwidth() * 72  # in points
    lengths = [float(span.end - span.start) / float(until) * width for span in spans]
    edge = min(1.0, EDGE * median(lengths))
    for rank, _, start, end in sums:
        place = (float(start - begin) / unit, float(end - start) / unit)
        axis.broken_barh([place], (rank + 0.4, 0.1), facecolor=REDUCTION, edgecolor="white", linewidth=0.5)
    by_rank = _by_rank(spans)
    for rank, row in by_rank.items():
        stages = sorted({span.stage for span in row})
        bars = [(float(span.start - begin) / unit, float(span.end - span.start) / unit) for span in row]
        colours = [COLOURS[span.op][shade(span.stage, stages)] for span in row]
        axis.broken_barh(bars, (rank - 0.4, 0.8), facecolors=colours, edgecolor="white", linewidth=edge)
    for span in spans:
        if float(span.end - span.start) / float(until) * letters >= len(str(span.microbatch)) + 0.25:
            look = {"ha": "center", "va": "center", "fontsize": POINTS, "color": INK[span.op]}
            axis.text(float(span.start + span.end - 2 * begin) / 2 / unit, span.rank, str(span.microbatch), **look)
    ranks = sorted(by_rank)
    axis.set_yticks(ranks, [f"rank {rank}" for rank in ranks])
    axis.set(xlim=(0, float(until) / unit), ylim=(ranks[-1] + 0.6, ranks[0] - 0.6))
    axis.spines[["top", "right"]].set_visible(False)


def keys(spans: Sequence[Span], sums: bool, numbers: str) -> list[Any]:
    """Return a legend's entries for what `draw` draws: the ops that occur, `sums`, and what `numbers` are, if any."""
    from matplotlib.patches import Patch

    words: dict[str, list[str]] = defaultdict(list)  # by colour
    for op in sorted({span.op for span in spans}, key=[*Op].index):
        words[COLOURS[op][0]].append(NAMES[op])
    entries = [Patch(color=colour, label=" or ".join(ops)) for colour, ops in words.items()]
    if any(len({span.stage for span in row}) > 1 for row in _by_rank(spans).values()):
        entries.append(Patch(color=COLOURS[Op.B][1], label="other shade: a rank's second stage"))
    if sums:
        entries.append(Patch(color=REDUCTION, label="sum over replicas or copies"))
    return [*entries, *[Patch(color="none", label=numbers)] * bool(numbers)]


def _length(spans: Sequence[Span], sums: Sequence[Reduction]) -> Any:
    """Return the time from the first start to the last end of spans and reductions."""
    return ends_at(spans, sums) - min(span.start for span in spans)


def _by_rank(spans: Sequence[Span]) -> dict[int, list[Span]]:
    rows: dict[int, list[Span]] = defaultdict(list)
    for span in sorted(spans, key=lambda span: span.start):
        rows[span.rank].append(span)
    return rows
