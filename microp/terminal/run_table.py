"""Prints the table of a command's runs: what was swept, what was found, and what that means.

::

    4 finished, the same in all: schedule=gpipe ranks=2 chunks=4 model=mlp device=cpu
    model.dim  repeat  step ms     p10 - p90  disturbed    bubble  formula      swept keys, then results
           64       0     12.1   11.9 - 12.4                0.213    0.200
         ...
    step ms: pipeline and optimizer of a step, median. ...                      the columns that are shown
    disturbed: 1 of 4 runs (spread); run again on an idle machine               if a run was
    model.dim=128 takes 2.96 times as long as model.dim=64 [2.91, 3.01], ...    see `verdicts`
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal, NamedTuple

from microp import results
from microp.records import MOSTLY_WORK, clocks_text, read_traced_step
from microp.terminal.columns import Column, extremes, number, paragraph, show
from microp.terminal.console import CAUTION, draw, error, out
from microp.trace import timeline

SWEPT = 79  # importance of the columns of swept keys: step ms, bubble, peak and ratios stay longer
LONG = 8  # characters to which values of keys may be shortened
LONG_PART = 4  # rows of a part of a sweep: parts with as many, on average, have headings instead of a column
LISTED_RANKS = 2  # with more ranks, the column of peaks has the smallest and the largest


def show_runs(rows: Sequence[results.PointRow], whole: str) -> None:
    """Print what was asked, the table, what its columns mean, and the failures.

    `rows` are the points that have a summary, at least one; the file `whole` has every column.
    """
    states = [row.summary["status"] for row in rows]
    counts = ", ".join(f"{states.count(state)} {state}" for state in sorted(set(states), key="finished".__ne__))
    heading = f"{states[0]}:" if len(rows) == 1 else f"{counts}, the same in all:"
    rows = [row for row in rows if row.summary["status"] != "interrupted"] or rows  # the others tell nothing
    configs, typed = [row.config for row in rows], [row.overrides for row in rows]
    paragraph(" ".join([heading, *results.same(configs, typed[0])]), style="")
    columns, parts = results.asked(configs, typed), results.parts_of(configs, typed)
    names, headings = [" ".join(point) for point in zip(*parts.values(), strict=True)], {}
    if parts and len(rows) >= LONG_PART * len({*names}):
        order = sorted(range(len(rows)), key=lambda place: names.index(names[place]))
        rows, names = [rows[place] for place in order], [names[place] for place in order]
        columns = {key: [texts[place] for place in order] for key, texts in columns.items() if key not in parts}
        if len({*zip(names, columns.get("device", names), strict=True)}) == len({*names}):
            columns.pop("device", None)  # of a part, whose heading has it
        headings = {names.index(name): f"{name}: {_about_part(name, names, rows, columns)}" for name in names}
    show([*swept_columns(columns), *result_columns(rows)], whole, headings)
    if disturbed := [row for row in rows if row.disturbed]:
        several = len(rows) > 1
        which = f"{len(disturbed)} of {len(rows)} runs" if several else "this run"
        remedy = f"run again{' with again=true' if several else ''} on an idle machine"
        if all(row.is_crowded for row in disturbed):
            remedy = "more ranks than cores measure the cores: use fewer ranks, or device=emulated"
        kinds = {reason.kind: reason.kind if several else reason.text for row in disturbed for reason in row.disturbed}
        works = [(row.summary.get("nominal") or {}).get("work", 0) for row in disturbed]
        if kinds.keys() & {"nominal", "overruns"}:
            remedy += ", or with longer times"
            if min(works) > MOSTLY_WORK:  # in each of them
                remedy = "the real work takes longer than it was told: use longer times, or a smaller model"
        first = "; a row shows the first of its own" * (several and any(len(row.disturbed) > 1 for row in disturbed))
        paragraph(f"disturbed: {which} ({', '.join(kinds.values())}{first}); {remedy}.", style=CAUTION)
    if others := {other for row in rows if (other := (row.summary.get("predicted") or {}).get("stand_in"))}:
        paragraph(f"No peak MiB where a small model stood in for the profile's ({min(others)}); its loss is its own.")
    for sentence in (*results.verdicts(rows), *results.one_process(rows)):
        paragraph(sentence, style="")
    for row in rows:
        if row.message and len(rows) > 1:  # a single failure has just been shown
            error(f"{row.folder}: {row.message}")


def _about_part(part: str, parts: Sequence[str], rows: Sequence[results.PointRow], columns: Container[str]) -> str:
    """Return what is the same in all rows of a part, but not in the other parts, and has no column."""
    texts = {key: values for key, values in results.swept([row.config for row in rows]).items() if key not in columns}
    own = {key: {value for value, name in zip(texts[key], parts, strict=True) if name == part} for key in texts}
    return " ".join(f"{key}={min(values)}" for key, values in own.items() if len(values) == 1)


def swept_columns(texts: dict[str, list[str]]) -> list[Column]:
    """Return the columns of swept keys; numbers are aligned on the right, and the name of an option is never cut.

    A key of an option that has a column itself is named without it: `drain` beside `schedule`.
    """
    groups = {key: key.partition(".")[0] for key in texts}
    short = {key: key.partition(".")[2] if groups[key] in texts and groups[key] != key else key for key in texts}
    return [
        Column(short[key], values, _side(values), SWEPT, LONG if "." in key else None, is_key=True)
        for key, values in texts.items()
    ]


def _side(values: Sequence[str]) -> Literal["left", "right"]:
    try:
        list(map(float, values))
    except ValueError:
        return "left"
    return "right"


# --- the columns of what runs found -------------------------------------------------------------------


class Result(NamedTuple):
    """A column of what was found."""

    name: str  # the heading
    importance: int  # columns of the lowest importance are left out first
    value: Callable[[results.PointRow], str | None]  # what a row has in the column
    about: str | Callable[[Sequence[results.PointRow]], str] = ""  # what it means, for the rows that are shown
    without: str = "-"  # the text of a row that has nothing


def result_columns(rows: Sequence[results.PointRow]) -> Iterator[Column]:
    """Yield the columns in which at least one of the rows has something."""
    for name, importance, value, about, without in _RESULTS:
        texts = [value(row) for row in rows]
        if name in ("bubble", "formula") and all(row.config.get("ranks") == 1 for row in rows):
            continue  # one process is no pipeline
        if any(text is not None for text in texts):
            column = Column(name, [text or without for text in texts], "right", importance)
            meaning = about if isinstance(about, str) else about(rows)
            yield replace(column, about=meaning, **_LOOKS.get(name, {}))


def _figure(form: Callable[[float], str], keys: str) -> Callable[[results.PointRow], str | None]:
    """Return the function that writes the number below these keys of a summary; of older ones, some lack it."""

    def value(row: results.PointRow) -> str | None:
        figure: Any = row.summary
        for key in keys.split("."):
            figure = (figure or {}).get(key)
        return None if figure is None else form(figure)

    return value


def _milliseconds(value: float) -> str:
    return number(value, ".1f" if value >= 10 else ".2f")


def _spread(row: results.PointRow) -> str | None:
    step = row.summary["step_ms"]
    return f"{_milliseconds(step['p10'])} - {_milliseconds(step['p90'])}" if step else None


_FORMULAS = (("bubble", "closed_form"), ("predicted", "bubble"))  # of older summaries, some lack them


def _formula(row: results.PointRow) -> str | None:
    form, priced = ((row.summary.get(key) or {}).get(name) for key, name in _FORMULAS)
    return f"~{priced:.3f}" if form is None and priced is not None else None if form is None else f"{form:.3f}"


def _about_formula(rows: Sequence[results.PointRow]) -> str:
    is_simulated = any((_formula(row) or "").startswith("~") for row in rows)
    return f"formula: the bubble by the closed form{'; ~: simulated, as there is none' * is_simulated}."


def _peaks(row: results.PointRow) -> str | None:
    peaks = row.summary["peak_memory_mib"] or ()
    if len(peaks) > LISTED_RANKS:
        return extremes(peaks, ".1f")
    return " ".join(number(peak, ".1f") for peak in peaks) or None


def _of_peak(row: results.PointRow) -> str | None:
    at_peak, step = (row.summary.get("predicted") or {}).get("at_peak_ms"), row.summary["step_ms"]
    return f"{100 * at_peak / step['median']:.0f} %" if at_peak and step else None


def _tokens(row: results.PointRow) -> str | None:
    context, rate = row.config["model"].get("context"), row.summary.get("samples_per_s")
    return f"{context * rate:,.0f}" if context and rate else None


def _loss(row: results.PointRow) -> str | None:
    if not (loss := row.summary["loss"]):
        return None
    return " → ".join("not finite" if loss[key] is None else format(loss[key], ".2f") for key in ("first", "last"))


def _status(row: results.PointRow) -> str | None:
    return None if row.summary["status"] == "finished" else str(row.summary["status"])


def _disturbed(row: results.PointRow) -> str | None:
    """Return the first reason; the table's file has all of them."""
    return row.disturbed[0].text.partition(",")[0] if row.disturbed else None


def _about_torch(rows: Sequence[results.PointRow]) -> str:
    """Return which order torch ran where it has none like microp's."""
    compared = [row.summary for row in rows if row.summary["engines"]]
    orders = {
        (summary["schedule"], summary["engines"]["torch_schedule"] or summary["schedule"]) for summary in compared
    }
    return " ".join(f"torch has no {ours} and ran {other}." for ours, other in sorted(orders) if other != ours)


_ENGINES = "microp, torch ms: forward and backward of a step, medians."
_TURNS = "Ratios: medians over steps that ran in turn."
_SUMS = "ddp, torch_ddp ms: of a step, medians."
_RATIO, _FRACTION = "{:.2f}".format, "{:.3f}".format
_RESULTS = (
    Result("step ms", 90, _figure(_milliseconds, "step_ms.median"), "step ms: pipeline and optimizer, median."),
    Result("p10 - p90", 40, _spread),
    Result("predicted ms", 55, _figure(_milliseconds, "predicted.step_ms")),
    Result("disturbed", 85, _disturbed, "disturbed: why not to trust its times.", ""),
    Result("torch / microp", 80, _figure(_RATIO, "engines.ratio.torch/microp"), _TURNS),
    Result("microp ms", 78, _figure(_milliseconds, "engines.pipeline_ms.microp.median"), _ENGINES),
    Result("torch ms", 77, _figure(_milliseconds, "engines.pipeline_ms.torch.median"), _about_torch),
    Result("limit ms", 76, _figure(_milliseconds, "engines.pipeline_ms.limit.median"), "limit ms: arithmetic alone."),
    Result("microp / limit", 75, _figure(_RATIO, "engines.ratio.microp/limit"), _TURNS),
    Result("ddp / torch_ddp", 80, _figure(_RATIO, "syncs.ratio.ddp/torch_ddp"), _TURNS),
    Result("ddp ms", 78, _figure(_milliseconds, "syncs.step_ms.ddp.median"), _SUMS),
    Result("torch_ddp ms", 77, _figure(_milliseconds, "syncs.step_ms.torch_ddp.median"), _SUMS),
    Result("samples/s", 50, _figure("{:,.0f}".format, "samples_per_s")),
    Result("tokens/s", 49, _tokens),
    Result("of peak", 48, _of_peak, "of peak: FLOP/s over the ranks' peak."),
    Result("bubble", 80, _figure(_FRACTION, "bubble.measured"), "bubble: idle / total time, median."),
    Result("formula", 60, _formula, _about_formula),
    Result("peak MiB", 80, _peaks, "peak MiB: tensors of each rank."),
    Result("loss", 30, _loss),
    Result("status", 95, _status, "", "finished"),
)
_LOOKS: dict[str, dict[str, Any]] = {
    "disturbed": {"justify": "left", "style": CAUTION, "shortest": 15},
    "status": {"justify": "left"},
}


# --- the step of a single run --------------------------------------------------------------------------

RANKS, ACTIONS = 8, 4000  # the most of a step that is drawn unasked; reading these takes a few hundredths of a second


def show_step(attempt: Path, summary: Mapping[str, Any]) -> None:
    """Print the measured step of a run, if the run is finished and the step is small."""
    if summary["status"] != "finished":
        return
    if summary["ranks"] > RANKS or summary["actions"] > ACTIONS * max(1, summary["steps"] * summary["replicas"]):
        return
    step = read_traced_step(attempt, summary)
    if step is None:
        return
    above = [name for name in step.panels if name != "measured"]
    lines = timeline(
        step.panels,
        out.width,
        sums=step.sums,
        in_header=above,
        predicted=summary.get("predicted"),
        replicas=summary["replicas"],
        clocks=clocks_text(summary),
    )
    out.print()
    draw(lines)
