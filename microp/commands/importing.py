"""Reads the trace of another program's pipeline as a run: the task of `python -m microp.import_trace`.

::

    files ─► steps on one clock ─► outputs/runs/<run>/ and what there is to see
                                   --replay   --what-if KEY=VALUE ...   --profile FILE   --csv FILE
"""

from __future__ import annotations

import argparse
import shlex
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from statistics import median
from typing import Any

import yaml

from microp import trace
from microp.foreign import (
    UNKNOWN,
    Aligned,
    Names,
    Steps,
    TraceError,
    align,
    make_steps,
    named,
    profile_of,
    read_lanes,
    record,
    step_rows,
    what_if,
)
from microp.profiling import to_plain
from microp.records import WriteError, write_text
from microp.schedule import Schedule, to_torch_csv
from microp.simulator import Costs, Simulated, calibrate_steps, critical_path, replay_steps
from microp.system import CommandParser, redact_words
from microp.terminal import console
from microp.terminal.columns import Column, show

ROWS = 32  # the most ranks of a timeline
EPILOG = """\
FILE is a trace of torch.profiler (a file per rank, also .gz), other Chrome or
Perfetto JSON with a lane per rank, or a CSV with the columns rank, op, stage,
microbatch, start, end.

  python -m microp.import_trace traces/rank*.json
  python -m microp.import_trace traces/rank*.json --what-if schedule=zb_h1 chunks=32
  python -m microp.import_trace traces/rank*.json --profile gpu.yaml

exit code: 0; 1 if a file cannot be written; 2 for bad input"""


def main(arguments: list[str] | None = None) -> int:
    """Read, record and show a trace and return the exit code: 0; 1 if a file cannot be written; 2 for bad input.

    Raises:
        SystemExit: 2 for wrong options, 0 after `--help`.
    """
    options = _read_options(arguments)
    try:
        _import(options)
    except TraceError as error:
        console.error(str(error))
        return 2
    except WriteError as error:
        console.error(str(error))
        return 1
    return 0


def _read_options(arguments: list[str] | None) -> argparse.Namespace:
    parser = CommandParser(
        prog="python -m microp.import_trace",
        description="reads the trace of another program's pipeline as a run.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("files", nargs="+", type=Path, metavar="FILE", help="the traces of all ranks of one pipeline")
    parser.add_argument("--name", help="the run's folder below outputs/runs")
    parser.add_argument("--output-dir", type=Path, default=Path("outputs"), help="default: outputs")
    parser.add_argument("--names", type=Path, metavar="YAML", help="what the ranges of this trace are called")
    parser.add_argument("--replay", action="store_true", help="simulate the step with its own times, and draw both")
    parser.add_argument("--what-if", nargs="+", metavar="KEY=VALUE", help="another schedule, chunks or partition")
    parser.add_argument("--layers", help="the layers of each stage, as 4,4,5,3")
    parser.add_argument("--profile", type=Path, metavar="YAML", help="write a profile, for device=FILE")
    parser.add_argument(
        "--rows", type=float, default=1.0, help="the rows of a microbatch, for the profile (default: 1)"
    )
    parser.add_argument("--csv", type=Path, help="write the order, or that of --what-if, for torchtitan")
    options = parser.parse_intermixed_args(arguments)
    given = [part.strip() for part in (options.layers or "").strip("[]").split(",") if part.strip()]
    if not all(part.isdecimal() and 0 < int(part) < 100_000 for part in given):
        parser.error(f"--layers {options.layers}: give the number of layers of each stage, as 4,4,5,3")
    options.layers = list(map(int, given))
    if not 0 < options.rows < 1e9:
        parser.error(f"--rows {options.rows:g}: give the rows of a microbatch, above 0")
    if options.name is not None and (Path(options.name).name != options.name or options.name.startswith(".")):
        parser.error(f"--name {options.name}: give the name of a folder, without /")
    return options


def _import(options: argparse.Namespace) -> None:
    # 1. read
    with console.err.status("reading the trace"):
        lanes, notes = read_lanes(options.files, Names(options.names))
        found = make_steps(lanes)
        aligned = align(found)
    schedule = named(found.schedule)
    if options.layers and len(options.layers) != schedule.stages:
        raise TraceError(f"--layers has {len(options.layers)} numbers for {schedule.stages} stages: give one per stage")
    for note in (*notes, *found.notes, *aligned.notes):
        console.warn(note)
    rows: list[list[Any]] = step_rows(aligned, found.lanes)
    last = list(aligned.spans.values())[-1]
    costs, replayed = calibrate_steps(schedule, rows, last), replay_steps(schedule, rows, last)
    # 2. record
    about = {
        "command": redact_words(sys.argv),
        "notes": [*notes, *found.notes, *aligned.notes],
        "clocks": clocks(aligned),
    }
    attempt, summary = record(options.output_dir, schedule, aligned, rows, found.lanes, about, options.name)
    # 3. show
    _show(schedule, aligned, summary, replayed if options.replay else None)
    console.out.print(f"{attempt}", soft_wrap=True, markup=False)
    # 4. what is asked besides
    order = schedule
    if options.what_if:
        order = _answer(options.what_if, schedule, costs, replayed, options.layers)
    if options.profile:
        _write_profile(options, schedule, aligned, found)
    if options.csv:
        write_text(options.csv, to_torch_csv(order))
        console.out.print(about_csv(options.csv, order), soft_wrap=True, markup=False)


def clocks(aligned: Aligned) -> str:
    """Return how well the clocks of the ranks agree."""
    residual = f"within {aligned.residual / 1e6:.3g} ms"
    if not aligned.corrected:
        return f"clocks: as they are, no receive ends before its send began; they agree {residual}"
    return f"clocks: corrected by up to {aligned.corrected / 1e6:.4g} ms; they agree {residual}"


def _show(schedule: Schedule, aligned: Aligned, summary: dict[str, Any], replayed: Simulated | None) -> None:
    """Print the step, the bubbles, where the time went, and the drawing of the last step."""
    every = list(aligned.spans.values())
    known = f"the order is {schedule.name}" if schedule.name != UNKNOWN else "the order is none of microp's"
    print_line(f"{len(schedule.ranks)} ranks, {schedule.chunks} microbatches, {len(every)} steps; {known}")
    makespans = [float(trace.makespan(spans)) / 1e6 for spans in every]
    print_line(f"step {_spread(makespans, '.4g')} ms, from the first action's start to the last one's end")
    for name, of in (
        ("gpipe, idle / total", trace.bubble_fraction),
        ("megatron, idle / ideal", trace.megatron_bubble),
        ("zero bubble, of the longest span", trace.zero_bubble_rate),
    ):
        print_line(f"bubble {_spread([float(of(spans)) for spans in every], '.4f')}  {name}")
    print_line(clocks(aligned))
    peaks = ", ".join(f"{peak:g}" for peak in summary["in_flight_peak"])
    print_line(f"microbatches in flight, the most of each rank: {peaks}")
    times = {kind: values for kind, values in summary["time_ms"].items() if any(values)}
    ranks = Column("ms", [f"rank {rank}" for rank in range(len(schedule.ranks))], "left", 1)
    show(
        console.out,
        [ranks, *(Column(kind, [f"{v:.2f}" for v in values]) for kind, values in times.items())],
        "summary.json",
    )
    panels: dict[str, Any] = {"measured": trace.as_spans(every[-1])}
    if replayed is not None:
        in_ns = trace.as_spans([_in_ns(span) for span in replayed])
        panels = {"replayed": in_ns, **panels}
        error = 100 * (float(trace.makespan(replayed)) / median(makespans) - 1)
        print_line(f"replayed {float(trace.makespan(replayed)):.4g} ms, {error:+.1f} % of the median step")
    path = critical_path(replayed) if replayed is not None else []
    if path:
        shares = [sum(float(s.end - s.start) for s in path if s.rank == rank) for rank in range(len(schedule.ranks))]
        parts = ", ".join(
            f"rank {rank} {100 * share / sum(shares):.0f} %" for rank, share in enumerate(shares) if share
        )
        print_line(f"critical path of the replay: {len(path)} actions; {parts}")
    shown = trace.screen()
    print(
        shown.text(
            trace.timeline(panels, shown.columns, ROWS, in_header=() if len(every[-1]) <= trace.DRAWN else panels)
        )
    )


def _in_ns(span: trace.Span) -> trace.Span:
    return span._replace(**{moment: round(getattr(span, moment) * 1e6) for moment in trace.MOMENTS})


def _spread(values: Sequence[float], form: str) -> str:
    """Return the median with the least and the most."""
    middle = f"{median(values):{form}}"
    return middle if len(values) == 1 else f"{middle} ({min(values):{form}} - {max(values):{form}})"


def _answer(
    words: Sequence[str], schedule: Schedule, costs: Costs, replayed: Simulated, layers: Sequence[int]
) -> Schedule:
    """Print what another order would take; return that order."""
    answer = what_if(words, schedule, costs, layers)
    time, before = float(trace.makespan(answer.spans)), float(trace.makespan(replayed))
    per_microbatch = time / answer.schedule.chunks / (before / schedule.chunks) - 1
    print_line(
        f"what if {shlex.join(words)}: step {time:.4g} ms, {100 * per_microbatch:+.1f} % per microbatch; bubble "
        f"{float(trace.bubble_fraction(answer.spans)):.4f} for {float(trace.bubble_fraction(replayed)):.4f} replayed; "
        f"in flight at most {max(trace.in_flight_peak(answer.spans).values())}"
    )
    _assumed(answer.notes)
    return answer.schedule


def _assumed(notes: Iterable[str]) -> None:
    for note in notes:
        print_line(f"  assumed: {note}")


def _write_profile(options: argparse.Namespace, schedule: Schedule, aligned: Aligned, found: Steps) -> None:
    profile, notes = profile_of(schedule, aligned, found.lanes, options.layers, options.rows)
    text = yaml.safe_dump(to_plain(profile), sort_keys=False, default_flow_style=None, width=120)
    write_text(
        options.profile, f"# Times of {listed_files(options.files)}; made by python -m microp.import_trace\n{text}"
    )
    print_line(f"profile of {sum(options.layers) or profile.model['layers']} layers: {options.profile}")
    _assumed(notes)
    words = [f"device={options.profile}", f"model.layers={profile.model['layers']}", f"ranks={len(schedule.ranks)}"]
    print_line(f"  python -m microp.plan {shlex.join([*words, f'batch_size={profile.batch_size}'])}")


def listed_files(files: Sequence[Path]) -> str:
    """Return the first file and the number of the others."""
    return f"{files[0]}" + (f" and {len(files) - 1} more" if len(files) > 1 else "")


def about_csv(path: Path, order: Schedule) -> str:
    """Return how an order is used that was written as torch's CSV."""
    return (
        f"{path}: for torchtitan set parallelism.pipeline_parallel_schedule=_PipelineScheduleRuntime and "
        f"parallelism.pipeline_parallel_schedule_csv={path}, with {order.stages} stages and {order.chunks} "
        "microbatches. torch's _PipelineScheduleRuntime runs any order; PipelineScheduleMulti those without V placement; microp with "
        f"schedule=file schedule.path={path}; Megatron and DeepSpeed have orders of their own"
    )


def print_line(text: str) -> None:
    """Print a line of the answer, however long it is."""
    console.out.print(text, soft_wrap=True, markup=False)
