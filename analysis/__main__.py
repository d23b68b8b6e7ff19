"""`python -m analysis [OUTPUTS]`: every figure and the report, from the files of finished runs.

::

    outputs/runs, outputs/sweeps ──► outputs/report/<figure>.svg .png .csv
                                                    report.md  report.html

An experiment is a module of this package with a function `exhibits(store)`, which draws the sweep
of the module's name. The first line of its docstring is the title of its section. Sweeps without
a module are drawn as by `python -m analysis.sweep`.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterator

from rich.console import Console
from rich.progress import track

from analysis import page, sweep
from analysis.command import (
    ANY_RUN,
    answer_of,
    command_parser,
    nothing,
    open_store,
    print_missing,
    print_unreadable,
    save,
)
from analysis.overview import overview, without_result
from analysis.page import Report, Section
from microp.records import RecordError
from microp.results import Store
from microp.system import about_sweep, run_command, sweep_names

EXPERIMENTS = (  # each draws the runs of sweeps/<name>.yaml
    "m_sensitivity",
    "checkpoint_overhead",
    "partition_skew",
    "schedules",
    "hop_latency",
    "engine_speed",
    "gradient_sync",
    "hybrid",
)
OVER_ALL_RUNS = ("prediction", "rank_time")
MOST_SWEEPS = 6  # the newest of the user's own sweeps


def sections(store: Store) -> Iterator[Section]:
    """Yield the user's own sweeps, the experiments and what uses all runs, in the order of the page."""
    yield own_sweeps(store)
    for name in (*EXPERIMENTS, *OVER_ALL_RUNS):
        module = importlib.import_module(f"analysis.{name}")
        missing = store.missing(name) if name in EXPERIMENTS else []
        started = name not in EXPERIMENTS or bool(store.points(name))
        title = str(module.__doc__).splitlines()[0].rstrip(".")
        exhibits = module.exhibits(store)
        yield Section(name, title, answer_of(name, store), exhibits, missing, started)
    drawn_as_own = [name for name in sweep_names() if not name.endswith("_quick") and name not in EXPERIMENTS]
    for name in drawn_as_own:
        if not store.points(name):
            yield Section(name, about_sweep(name)[0].rstrip("."), "", [], store.missing(name), False)


def own_sweeps(store: Store) -> Section:
    """Return the section of the sweeps that have no module, newest first; sweeps of the same runs count once."""
    plans = {frozenset(point.run_id for point in plan.points): plan for plan in store.plans}
    newest = sorted((plan for plan in plans.values() if plan.experiment not in EXPERIMENTS), reverse=True)
    made = (sweep.of_plan(store, plan) for plan in newest[:MOST_SWEEPS])
    drawn = [exhibit for exhibit in made if exhibit is not None]
    missing = [command for exhibit in drawn for command in exhibit.missing]
    return Section("own-sweeps", "Your own sweeps, newest first", "", drawn, missing)


def main(arguments: list[str] | None = None) -> int:
    """Write every figure and the report; print their files and the commands of missing points."""
    parser = command_parser("analysis", main.__doc__, takes_outputs=True)
    options = parser.parse_args(arguments)
    store, folder = open_store(options), options.outputs / "report"
    runs = store.runs()
    print_unreadable(store)
    if runs.empty:
        parser.error(nothing(options.outputs, ANY_RUN))
    made: list[Section] = []
    console = Console(stderr=True)
    total = len(EXPERIMENTS) + len(OVER_ALL_RUNS) + 1
    quiet = not console.is_terminal
    try:
        for section in track(sections(store), "figures", total, console=console, transient=True, disable=quiet):
            save(section.exhibits, folder)
            made.append(section)
        own, *others = made
        parts = others[: len(EXPERIMENTS)], others[len(EXPERIMENTS) :]
        report = Report(overview(store), own, *parts, without_result(store))
        texts = {"report.md": page.markdown(report), "report.html": page.html(report, folder, runs)}
    except RecordError as error:
        parser.error(str(error))
    for name, text in texts.items():
        (folder / name).write_text(text)
        print(folder / name)
    missing = [command for section in made if section.started for command in section.missing]
    print_missing(missing, [section.missing[0] for section in made if not section.started])
    print(f"open  {folder / 'report.html'}")
    return 0


if __name__ == "__main__":
    run_command(main)
