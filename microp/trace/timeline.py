"""Draws spans, simulated or measured, as text of a given width.

::

    replayed 62.1 ms, bubble 0.205 · measured 63 ms (+1.4 %), bubble 0.211

    replayed: simulated with the step's own median action times
    rank 0 |F0--F1--··········B0====B1====|
    rank 1 |····F0--F1--B0====B1====······|

    measured: the last measured step
    rank 0 |F0--F1--···········B0====B1====|
    rank 1 |····F0---F1--B0====B1====······|
           └0 ms     └20       └40       63┘
    F0-- forward B0== backward · idle, F3: microbatch 3
"""

from __future__ import annotations

import textwrap
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from microp.trace.cells import FILL, IDLE, REDUCED, Cells, has_several_stages, merged, row
from microp.trace.look import MILLISECONDS, NAMES, Scale, tick_step
from microp.trace.metrics import bubble_fraction, makespan
from microp.trace.reductions import Reduction
from microp.trace.spans import Span, Spans, as_spans, may_be_slices

Line = list[Cells]
LEAST = 20  # columns of time, however narrow the terminal
MEANING = {
    "predicted": "the whole step, before the run (with the optimizer where its time is known)",
    "simulated": "with the given costs",
    "replayed": "simulated with the step's own median action times",
    "measured": "the last measured step",
}


class Panel(NamedTuple):
    """One timeline."""

    name: str
    spans: Spans
    sums: Sequence[Reduction]

    @property
    def length(self) -> Any:
        """The time from the first start to the last end of an action or of a sum."""
        return max([self.spans.end.max(), *(reduction.end for reduction in self.sums)]) - self.spans.start.min()


def timeline(
    panels: Mapping[str, Sequence[Span]],
    columns: int = 100,
    rows: int = 64,
    scale: Scale = MILLISECONDS,
    sums: Mapping[str, Sequence[Reduction]] | None = None,
    in_header: Collection[str] = (),
    predicted: Mapping[str, Any] | None = None,
    replicas: int = 1,
    clocks: str = "",
    compares: bool = True,
) -> list[Line]:
    """Return timelines as lines of text, one above the other on one scale of time.

    Args:
        panels: name -> the spans of one step; the names are keys of MEANING, or of runs that are compared.
        columns: the width of the lines, in characters; they are never narrower than LEAST columns of time.
        rows: the most ranks to show of a panel; of more ranks, the first and the last are shown.
        in_header: the panels that are not drawn; their time and bubble are in the header.
        predicted: `step_ms` and `bubble` as known before the run, for the header.
        replicas: the number of replicas of the run; the panels are of the first one.
        clocks: how well the clocks of several hosts agree, for the legend.
        compares: whether the header says by how much the times differ.
    """
    every = _panels(panels, sums)
    shown = [panel for panel in every if panel.name not in in_header]
    digits = len(str(max(panel.spans.rank.max() for panel in shown)))
    room = max(LEAST, columns - len("rank  ||") - digits)
    total = max(panel.length for panel in shown)
    drawn: list[Line] = []
    for panel in shown:
        if len(shown) > 1:
            meaning = f": {MEANING[panel.name]}" if panel.name in MEANING else ""
            drawn += [[]] * bool(drawn) + _wrapped([f"{panel.name}{meaning}"], columns)
        drawn += _rows(panel, room, total, rows, digits)
    axis = Cells(" " * (len("rank  |") + digits) + _axis(float(total) / scale.length, scale.short, room), "idle")
    facts = [f"replica 0 of {replicas}"] * (replicas > 1) + header(panels, sums, predicted, scale, compares)
    untitled = [panel.name for panel in every if len(shown) == 1]
    untitled += ["predicted"] * bool(predicted and predicted["step_ms"] is not None)
    legend = [*(f"{name}: {MEANING[name]}" for name in untitled), *_legend(drawn, every), *[clocks] * bool(clocks)]
    return [*_wrapped(facts, columns, " · "), [], *drawn, [axis], *_wrapped(legend, columns, "   ")]


def header(
    panels: Mapping[str, Sequence[Span]],
    sums: Mapping[str, Sequence[Reduction]] | None = None,
    predicted: Mapping[str, Any] | None = None,
    scale: Scale = MILLISECONDS,
    compares: bool = True,
) -> list[str]:
    """Return the parts of the line above timelines: the time and the bubble of each, and the difference of the times.

    The arguments are those of `timeline`.
    """
    facts = []
    if predicted and predicted["step_ms"] is not None:
        step, bubble = predicted["step_ms"], predicted["bubble"]
        facts.append(f"predicted {number(step)} ms, bubble {bubble:.3f}")
    first: Any = None
    for panel in _panels(panels, sums):
        time, bubble = makespan(panel.spans), float(bubble_fraction(panel.spans))
        change = "" if first is None or not compares else f" ({100 * float(time / first - 1):+.1f} %)"
        longer = f"; {number(panel.length / scale.length)} with the sums" if panel.length > time else ""
        facts.append(f"{panel.name} {number(time / scale.length)} {scale.unit}{change}, bubble {bubble:.3f}{longer}")
        first = first or time
    return [*facts, *["%: against the first"] * (len(panels) > 2 and compares)]


def plain(lines: Iterable[Line]) -> str:
    """Return lines without their colours."""
    return "\n".join("".join(cells.text for cells in line).rstrip() for line in lines).rstrip()


def _panels(panels: Mapping[str, Sequence[Span]], sums: Mapping[str, Sequence[Reduction]] | None) -> list[Panel]:
    return [Panel(name, as_spans(spans), (sums or {}).get(name, ())) for name, spans in panels.items()]


def _rows(panel: Panel, room: int, total: Any, rows: int, digits: int) -> list[Line]:
    """Return one line per rank; a panel that is shorter than `total` ends earlier."""
    unit, begin = room / float(total), panel.spans.start.min()

    def place(times: NDArray[np.generic]) -> NDArray[np.float64]:
        return np.asarray(times - begin, np.float64) * unit

    columns = max(1, round(float(panel.length) * unit))
    ranks = panel.spans.rank[panel.spans.first].tolist()
    left_out, first = len(ranks) - rows, (rows + 1) // 2
    lines = []
    for rank in ranks if left_out <= 0 else [*ranks[:first], *ranks[first + left_out :]]:
        cells = merged(row(panel.spans, rank, panel.sums, place, columns))
        lines.append([Cells(f"rank {rank:{digits}} |"), *cells, Cells("|")])
    if left_out > 0:
        lines.insert(first, [Cells(f"  ... {left_out} ranks ...")])
    return lines


def number(value: Any) -> str:
    """Return a time with four digits, or with all digits before the point."""
    return f"{float(value):.4g}" if abs(value) < 1000 else f"{float(value):.0f}"


def _axis(length: float, unit: str, room: int) -> str:
    """Return the axis of `room` columns: marks at multiples of 1, 2 or 5, and one at the end, below the last bar."""
    end, drawn = f" {number(length)}{unit}┘", "└0"
    step = tick_step(length * max(7, len(number(length)) + 3) / room)  # marks do not overlap
    for count in range(1, room + 1):
        label = f"└{number(count * step)}"
        at = round(count * step / length * room)
        if at + len(label) + len(end) > room + 1:
            break
        if at > len(drawn):
            drawn = drawn.ljust(at) + label
    return drawn.ljust(room + 1 - len(end)) + end


def _legend(drawn: Sequence[Line], panels: Sequence[Panel]) -> Iterator[str | Line]:
    """Yield what the drawn characters mean, those of them that are there, and what the header's figures are."""
    parts = [cells for line in drawn for cells in line if cells.look]
    looks, marks = {cells.look for cells in parts}, set("".join(cells.text for cells in parts))
    for op, word in NAMES.items():
        if any(look.startswith(op) for look in looks):
            yield [Cells(op, f"{op}0"), Cells(FILL[op] * 2, f"{op}0-"), Cells(f" {word}")]
    if IDLE in marks:
        yield [Cells(IDLE, "idle"), Cells(" idle")]
    if REDUCED in marks:
        yield [Cells(REDUCED, "sum"), Cells(" sum over replicas or copies")]
    if any(char.isdigit() for char in marks):
        name = "1F3: stage 1, " if has_several_stages(panels[0].spans) else "F3: "
        sliced = " (of microbatches in slices: slice 3 of all)" * may_be_slices(panels[0].spans)
        yield f"{name}microbatch 3{sliced}"
    yield "time: first action's start to last one's end"
    has_longer_sums = any(panel.length > makespan(panel.spans) for panel in panels)
    yield f"bubble: idle / (ranks x time{' without the sums' if has_longer_sums else ''})"


def _wrapped(items: Iterable[str | Line], columns: int, between: str = "") -> list[Line]:
    """Return items on as few lines as they need; a text that is longer than a line is cut between words."""
    lines: list[Line] = []
    used = columns
    for item in items:
        parts = [[Cells(part)] for part in textwrap.wrap(item, columns)] if isinstance(item, str) else [item]
        for part in parts:
            length = sum(len(cells.text) for cells in part)
            if len(parts) > 1 or used + len(between) + length > columns:
                lines.append(list(part))
                used = length
            else:
                lines[-1] += [Cells(between), *part]
                used += len(between) + length
    return lines
