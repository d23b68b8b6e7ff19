"""Prints the table of a command's runs: what was swept, what was found, and what that means.

::

    4 finished, the same in all: schedule=gpipe ranks=2 chunks=4 model=mlp device=cpu
    model.dim  repeat  step ms     p10 - p90  disturbed    bubble  formula      swept keys, then results
           64       0     12.1   11.9 - 12.4                0.213    0.200
         ...
    step ms: pipeline and optimizer of a step, median. ...                      the columns that are shown
    disturbed: ...                                                              if a run was
    model.dim=128 takes 2.96 times as long as model.dim=64 [2.91, 3.01], ...    see `verdicts`
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from microp.records import DISTURBANCES
from microp.results import PointRow, same, small_microbatches, swept, verdicts
from microp.terminal.columns import Column, paragraph, show
from microp.terminal.console import error, out
from microp.terminal.results import results

SWEPT = 79  # importance of the columns of swept keys: step ms, bubble, peak and ratios stay longer
LONG = 8  # characters to which values of keys may be shortened


def show_runs(rows: Sequence[PointRow], whole: str) -> None:
    """Print what was asked, the table, what its columns mean, and the failures.

    `rows` are the points that have a summary, at least one; the file `whole` has every column.
    """
    states = [row.summary["status"] for row in rows]
    counts = ", ".join(f"{states.count(state)} {state}" for state in sorted(set(states), key="finished".__ne__))
    heading = f"{states[0]}:" if len(rows) == 1 else f"{counts}, the same in all:"
    configs, typed = [row.config for row in rows], rows[0].overrides
    paragraph(out, " ".join([heading, *same(configs, typed, out.width - len(heading) - 1)]), style="")
    found = results(rows)
    columns = [*swept_columns(swept(configs, typed)), *(result.column(rows) for result in found)]
    shown = show(out, columns, whole)
    about = [result.meaning(rows) for result in found if result.name in shown]
    paragraph(out, " ".join(dict.fromkeys(filter(None, about))))
    _explain_disturbances(rows)
    for sentence in filter(None, [*verdicts(rows), small_microbatches(rows)]):
        paragraph(out, sentence, style="")
    for row in rows:
        if row.message and len(rows) > 1:  # a single failure has just been shown
            error(f"{row.folder}: {row.message}")


def swept_columns(texts: dict[str, list[str]]) -> list[Column]:
    """Return the columns of swept keys; numbers are aligned on the right, and the name of an option is never cut."""
    return [Column(key, values, _side(values), SWEPT, LONG if "." in key else None) for key, values in texts.items()]


def _side(values: Sequence[str]) -> Literal["left", "right"]:
    try:
        list(map(float, values))
    except ValueError:
        return "left"
    return "right"


def _explain_disturbances(rows: Sequence[PointRow]) -> None:
    """Say what the reasons in the column `disturbed` mean and what to do, if a run has one."""
    kinds = {each.kind for row in rows for each in row.disturbed}
    if kinds:
        number = sum(bool(row.disturbed) for row in rows)
        which = f"{number} of {len(rows)} runs" if len(rows) > 1 else "this run"
        again = " with again=true" if len(rows) > 1 else ""
        remedy = f"run again{again} on an idle machine"
        if any(row.disturbed and row.is_crowded for row in rows):
            remedy = "more ranks than cores measure the cores: use fewer ranks, or device=emulated"
        meanings = ". ".join(f"{kind}: {text}" for kind, text in DISTURBANCES.items() if kind in kinds)
        paragraph(out, f"disturbed: {which}; {remedy}. {meanings}.", style="yellow")
