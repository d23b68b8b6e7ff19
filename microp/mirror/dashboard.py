"""Builds the W&B dashboard of an experiment from its recorded runs: two workspaces, as values.

::

    outputs/runs ─ subject_of ─► what varied, which numbers there are ── workspaces ─► NAME: runs, NAME: ranks
                                                                             │
                                                       save ─► a server  ────┴──── specification ─► JSON

A panel is made only for names that the recorded runs have.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from microp.job import NOT_ASKED
from microp.mirror.content import run_summary
from microp.records import RecordError, attempts, check_attempt
from microp.system import flatten, out_of_reach

_FIGURES = {  # what an experiment is about, in the order of the panels; those that its runs have are shown
    "step_ms": "step time, ms (median)",
    "bubble.measured": "bubble (idle / total)",
    "engines.ratio.torch/microp": "torch over microp, time of forward and backward",
    "reduction.exposed_ms": "wait for the sums over replicas, ms",
    "peak_memory_mib.max": "peak memory of the fullest rank, MiB",
}
_AGAINST = (("replayed.bubble", "bubble.measured"), ("replayed.step_ms", "step_ms"), ("peak_memory_mib.max", "step_ms"))
_OF_RANKS = ("own_step_ms", "wait_ms", "compute_ms", "optimizer_ms", "loss")
_HOW = ("repeat", "steps", "warmup_steps")  # of a run's length, no question
_AXES = 4  # swept numbers that get panels


@dataclass(frozen=True)
class Subject:
    """What a dashboard is about."""

    name: str  # the experiment, or `all runs`
    entity: str  # the W&B team or user
    project: str  # the W&B project
    tag: str | None  # the tag of its W&B runs; None for all runs
    numbers: tuple[str, ...]  # the keys of the configuration with different numbers, such as `chunks`
    words: tuple[str, ...]  # the keys of the configuration with different words, such as `schedule.name`
    figures: frozenset[str]  # the names in the summaries of the summary runs


def subject_of(
    outputs: Path,
    experiment: str | None,
    entity: str | None,
    project: str | None,
    varied: Callable[[Sequence[dict[str, Any]]], Iterable[str]],
) -> Subject:
    """Read what the finished runs of an experiment (None: all) varied, and which figures they have.

    Entity and project are those of the runs if they are None; `varied` finds the keys that tell configurations apart,
    as the table of a sweep does.

    Raises:
        RecordError: there are no such runs.
    """
    runs, known = [], set()
    for attempt in attempts(outputs):
        try:
            status, config, env, summary = check_attempt(attempt)
        except RecordError:  # `python -m analysis` names the runs that cannot be read
            continue
        name = env.get("experiment")
        known |= {name} if name else set()
        if status["status"] == "finished" and summary and experiment in (None, name):
            runs.append((config, flatten(run_summary(summary))))
    if not runs:
        have = f"it has {', '.join(sorted(known))}" if known else "it has no experiments"
        raise RecordError(f"{outputs} has no finished runs{f' of {experiment}' if experiment else ''}: {have}")
    configs = [{key: value for key, value in config.items() if key not in NOT_ASKED} for config, _ in runs]
    values: dict[str, list[Any]] = {}
    for config in configs:
        for key, value in flatten(config).items():
            values.setdefault(key, []).append(value)
    keys = [key for key in varied(configs) if key not in _HOW]
    keys.sort(key=lambda key: -len(set(map(str, values[key]))))  # the axes of a sweep before what its parts change
    is_number = {key: all(type(value) in (int, float) for value in values[key]) for key in keys}
    tracking = runs[-1][0]["tracking"]
    return Subject(
        experiment or "all runs",
        entity or tracking["entity"] or "",
        project or tracking["project"],
        experiment,
        tuple(key for key in keys if is_number[key]),
        tuple(key for key in keys if not is_number[key]),
        frozenset(key for _, summary in runs for key in summary),
    )


def workspaces(subject: Subject) -> list[Any]:
    """Return the two workspaces of a dashboard: of the runs, and of their ranks."""
    import wandb_workspaces.workspaces as ws

    def workspace(job: str, name: str, sections: Mapping[str, Sequence[Any]]) -> Any:
        return ws.Workspace(
            entity=subject.entity,
            project=subject.project,
            name=f"microp {subject.name}: {name}",
            sections=[ws.Section(name=title, panels=list(panels), is_open=True) for title, panels in sections.items()],
            runset_settings=ws.RunsetSettings(
                filters=ws.And(ws.Metric("JobType") == job, *([ws.Tags().isin([subject.tag])] if subject.tag else [])),
            ),
        )

    return [workspace("summary", "runs", _run_panels(subject)), workspace("rank", "ranks", _rank_panels())]


def specification(subject: Subject) -> dict[str, Any]:
    """Return the whole dashboard as it is sent to a server, as plain values for JSON."""
    return {"workspaces": [each._to_model().model_dump(mode="json", by_alias=True) for each in workspaces(subject)]}


def panel_lines(subject: Subject) -> list[str]:
    """Return a line per panel: its workspace, its section, its kind and its title."""
    lines = []
    for workspace, sections in (("runs", _run_panels(subject)), ("ranks", _rank_panels())):
        for section, panels in sections.items():
            lines += [f"{workspace}: {section}: {type(panel).__name__}: {panel.title}" for panel in panels]
    return lines


def save(subject: Subject) -> list[str]:
    """Make the dashboard on the W&B server and return the addresses of its parts.

    Raises:
        ConnectionError: the server cannot be reached.
        Exception: whatever W&B raises.
    """
    if away := out_of_reach():
        raise ConnectionError(away)
    import wandb

    subject = replace(subject, entity=subject.entity or str(wandb.Api().default_entity))
    return [str(each.save().url) for each in workspaces(subject)]


def _run_panels(subject: Subject) -> dict[str, list[Any]]:
    """Return the panels of the summary runs by section."""
    import wandb_workspaces.reports.v2 as wr

    def scatter(x: Any, y: str, title: str) -> Any:
        legend = "${run:displayName}"
        return wr.ScatterPlot(title=title, x=x, y=wr.SummaryMetric(y), legend_template=legend)

    shown = {name: title for name, title in _FIGURES.items() if name in subject.figures}
    question = [
        scatter(wr.Config(key), name, f"{title} over {key}")
        for key in subject.numbers[:_AXES]
        for name, title in shown.items()
    ]
    metrics = [*map(wr.Config, (*subject.words, *subject.numbers)), *map(wr.SummaryMetric, shown)]
    pairs = [pair for pair in _AGAINST if {*pair} <= subject.figures]
    against = [scatter(wr.SummaryMetric(x), y, f"{y} against {x}") for x, y in pairs]
    by = wr.Config("schedule.name")
    bars = [wr.BarPlot(title=f"{title} by schedule", metrics=[name], groupby=by) for name, title in shown.items()]
    parallel = wr.ParallelCoordinatesPlot(
        title="from what was swept to the figures",
        columns=[wr.ParallelCoordinatesPlotColumn(metric=metric) for metric in metrics],
    )
    return {
        "What was asked": [*question, *bars, parallel],
        "Replayed against measured, memory against time": against,
        "Timelines": [wr.MediaBrowser(title="last measured step", media_keys=["timeline"])],
    }


def _rank_panels() -> dict[str, list[Any]]:
    """Return the panels of the rank runs by section."""
    import wandb_workspaces.reports.v2 as wr

    plots = [wr.LinePlot(title=name, x="step", y=[name], groupby=wr.Config("rank")) for name in _OF_RANKS]
    return {"Ranks, step by step": plots}
