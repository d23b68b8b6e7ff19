"""The report as one page that opens from disk, `report.html`, and as text, `report.md`.

::

    report.html.j2   what there is ── contents ── the user's own sweeps ── viewer.html.j2, the timelines
                     ── a section per experiment that has runs: question, answer, best figure, further ones
                     ── what uses all runs ── commands of what was not run ── runs without a result
    report.md.j2     the same in the same order, with links to the files of figures and tables

Everything is inside the HTML file: figures as data URIs, style and script in place. Nothing is
fetched. Names come from users (sweeps, schedules, folders), so both templates escape them.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

import pandas as pd
from jinja2 import Environment, FileSystemLoader, StrictUndefined, select_autoescape

from analysis import viewer
from analysis.exhibit import Exhibit, Section, commits, counted, machines
from microp.records import DISTURBANCES, KILLED, command, disturbances
from microp.results import Store
from microp.settings import changed_data

HERE = Path(__file__).parent
PIXELS_PER_INCH = 96  # of CSS
MINUTE = "%Y-%m-%d %H:%M"
MARKDOWN = re.compile(r"[\\`*\[\]<>|&~]|(?<![A-Za-z0-9])_|_(?![A-Za-z0-9])")  # an underscore in a word is harmless


def values(store: Store, own: Section, experiments: Sequence[Section], over_all: Sequence[Section]) -> dict[str, Any]:
    """Return what the templates show: what there is, sections that have something, and what was not run.

    `own` has the user's own sweeps, `experiments` the stored ones; `over_all` are the sections that use all runs.
    """
    runs = store.runs()
    finished = runs["recorded"].tolist()
    found = [{each.kind for each in disturbances(row, row["env"])} for row in finished]
    return {
        "overview": " ".join([overview(store, runs, sum(map(bool, found))), *_changed_data(finished)]),
        "about": [f"Machine: {machines(runs)}. Commit: {commits(runs)}.", *_disturbed(found)],
        "own": own if own.exhibits else None,
        "experiments": [section for section in experiments if section.exhibits or section.answer],
        "over_all": [section for section in over_all if section.exhibits],
        "not_run": [section for section in (own, *experiments, *over_all) if section.missing],
        "without_result": without_result(store),
    }


def html(values: dict[str, Any], folder: Path, runs: pd.DataFrame) -> str:
    """Return the page; the figures are read back from `folder`, where they have been saved."""
    shown = [*filter(None, [values["own"]]), *values["experiments"], *values["over_all"]]
    return render(
        "report.html.j2",
        pictures={exhibit.stem: _picture(exhibit, folder) for section in shown for exhibit in section.exhibits},
        style=(HERE / "report.css").read_text(),
        **values,
        **viewer.parts(runs),
    )


def render(template: str, **values: Any) -> str:
    """Return a filled-in template of this folder; HTML is escaped automatically, Markdown by the filters."""
    environment = Environment(
        loader=FileSystemLoader(HERE),
        autoescape=select_autoescape(["html.j2"]),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.policies["json.dumps_kwargs"] = {"separators": (",", ":")}
    environment.filters |= {"short": short, "escaped": escaped, "fenced": fenced, "counted": counted}
    environment.globals["zip"] = zip
    return environment.get_template(template).render(title="microp: report", **values)


def _picture(exhibit: Exhibit, folder: Path) -> dict[str, Any]:
    """Return the size of a figure in CSS pixels, and its SVG file as a data URI."""
    data = base64.b64encode((folder / f"{exhibit.stem}.svg").read_bytes()).decode()
    width, height = (round(inches * PIXELS_PER_INCH) for inches in exhibit.figure.get_size_inches())
    return {"width": width, "height": height, "source": f"data:image/svg+xml;base64,{data}"}


def short(value: Any) -> str:
    """Return a table's value as text: a number with four digits, NaN as nothing."""
    if isinstance(value, float):
        return "" if value != value else f"{value:.4g}"
    return str(value)


def escaped(text: str) -> str:
    """Return text on one line, with a backslash before each character that is markup in Markdown."""
    return MARKDOWN.sub(r"\\\g<0>", " ".join(text.split()))


def fenced(lines: Sequence[str]) -> str:
    """Return lines as a Markdown code block, whose fence is longer than any run of backticks in them."""
    text = "\n".join(lines)
    fence = "`" * max([3, *(len(run) + 1 for run in re.findall("`+", text))])
    return f"{fence}\n{text}\n{fence}"


# --- what there is to report on ---------------------------------------------------------------------


def overview(store: Store, runs: pd.DataFrame, disturbed: int) -> str:
    """Return two sentences about the runs, at least one of them finished, of which `disturbed` many were disturbed."""
    first, last = (datetime.fromtimestamp(float(end(runs["started"]))).strftime(MINUTE) for end in (min, max))
    began = f"at {first}" if first == last else f"from {first} to {last.removeprefix(first.partition(' ')[0] + ' ')}"
    noisy = f"The timing of {counted(disturbed, 'run')} was disturbed: hollow markers, and why at the end."
    return (
        f"{'Only --schedule=' * bool(store.schedules)}{','.join(store.schedules)}{': ' * bool(store.schedules)}"
        f"{counted(len(runs), 'finished run')} of {counted(runs['question'].nunique(), 'configuration')}, "
        f"started {began}. {noisy if disturbed else 'No timing is known to have been disturbed.'}"
    )


def without_result(store: Store) -> list[str]:
    """Return the runs that did not finish or cannot be read, one sentence each."""
    unfinished = [row for row in store.rows if row["status"] != "finished"]
    again = {
        point.run_id: command(point.sweep, "hydra.mode=RUN", *point.overrides)
        for plan in store.plans
        for point in plan.points
    }
    told = []
    for row in unfinished:
        message = str(row["message"] or "no message").strip().splitlines()[0]
        recorded = f" ({counted(row['steps'], 'step')} recorded)" if row["status"] == KILLED else ""
        remedy = f" (again: {again[row['run_id']]})" if row["run_id"] in again else ""
        told.append(f"{row['folder']}: {row['status']}{recorded}, {message}{remedy}")
    return [*told, *store.unreadable]


def _changed_data(rows: Sequence[dict[str, Any]]) -> list[str]:
    """Return which data were not the same in all launches of a configuration, one sentence per path."""
    launches: dict[str, list[tuple[str | None, dict[str, Any]]]] = {}
    for row in rows:
        launches.setdefault(row["question"], []).append((row["config"]["data"].get("path"), row["env"]))
    return [f"{text}." for own in launches.values() for text in changed_data(own)]


def _disturbed(found: Sequence[set[str]]) -> list[str]:
    """Return what disturbed the runs whose kinds of disturbance are `found`, one sentence per kind."""
    counts = {kind: sum(kind in own for own in found) for kind in DISTURBANCES}
    return [f"{kind.capitalize()}, in {counted(n, 'run')}: {DISTURBANCES[kind]}." for kind, n in counts.items() if n]
