"""The report as one page that opens from disk: `report.html`, and as text: `report.md`.

::

    contents ── a section an experiment ── figure, caption, table, missing points
             ── the timelines, to look into (viewer.js)

Everything is inside the file: figures as data, style and script in place. Nothing is fetched.
"""

from __future__ import annotations

import base64
from collections.abc import Iterator, Sequence
from html import escape
from pathlib import Path
from typing import Any, NamedTuple

import pandas as pd

from analysis import viewer
from analysis.exhibit import Exhibit

TITLE = "microp: report"
POINTS_PER_INCH = 72
MISSING = "Points that were planned, or never asked for, and are not there"


class Section(NamedTuple):
    """One experiment of the report: its name, a title, its figures, and the commands of what is missing."""

    name: str
    title: str
    exhibits: Sequence[Exhibit]
    missing: Sequence[str]


def html(sections: Sequence[Section], folder: Path, runs: pd.DataFrame) -> str:
    """The page; the figures are read back from `folder`, where they have been saved."""
    style = Path(__file__).with_name("report.css").read_text()
    data, left_out = viewer.timelines(runs)
    parts = [
        "<!doctype html>",
        '<html lang="en"><head><meta charset="utf-8">',
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        f"<title>{TITLE}</title><style>\n{style}</style></head><body>",
        f"<h1>{TITLE}</h1>",
        f"<p>{len(runs)} finished runs. Made by <code>python -m analysis</code> from what they left on disk. "
        "Hollow markers: the spread is too wide to build on.</p>",
        *_contents(sections),
        *(line for section in sections for line in _section(section, folder)),
        *_viewer(data, left_out),
        "</body></html>",
    ]
    return "\n".join(parts) + "\n"


def _contents(sections: Sequence[Section]) -> Iterator[str]:
    yield '<nav aria-label="Contents"><ul>'
    for section in sections:
        figures = "".join(f'<li><a href="#{each.stem}">{escape(each.title)}</a></li>' for each in section.exhibits)
        yield f'<li><a href="#{section.name}">{escape(section.title)}</a><ul>{figures}</ul></li>'
    yield '<li><a href="#timelines-title">Timelines</a></li></ul></nav>'


def _section(section: Section, folder: Path) -> Iterator[str]:
    yield f'<section><h2 id="{section.name}">{escape(section.title)}</h2>'
    for exhibit in section.exhibits:
        yield from _figure(exhibit, folder)
    if section.missing:
        commands = escape("\n".join(section.missing))
        yield f"<details><summary>{MISSING}: {len(section.missing)}</summary><pre>{commands}</pre></details>"
    yield "</section>"


def _figure(exhibit: Exhibit, folder: Path) -> Iterator[str]:
    picture = base64.b64encode((folder / f"{exhibit.stem}.svg").read_bytes()).decode()
    width, height = (round(inches * POINTS_PER_INCH * 4 / 3) for inches in exhibit.figure.get_size_inches())
    caption = escape(exhibit.full_caption())
    yield f'<figure id="{exhibit.stem}"><h3>{escape(exhibit.title)}</h3>'
    yield (
        f'<div class="card"><img width="{width}" height="{height}" style="--natural:{width}px" '
        f'alt="{escape(exhibit.title)}" src="data:image/svg+xml;base64,{picture}"></div>'
    )
    yield f"<figcaption>{caption}</figcaption>"
    yield f"<details><summary>The numbers: {len(exhibit.table)} rows</summary>"
    yield f'<div class="table">{_table(exhibit.table)}</div></details></figure>'


def _table(table: pd.DataFrame) -> str:
    head = "".join(f"<th>{escape(str(name))}</th>" for name in table.columns)
    rows = []
    for values in table.itertuples(index=False):
        cells = "".join(_cell(name, value) for name, value in zip(table.columns, values, strict=True))
        rows.append(f"<tr>{cells}</tr>")
    return f"<table><thead><tr>{head}</tr></thead><tbody>{''.join(rows)}</tbody></table>"


def _cell(name: Any, value: Any) -> str:
    if str(name).endswith(".wide"):
        return '<td class="marked">too wide</td>' if value else "<td></td>"
    return f"<td>{escape(say(value))}</td>"


def say(value: Any) -> str:
    """A value as a table shows it: four digits of a number, nothing where there is none."""
    if isinstance(value, float):
        return "" if value != value else f"{value:.4g}"
    return str(value)


def _viewer(data: dict[str, Any], left_out: int) -> Iterator[str]:
    yield '<section><h2 id="timelines-title">Timelines</h2>'
    if not data["runs"]:
        yield "<p>No run left a trace.</p></section>"
        return
    yield (
        "<p>The last measured step of one launch of each question, and the same replayed by the simulator with that "
        "step's own median action times. Both have one time axis. Wheel, pinch or + and - zoom, dragging pans, 0 shows "
        "everything, arrow keys go from action to action, p switches between predicted and measured.</p>"
    )
    if left_out:
        yield f"<p>{left_out} longer ones are left out: <code>python -m analysis.timeline FOLDER</code> draws any.</p>"
    yield '<div id="viewer"><div class="controls"><select data-part="run" aria-label="Run"></select>'
    for panel in ("measured", "predicted"):
        yield f'<button type="button" data-panel="{panel}" aria-pressed="false">{panel}</button>'
    for action, sign, name in BUTTONS:
        yield f'<button type="button" data-do="{action}" aria-label="{name}" title="{name}">{sign}</button>'
    yield "</div>"
    yield '<p data-part="facts"></p>'
    yield '<canvas data-part="canvas" tabindex="0" role="application" aria-label="Timeline: use arrow keys"></canvas>'
    yield '<p data-part="told" role="status" aria-live="polite"></p>'
    yield f'<p class="key">{KEY}</p></div></section>'
    yield viewer.script(data)


BUTTONS = (
    ("out", "−", "zoom out"),
    ("in", "+", "zoom in"),
    ("left", "←", "earlier"),
    ("right", "→", "later"),
    ("all", "all", "the whole step"),
)
KEY = (
    '<span style="background:#9ecae1;color:#000">F</span>forward '
    '<span style="background:#3182bd;color:#fff">B</span>backward '
    '<span style="background:#fdae6b;color:#000">W</span>weight gradient, where it is apart'
)


def markdown(sections: Sequence[Section], runs: pd.DataFrame) -> str:
    """The same as text, with the figures beside it."""
    lines = ["# microp: report", "", f"{len(runs)} finished runs. Made by `python -m analysis`.", ""]
    for section in sections:
        lines += [f"## {section.title}", ""]
        for exhibit in section.exhibits:
            lines += [
                f"### {exhibit.title}",
                "",
                f"![{exhibit.title}]({exhibit.stem}.svg)",
                "",
                exhibit.full_caption(),
                f"Numbers: [{exhibit.stem}.csv]({exhibit.stem}.csv).",
                "",
            ]
        if section.missing:
            lines += [f"{MISSING}: {len(section.missing)}", "", "```", *section.missing, "```", ""]
    return "\n".join(lines)
