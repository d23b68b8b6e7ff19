"""`python -m analysis [OUTPUTS]`: every figure and the report, from the files of finished runs.

::

    outputs/runs, outputs/sweeps ──► outputs/report/<figure>.svg .png .csv
                                                    report.md  report.html

An experiment is a module of this package, which draws the sweep of the module's name; see `section`. The first line of
its docstring is the title of its section. Sweeps without a module are drawn as by `python -m analysis.sweep`.
"""

from __future__ import annotations

from collections.abc import Iterator

from analysis import command, page, sweep
from analysis.exhibit import Section
from microp.records import RecordError
from microp.results import Store
from microp.system import about_sweep, run_command, sweep_names
from microp.terminal import bar, read_store

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
MOST_SWEEPS = 6  # the newest of the user's own sweeps


def sections(store: Store) -> Iterator[Section]:
    """Yield the user's own sweeps, the experiments and what uses all runs, in the order of the page."""
    yield own_sweeps(store)
    for name in (*EXPERIMENTS, *command.OVER_ALL_RUNS):
        yield command.section(name, store)
    for name in [name for name in sweep_names() if not name.endswith("_quick") and name not in EXPERIMENTS]:
        if not store.points(name):
            yield Section(name, about_sweep(name)[0].rstrip("."), "", [], store.missing(name), False)


def own_sweeps(store: Store) -> Section:
    """Return the section of the sweeps that have no module, newest first; sweeps of the same runs count once."""
    plans = {frozenset(point.run_id for point in plan.points): plan for plan in store.plans}
    newest = sorted((plan for plan in plans.values() if plan.experiment not in EXPERIMENTS), reverse=True)
    drawn = [(plan, exhibit) for plan in newest[:MOST_SWEEPS] if (exhibit := sweep.of_plan(store, plan))]
    missing = [each for plan, _ in drawn for each in store.unfinished(plan.points)]
    return Section("own-sweeps", "Your own sweeps, newest first", "", [exhibit for _, exhibit in drawn], missing)


def main(arguments: list[str] | None = None) -> int:
    """Write every figure and the report; print their files and the commands of missing points."""
    parser = command.command_parser("analysis", main.__doc__, takes_outputs=True)
    options = parser.parse_args(arguments)
    store = read_store(options.outputs, options.schedule)
    command.check_schedules(parser, options.outputs, options.schedule, store.schedules_of())
    runs, folder = store.runs(), command.figures_in(options.outputs / "report", options)
    command.print_unreadable(store)
    if runs.empty:
        parser.error(command.nothing(options.outputs, command.ANY_RUN))
    made: list[Section] = []
    total = len(EXPERIMENTS) + len(command.OVER_ALL_RUNS) + 2
    try:
        with bar("report") as tell:
            for number, part in enumerate(sections(store), 1):
                command.save(part.exhibits, folder)
                made.append(part)
                tell(min(number, total - 1) / total)
            own, *others = made
            values = page.values(store, own, others[: len(EXPERIMENTS)], others[len(EXPERIMENTS) :])
            texts = {"report.md": page.render("report.md.j2", **values), "report.html": page.html(values, folder, runs)}
    except RecordError as error:
        parser.error(str(error))
    for name, text in texts.items():
        (folder / name).write_text(text)
        print(folder / name)
    missing = [each for part in made if part.started for each in part.missing]
    command.print_missing(missing, [part.missing[0] for part in made if not part.started])
    print(f"open  {folder / 'report.html'}")
    return 0


if __name__ == "__main__":
    run_command(main)
