"""Draws spans, simulated or measured: as text and as a figure.

::

    rank 0 |F0  |F1  |........|B0      |B1      |
    rank 1 |....|F0  |B0      |F1  |B1      |...|
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from microp.schedule import Op
from microp.trace import Span, bubble_fraction, makespan


def text(spans: Sequence[Span], columns: int = 100) -> str:
    """One line a rank, `columns` wide for the makespan; an action is named where its name fits."""
    begin, total = min(span.start for span in spans), makespan(spans)

    def column(moment: Any) -> int:
        return round(float((moment - begin) / total) * columns)

    lines = []
    for rank, row in sorted(_by_rank(spans).items()):
        line = ["."] * columns
        for span in row:
            left, right = column(span.start), column(span.end)
            name = f"{span.op}{span.microbatch}"
            label = name if len(name) <= right - left else span.op[: right - left]
            line[left:right] = label.ljust(right - left, {"F": "-", "B": "=", "W": "~"}[span.op])
        lines.append(f"rank {rank} |{''.join(line)}|")
    return "\n".join(lines)


def _by_rank(spans: Sequence[Span]) -> dict[int, list[Span]]:
    rows: dict[int, list[Span]] = defaultdict(list)
    for span in sorted(spans, key=lambda span: span.start):
        rows[span.rank].append(span)
    return rows


COLOURS = {Op.F: "#9ecae1", Op.B: "#3182bd", Op.W: "#fdae6b"}  # light, dark, middle: also in greyscale


def figure(panels: Mapping[str, Sequence[Span]], title: str, path: Path) -> list[Path]:
    """Draw timelines above each other on one time axis, in ms, from their first starts.

    Args:
        panels: name -> spans in nanoseconds, e.g. `predicted` and `measured`.
        title: the figure's.
        path: without ending; an SVG and a PNG are written.

    Returns:
        The files.
    """
    import matplotlib

    matplotlib.use("agg")
    matplotlib.rcParams["svg.hashsalt"] = "microp"  # the same spans give the same bytes
    import matplotlib.pyplot as plt

    ranks = max(len(_by_rank(spans)) for spans in panels.values())
    height = len(panels) * (0.7 + 0.45 * ranks) + 0.6
    sheet, axes = plt.subplots(len(panels), 1, figsize=(10, height), sharex=True, squeeze=False)
    for axis, (name, spans) in zip(axes[:, 0], panels.items(), strict=True):
        _draw(axis, spans)
        axis.set_title(f"{name}: {makespan(spans) / 1e6:.1f} ms, bubble {bubble_fraction(spans):.3f}", loc="left")
    axes[-1, 0].set_xlabel("time since the step's first action, ms")
    sheet.suptitle(title)
    sheet.tight_layout()
    files = [path.with_name(f"{path.name}.{ending}") for ending in ("svg", "png")]
    for file in files:
        sheet.savefig(file, dpi=150, metadata={"Date": None} if file.suffix == ".svg" else None)
    plt.close(sheet)
    return files


def _draw(axis: Any, spans: Sequence[Span]) -> None:
    begin = min(span.start for span in spans)
    total = makespan(spans)
    for rank, row in _by_rank(spans).items():
        for span in row:
            start, length = (span.start - begin) / 1e6, (span.end - span.start) / 1e6
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
