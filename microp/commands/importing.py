"""Reads the trace of another program's pipeline as a run: the task of `python -m microp.import_trace`."""

from __future__ import annotations

import argparse
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Any

import yaml

from microp import foreign, trace
from microp.config import ConfigError, SimulateConfig, compose_config, make_pricing_job, read_config
from microp.profiling import to_plain
from microp.records import WriteError, write_text
from microp.schedule import Schedule, to_torch_csv
from microp.schedule.builders import LOOPED, ORDERS
from microp.simulator import Simulated, calibrate_steps, critical_path, replay_steps
from microp.system import CommandParser, redact_words
from microp.terminal import columns, console

ROWS = 32  # the most ranks of a timeline
BUBBLES = {  # with the definitions of `trace.metrics`
    "gpipe, idle / total": trace.bubble_fraction,
    "megatron, idle / ideal": trace.megatron_bubble,
    "zero bubble, idle / longest span of a rank": trace.zero_bubble_rate,
}
ENGINES = """torchtitan runs it with
  --parallelism.pipeline_parallel_schedule _PipelineScheduleRuntime
  --parallelism.pipeline_parallel_schedule_csv {0}
torch by _load_csv of that class, microp with schedule=file schedule.path={0}; Megatron and DeepSpeed run only orders of
their own"""
EPILOG = """\
FILE: traces of torch.profiler, one per rank (also .gz); other Chrome or
Perfetto JSON with a lane per rank; or CSV with the columns rank, op, stage,
microbatch, start, end.

  python -m microp.import_trace rank*.json --replay
  python -m microp.import_trace rank*.json --what-if schedule=zb_h1 chunks=32
  python -m microp.import_trace rank*.json --profile gpu.yaml

exit code: 0; 1 if a file cannot be written; 2 for bad input"""


def main(arguments: list[str] | None = None) -> int:
    """Read, record and show a trace and return the exit code: 0; 1 if a file cannot be written; 2 for bad input.

    Raises:
        SystemExit: 2 for wrong options, 0 after `--help`.
    """
    try:
        _import(_read_options(arguments))
    except (foreign.TraceError, ConfigError, WriteError) as error:
        console.error(str(error).splitlines()[0])
        return 1 if isinstance(error, WriteError) else 2
    return 0


def _read_options(arguments: list[str] | None) -> argparse.Namespace:
    parser = CommandParser(
        prog="python -m microp.import_trace",
        description="reads the trace of another program's pipeline as a run.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("files", nargs="+", type=Path, metavar="FILE", help="the traces of all ranks of one pipeline")
    add("--name", help="the run's folder in outputs/runs")
    add("--output-dir", type=Path, default=Path("outputs"), help="default: outputs")
    add("--names", type=Path, metavar="YAML", help="what the ranges of this trace are called")
    add("--replay", action="store_true", help="simulate the step with its own times, and draw both")
    add("--what-if", nargs="+", metavar="KEY=VALUE", help="another schedule, chunks or partition")
    add("--layers", default="", help="the layers of each stage, as 4,4,5,3")
    add("--profile", type=Path, metavar="YAML", help="write a profile, for device=FILE")
    add("--rows", type=int, default=1, help="of a microbatch, for the profile (default: 1)")
    add("--csv", type=Path, help="write the order, or that of --what-if, for torchtitan")
    options = parser.parse_intermixed_args(arguments)
    options.layers = _numbers("--layers", options.layers)
    if not 0 < options.rows < 1_000_000:
        parser.error(f"--rows {options.rows}: give the rows of a microbatch, from 1")
    if options.name is not None and not options.name.replace("-", "").replace("_", "").isalnum():
        parser.error(f"--name {options.name}: use letters, digits, - and _")
    return options


def _numbers(name: str, text: str) -> list[int]:
    """Return the numbers of layers in a text such as `4,4,5,3`."""
    parts = [part.strip() for part in text.strip("[]").split(",") if part]
    if not all(part.isdecimal() and 0 < int(part) < 100_000 for part in parts):
        raise foreign.TraceError(f"{name} {text}: give the number of layers of each stage, as 4,4,5,3")
    return list(map(int, parts))


def _order_of(words: Sequence[str], traced: Schedule) -> tuple[Schedule, list[int]]:
    """Return the order that words of `microp.simulate` ask for, by default that of the trace, and its partition."""
    sizes = [word.partition("=")[2] for word in words if word.startswith("partition=")]
    mine = [f"ranks={len(traced.ranks)}", f"chunks={traced.chunks}", "costs.forward=1", "costs.backward=1"]
    if traced.name in ORDERS and not any(word.startswith("schedule=") for word in words):
        per_rank = f"schedule.stages_per_rank={traced.stages // len(traced.ranks)}"
        mine += [f"schedule={traced.name}", *[per_rank] * (traced.name in LOOPED)]
    asked = [*mine, *(word for word in words if not word.startswith("partition="))]
    config = read_config(compose_config(*asked, name="simulate"))
    assert isinstance(config, SimulateConfig)
    return make_pricing_job(config).schedule, _numbers("partition", "".join(sizes[-1:]))


def _import(options: argparse.Namespace) -> None:
    # 1. read
    with console.err.status("reading the trace"):
        lanes, notes = foreign.read_lanes(options.files, foreign.Names(options.names))
        found = foreign.make_steps(lanes)
        aligned = foreign.align(found)
        rows: list[list[Any]] = foreign.step_rows(aligned, found.lanes)
    schedule, last, layers = aligned.schedule, list(aligned.spans.values())[-1], options.layers
    if layers and len(layers) != schedule.stages:
        raise foreign.TraceError(f"--layers has {len(layers)} numbers for {schedule.stages} stages: give one per stage")
    costs, replayed = calibrate_steps(schedule, rows, last), replay_steps(schedule, rows, last)
    answer = None
    if options.what_if:
        order, sizes = _order_of(options.what_if, schedule)
        answer = foreign.what_if(order, sizes, schedule, costs, layers)
    notes += [*found.notes, *aligned.notes]
    for note in notes:
        console.warn(note)
    # 2. record and show
    about = {"command": redact_words(sys.argv), "notes": notes, "clocks": aligned.clocks}
    attempt, summary = foreign.record(options.output_dir / "runs", aligned, rows, found.lanes, about, options.name)
    _show(aligned, summary, replayed, options.replay)
    _say(f"{attempt}")
    # 3. what is asked besides
    if answer:
        then, now = (float(trace.makespan(spans)) for spans in (answer.spans, replayed))
        rate = 100 * ((then / answer.schedule.chunks) / (now / schedule.chunks) - 1)
        bubbles = [f"{float(trace.bubble_fraction(spans)):.4f}" for spans in (answer.spans, replayed)]
        _say(f"what if {shlex.join(options.what_if)}: step {then:.4g} ms, {rate:+.1f} % per microbatch than the replay")
        _say(f"  bubble {' for '.join(bubbles)}; in flight at most {max(trace.in_flight_peak(answer.spans).values())}")
        _say(*(f"  assumed: {note}" for note in answer.notes))
    if options.profile:
        profile, assumed = foreign.profile_of(aligned, found.lanes, costs, layers, options.rows)
        write_text(options.profile, yaml.safe_dump(to_plain(profile), sort_keys=False, width=120))
        words = [f"device={options.profile}", f"model.layers={profile.model['layers']}", f"ranks={len(schedule.ranks)}"]
        _say(f"profile {options.profile}: python -m microp.plan {shlex.join(words)} batch_size={profile.batch_size}")
        _say(*(f"  assumed: {note}" for note in assumed))
    if options.csv:
        order, path = answer.schedule if answer else schedule, options.csv
        write_text(path, to_torch_csv(order))
        _say(f"{path}: {order.stages} stages, {order.chunks} microbatches; {ENGINES.format(path)}")


def _show(aligned: foreign.Aligned, summary: dict[str, Any], replayed: Simulated, is_drawn: bool) -> None:
    """Print the step, the bubbles, where the time went, and the last step, below its replay if that is drawn."""
    schedule, every = aligned.schedule, list(aligned.spans.values())
    order = (
        "an order that microp does not build" if schedule.name == foreign.UNKNOWN else f"the order is {schedule.name}"
    )
    makespans = [float(trace.makespan(spans)) / 1e6 for spans in every]
    _say(
        f"{len(schedule.ranks)} ranks, {schedule.chunks} microbatches, {len(every)} steps; {order}",
        f"step {_spread(makespans, '.4g')} ms, from the first start of an action to the last end",
        *(f"bubble {_spread([float(of(each)) for each in every], '.4f')}  {name}" for name, of in BUBBLES.items()),
        aligned.clocks,
        f"microbatches in flight, at most: {', '.join(f'{peak:g}' for peak in summary['in_flight_peak'])}",
    )
    times = {kind: [f"{value:.2f}" for value in values] for kind, values in summary["time_ms"].items() if any(values)}
    ranks = columns.Column("last step, ms", [f"rank {rank}" for rank in range(len(schedule.ranks))], "left", 1)
    columns.show(console.out, [ranks, *(columns.Column(*column) for column in times.items())], "summary.json")
    path, time = critical_path(replayed), float(trace.makespan(replayed))
    on = [sum(float(s.end - s.start) for s in path if s.rank == rank) for rank in range(len(schedule.ranks))]
    shares = ", ".join(f"rank {rank} {100 * part / time:.0f} %" for rank, part in enumerate(on) if part)
    _say(f"critical path of the replayed step: {len(path)} actions; {shares}")
    panels: dict[str, Any] = {"measured": every[-1]}
    if is_drawn:
        moments = [{each: round(getattr(span, each) * 1e6) for each in trace.MOMENTS} for span in replayed]
        panels = {"replayed": [s._replace(**own) for s, own in zip(replayed, moments, strict=True)], **panels}
        _say(f"replayed {time:.4g} ms, {100 * (time / median(makespans) - 1):+.1f} % of the median step")
    if len(every[-1]) <= trace.DRAWN:
        shown = trace.screen()
        print(shown.text(trace.timeline(panels, shown.columns, ROWS)))


def _spread(values: Sequence[float], form: str) -> str:
    """Return the median with the least and the most."""
    middle = f"{median(values):{form}}"
    return middle if len(values) == 1 else f"{middle} ({min(values):{form}} - {max(values):{form}})"


def _say(*lines: str) -> None:
    for line in lines:
        console.out.print(line, soft_wrap=True, markup=False)
