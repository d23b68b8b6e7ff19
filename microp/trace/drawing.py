"""Draws spans, simulated or measured: as text, as a figure and as a Perfetto trace.

::

    rank 0 |F0  |F1  |........|B0      |B1      |
    rank 1 |....|F0  |B0      |F1  |B1      |RRR|     R: a sum over the replicas
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from microp.schedule import Op, Schedule
from microp.trace.metrics import bubble_fraction, makespan
from microp.trace.reductions import Reduction, ends_at
from microp.trace.spans import Span


def text(spans: Sequence[Span], columns: int = 100, rows: int = 64, sums: Sequence[Reduction] = ()) -> str:
    """Return a timeline as text, with one line per rank.

    An action is drawn as its name, or as its op's letter if the name does not fit. A reduction is
    drawn where the rank runs no action.

    Args:
        spans: the spans of one step, in any unit of time.
        columns: the width of the makespan, in characters.
        rows: the most ranks to show; of more ranks, the first and the last are shown.
        sums: the reductions over the replicas.
    """
    begin = min(span.start for span in spans)
    total = ends_at(spans, sums) - begin

    def column(moment: Any) -> int:
        return round(float((moment - begin) / total) * columns)

    lines = []
    by_rank = sorted(_by_rank(spans).items())
    left_out, first = len(by_rank) - rows, (rows + 1) // 2
    shown = by_rank if left_out <= 0 else by_rank[:first] + by_rank[first + left_out :]
    digits = len(str(by_rank[-1][0]))
    for rank, row in shown:
        line = ["."] * columns
        for span in row:
            left, right = column(span.start), column(span.end)
            name, width = f"{span.op}{span.microbatch}", right - left
            fits = len(name) <= width and width > 2
            line[left:right] = name.ljust(width, {"F": "-", "B": "=", "W": "~"}[span.op]) if fits else span.op * width
        for reduction in sums:
            for place in range(column(reduction.start), column(reduction.end)):
                if reduction.rank == rank and line[place] == ".":
                    line[place] = "R"
        lines.append(f"rank {rank:{digits}} |{''.join(line)}|")
    if left_out > 0:
        lines.insert(first, f"  ... {left_out} ranks ...")
    return "\n".join(lines)


def _by_rank(spans: Sequence[Span]) -> dict[int, list[Span]]:
    rows: dict[int, list[Span]] = defaultdict(list)
    for span in sorted(spans, key=lambda span: span.start):
        rows[span.rank].append(span)
    return rows


REDUCTION = "#636363"
COLOURS = {Op.F: "#9ecae1", Op.B: "#3182bd", Op.W: "#fdae6b"}  # light, dark, middle: they differ in greyscale too


class Scale(NamedTuple):
    """A unit of time for axes: `length` in the spans' times is one `unit`."""

    length: float
    unit: str


MILLISECONDS = Scale(1e6, "ms")  # for spans in nanoseconds
UNITS = Scale(1, "units of the costs")


def figure(
    panels: Mapping[str, Sequence[Span]],
    title: str,
    path: Path,
    scale: Scale = MILLISECONDS,
    sums: Mapping[str, Sequence[Reduction]] | None = None,
) -> list[Path]:
    """Draw timelines one above the other on a common time axis, each from its first start.

    Args:
        panels: name -> spans, e.g. `predicted` and `measured`.
        title: the figure's title.
        path: the files' path without an ending; an SVG and a PNG are written.
        scale: the unit of time to show.
        sums: name -> the reductions over the replicas, drawn as thin bars below the actions.

    Returns:
        The paths of the two files.
    """
    import matplotlib

    matplotlib.use("agg")
    matplotlib.rcParams["svg.hashsalt"] = "microp"  # the same spans give the same bytes
    import matplotlib.pyplot as plt

    ranks = max(len(_by_rank(spans)) for spans in panels.values())
    height = len(panels) * (0.7 + 0.45 * ranks) + 0.6
    sheet, axes = plt.subplots(len(panels), 1, figsize=(10, height), sharex=True, squeeze=False)
    for axis, (name, spans) in zip(axes[:, 0], panels.items(), strict=True):
        draw(axis, spans, scale.length, (sums or {}).get(name, ()))
        axis.set_title(_caption(name, spans, scale), loc="left")
    axes[-1, 0].set_xlabel(f"time since the step's first action, {scale.unit}")
    sheet.suptitle(title)
    sheet.tight_layout()
    files = [path.with_name(f"{path.name}.{ending}") for ending in ("svg", "png")]
    for file in files:
        sheet.savefig(file, dpi=150, metadata={"Date": None} if file.suffix == ".svg" else None)
    plt.close(sheet)
    return files


def picture(panels: Mapping[str, Sequence[Span]], path: Path, scale: Scale = MILLISECONDS) -> None:
    """Draw the timelines as a small PNG, quickly (0.05 s for two ranks): actions have a colour and no name."""
    from matplotlib.collections import PolyCollection
    from matplotlib.figure import Figure

    ranks = max(len(_by_rank(spans)) for spans in panels.values())
    inches = len(panels) * (0.5 + 0.25 * ranks) + 0.4
    sheet = Figure(figsize=(10, inches), dpi=80)
    sheet.subplots_adjust(0.06, 0.45 / inches, 0.99, 1 - 0.3 / inches, hspace=0.4 / (0.1 + 0.25 * ranks))
    axes = sheet.subplots(len(panels), 1, sharex=True, squeeze=False)[:, 0]
    for axis, (name, spans) in zip(axes, panels.items(), strict=True):
        begin = min(span.start for span in spans)
        for op, colour in COLOURS.items():
            corners = [_corners(span, begin, scale.length) for span in spans if span.op is op]
            axis.add_collection(PolyCollection(corners, facecolor=colour, edgecolor="white", linewidth=0.5))
        axis.set_title(_caption(name, spans, scale), loc="left")
        axis.set(xlim=(0, None), ylim=(ranks - 0.5, -0.5), yticks=range(ranks), ylabel="rank")
        axis.autoscale(axis="x")
    axes[-1].set_xlabel(f"{scale.unit}; light: F, dark: B, orange: W")
    sheet.savefig(path, format="png")


def _corners(span: Span, begin: Any, unit: float) -> list[tuple[float, float]]:
    left, right = float(span.start - begin) / unit, float(span.end - begin) / unit
    return [(left, span.rank - 0.4), (right, span.rank - 0.4), (right, span.rank + 0.4), (left, span.rank + 0.4)]


def _caption(name: str, spans: Sequence[Span], scale: Scale) -> str:
    total, bubble = float(makespan(spans)) / scale.length, float(bubble_fraction(spans))
    return f"{name}: {total:.1f} {scale.unit}, bubble {bubble:.3f}"


def perfetto(panels: Mapping[str, Sequence[Span]], schedule: Schedule, path: Path, scale: Scale = MILLISECONDS) -> Path:
    """Write a trace for ui.perfetto.dev, and return its path.

    It has one process per panel, one thread per rank, and one arrow per tensor sent to another rank.
    The format is Chrome's trace events (JSON); one microsecond there is a thousandth of the scale's
    unit.
    """
    events: list[dict[str, Any]] = []
    for number, (name, spans) in enumerate(panels.items(), start=1):
        begin = min(span.start for span in spans)
        events.append({"ph": "M", "pid": number, "name": "process_name", "args": {"name": f"{name}, {scale.unit}"}})
        events += [
            {"ph": "M", "pid": number, "tid": rank, "name": "thread_name", "args": {"name": f"rank {rank}"}}
            for rank in sorted(_by_rank(spans))
        ]
        events += _slices_and_arrows(spans, schedule, number, begin, scale.length / 1000)
    path.write_text(json.dumps({"traceEvents": events, "displayTimeUnit": "ms"}))
    return path


def _slices_and_arrows(
    spans: Sequence[Span], schedule: Schedule, number: int, begin: Any, microsecond: float
) -> Iterator[dict[str, Any]]:
    """Yield a slice per span, and per tensor from another rank an arrow from its sender's slice to its receiver's."""
    by_action = {span.action: span for span in spans}
    for index, span in enumerate(spans):
        place = {"pid": number, "tid": span.rank}
        start, end = (float(time - begin) / microsecond for time in (span.start, span.end))
        details = {"stage": span.stage, "microbatch": span.microbatch, "ready": float(span.ready - begin) / microsecond}
        yield {
            **place,
            "ph": "X",
            "name": f"{span.op}{span.microbatch}",
            "cat": str(span.op),
            "ts": start,
            "dur": end - start,
            "args": details,
        }
        source = schedule.source(span.action)
        sender = by_action.get(source) if source is not None else None
        if sender is not None and sender.rank != span.rank:
            arrow = {"name": "tensor", "cat": "transfer", "id": number * 10**9 + index}
            sent = float(sender.end - begin) / microsecond
            inside = sent - float(sender.end - sender.start) / microsecond / 1000
            yield {**arrow, "ph": "s", "pid": number, "tid": sender.rank, "ts": inside}
            yield {**arrow, "ph": "f", "bp": "e", **place, "ts": start}


def draw(axis: Any, spans: Sequence[Span], unit: float, sums: Sequence[Reduction] = ()) -> None:
    """Draw spans, and reductions (`sums`) below them, on a matplotlib axis whose unit of time is `unit` long."""
    begin = min(span.start for span in spans)
    for rank, _, start, end in sums:
        place = (float(start - begin) / unit, float(end - start) / unit)
        axis.broken_barh([place], (rank + 0.4, 0.1), facecolor=REDUCTION, edgecolor="white", linewidth=0.5)
    total = makespan(spans)
    for rank, row in _by_rank(spans).items():
        for span in row:
            start, length = float(span.start - begin) / unit, float(span.end - span.start) / unit
            axis.broken_barh([(start, length)], (rank - 0.4, 0.8), facecolor=COLOURS[span.op], edgecolor="white")
            if span.end - span.start > total / 40:
                dark = span.op is Op.B
                axis.text(
                    start + length / 2,
                    rank,
                    f"{span.op}{span.microbatch}",
                    ha="center",
                    va="center",
                    fontsize=7,
                    color="white" if dark else "black",
                )
    ranks = sorted(_by_rank(spans))
    axis.set_yticks(ranks, [f"rank {rank}" for rank in ranks])
    axis.invert_yaxis()
    axis.spines[["top", "right"]].set_visible(False)
