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
from microp.records import WriteError, read_traced_step, write_text
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
  --parallelism.pipeline_parallel_schedule _PipelineScheduleRuntime --parallelism.pipeline_parallel_schedule_csv {0}
torch by _load_csv of that class, microp with schedule=file schedule.path={0}; Megatron, DeepSpeed only their own"""


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
        epilog="exit code: 0; 1 if a file cannot be written; 2 for bad input",
    )
    add = parser.add_argument
    files = (
        "traces of torch.profiler, one per rank of a pipeline (also .gz); Chrome or Perfetto JSON with a lane per rank"
    )
    add("files", nargs="+", type=Path, metavar="FILE", help=f"{files}; or CSV: rank, op, stage, microbatch, start, end")
    add("--name", help="the run's folder in outputs/runs")
    add("--output-dir", type=Path, default=Path("outputs"), help="default: outputs")
    add("--names", type=Path, metavar="YAML", help="what the ranges of this trace are called")
    add("--replay", action="store_true", help="simulate the step with its own times, and draw both")
    add("--what-if", nargs="+", metavar="KEY=VALUE", help="another order: schedule=zb_h1 chunks=32 partition=8,8")
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
        read = foreign.read_lanes(options.files, foreign.read_names(options.names))
        traced = foreign.align(foreign.make_steps(*read))
        rows: list[list[Any]] = foreign.step_rows(traced)
    order, last, layers = traced.schedule, list(traced.spans.values())[-1], options.layers
    if layers and len(layers) != order.stages:
        raise foreign.TraceError(f"--layers has {len(layers)} numbers for {order.stages} stages: give one per stage")
    costs, replayed = calibrate_steps(order, rows, last), replay_steps(order, rows, last)
    if options.what_if:
        order, sizes = _order_of(options.what_if, traced.schedule)
        answer, assumed = foreign.what_if(order, sizes, traced.schedule, costs, layers)
    for note in traced.notes:
        console.warn(note)
    # 2. record and show
    about = {"command": redact_words(sys.argv), "notes": traced.notes, "clocks": traced.clocks}
    attempt, summary = foreign.record(options.output_dir / "runs", traced, rows, about, options.name)
    _show(traced, summary, replayed, attempt, options.replay)
    # 3. what is asked besides
    if options.what_if:
        then, now = (float(trace.makespan(spans)) for spans in (answer, replayed))
        rate = 100 * ((then / order.chunks) / (now / traced.schedule.chunks) - 1)
        bubbles = " for ".join(f"{float(trace.bubble_fraction(spans)):.4f}" for spans in (answer, replayed))
        _say(f"what if {shlex.join(options.what_if)}: step {then:.4g} ms, {rate:+.1f} % per microbatch than the replay")
        _say(f"  bubble {bubbles}; in flight at most {max(trace.in_flight_peak(answer).values())}")
        _say(*(f"  assumed: {note}" for note in assumed))
    if options.profile:
        profile, assumed = foreign.profile_of(traced, rows, costs, layers, options.rows)
        write_text(options.profile, yaml.safe_dump(to_plain(profile), sort_keys=False, width=120))
        words = f"model.layers={profile.model['layers']} ranks={profile.ranks} batch_size={profile.batch_size}"
        _say(f"profile: python -m microp.plan {shlex.quote(f'device={options.profile}')} {words}")
        _say(*(f"  assumed: {note}" for note in assumed))
    if options.csv:
        write_text(options.csv, to_torch_csv(order))
        _say(f"{options.csv}: {order.stages} stages, {order.chunks} microbatches; {ENGINES.format(options.csv)}")


def _show(traced: foreign.Traced, summary: dict[str, Any], replayed: Simulated, attempt: Path, is_drawn: bool) -> None:
    """Print the step, the bubbles, where the time went, and the last step, below its replay if that is drawn."""
    schedule, every = traced.schedule, list(traced.spans.values())
    is_named, ranks = schedule.name != foreign.FOREIGN, range(len(schedule.ranks))
    makespans = [float(trace.makespan(spans)) / 1e6 for spans in every]
    _say(
        f"{len(ranks)} ranks, {schedule.chunks} microbatches, {len(every)} steps; "
        + (f"the order is {schedule.name}" if is_named else "an order that microp does not build"),
        f"step {_spread(makespans, '.4g')} ms, from the first start of an action to the last end",
        *(f"bubble {_spread([float(of(each)) for each in every], '.4f')}  {name}" for name, of in BUBBLES.items()),
        traced.clocks,
        f"microbatches in flight, at most: {', '.join(f'{peak:g}' for peak in summary['in_flight_peak'])}",
    )
    times = {kind: [f"{value:.2f}" for value in values] for kind, values in summary["time_ms"].items() if any(values)}
    heading = columns.Column("last step, ms", [f"rank {rank}" for rank in ranks], "left", 1)
    columns.show(console.out, [heading, *(columns.Column(*column) for column in times.items())], "summary.json")
    path, time = critical_path(replayed), float(trace.makespan(replayed))
    on = [sum(float(s.end - s.start) for s in path if s.rank == rank) for rank in ranks]
    shares = ", ".join(f"rank {rank} {100 * part / time:.0f} %" for rank, part in enumerate(on) if part)
    _say(f"critical path of the replayed step: {len(path)} actions; {shares}")
    if is_drawn:
        _say(f"replayed {time:.4g} ms, {100 * (time / median(makespans) - 1):+.1f} % of the median step")
    if len(every[-1]) <= trace.DRAWN and (step := read_traced_step(attempt, summary)):
        shown, panels = (
            trace.screen(),
            {name: step.panels[name] for name in step.panels if is_drawn or name == "measured"},
        )
        print(shown.text(trace.timeline(panels, shown.columns, ROWS)))
    _say(f"{attempt}")


def _spread(values: Sequence[float], form: str) -> str:
    """Return the median with the least and the most."""
    middle = f"{median(values):{form}}"
    return middle if len(values) == 1 else f"{middle} ({min(values):{form}} - {max(values):{form}})"


def _say(*lines: str) -> None:
    for line in lines:
        console.out.print(line, soft_wrap=True, markup=False)
