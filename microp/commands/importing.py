"""Reads the trace of another program's pipeline as a run: the task of `python -m microp.import_trace`."""

from __future__ import annotations

import argparse
import re
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Any

import yaml

from microp import foreign, trace
from microp.config import ConfigError, compose_config, make_pricing_job, read_config
from microp.profiling import to_plain
from microp.records import WriteError, read_traced_step, write_text
from microp.schedule import Schedule, to_torch_csv
from microp.schedule.builders import LOOPED, ORDERS
from microp.simulator import Simulated, calibrate_steps, critical_path, replay_steps
from microp.system import CommandParser, redact_words
from microp.terminal import Column, console, counted, err, extremes, show_columns

LAYERS = 8  # of a stage, if that is not known
ASKED = re.compile(r"(schedule|partition)\b|(model|chunks|ranks)=")  # what a word of --what-if may change
IDLE = ("gpipe, idle / total", "megatron, idle / ideal", "zero bubble, idle / longest span of a rank")


def main(arguments: list[str] | None = None) -> int:
    """Read the trace of another program's pipeline as a run. Exit code 1: a file cannot be written; 2: bad input."""
    parser = CommandParser(prog="python -m microp.import_trace", description=main.__doc__)
    add = parser.add_argument
    add("files", nargs="+", type=Path, metavar="FILE", help="of torch.profiler, per rank (also .gz); Chrome JSON; CSV")
    add("--output-dir", type=Path, default=Path("outputs"), help="default: outputs")
    add("--names", type=Path, metavar="YAML", help="what the ranges of this trace are called")
    add("--replay", action="store_true", help="simulate the step with its own times, and draw both")
    add("--what-if", nargs="+", metavar="KEY=VALUE", help="another order, in words of microp.simulate")
    add("--layers", type=lambda text: list(map(count, text.split(","))), help="per stage, as 4,4,5,3")
    add("--profile", type=Path, metavar="YAML", help="write a profile, for device=FILE")
    add("--rows", type=count, default=1, help="of a microbatch, for the profile (default: 1)")
    add("--csv", type=Path, help="write the order, or that of --what-if, for torchtitan")
    try:
        _import(parser.parse_intermixed_args(arguments))
    except (foreign.TraceError, ConfigError, WriteError) as error:
        console.error(str(error).splitlines()[0])
        return 1 if isinstance(error, WriteError) else 2
    return 0


def count(text: str) -> int:
    """Return the number from 1 that a word of the command line is."""
    if not text.isdecimal() or not 0 < int(text) < 1_000_000:
        raise argparse.ArgumentTypeError(f"{text}: give numbers from 1")
    return int(text)


def _other_order(words: Sequence[str], traced: Schedule, layers: Sequence[int]) -> tuple[Schedule, Sequence[int]]:
    """Return the order that words of `microp.simulate` ask for, by default that of the trace, and its partition."""
    if unused := [word for word in words if not ASKED.match(word)]:
        raise foreign.TraceError(f"--what-if {unused[0]}: it takes schedule, chunks, ranks and partition")
    mine = [f"ranks={len(traced.ranks)}", f"chunks={traced.chunks}", f"model.layers={sum(layers)}"]
    if not any(word.startswith("schedule=") for word in words):
        if traced.name not in ORDERS:
            raise foreign.TraceError("--what-if: microp does not build the traced order: give schedule=... besides")
        per_rank = f"schedule.stages_per_rank={traced.stages // len(traced.ranks)}"
        mine += [f"schedule={traced.name}", *[per_rank] * (traced.name in LOOPED)]
    words = [*mine, "costs.forward=1", "costs.backward=1", *words]
    config: Any = read_config(compose_config(*words, name="simulate"))
    job = make_pricing_job(config)
    if job.workload is None:
        raise foreign.TraceError(f"{sum(layers)} layers are too few for {job.schedule.stages} stages: see --layers")
    is_alike = job.schedule.depth == traced.stages and not any(word.startswith("partition") for word in words)
    return job.schedule, layers if is_alike else job.workload.layers


def _import(options: argparse.Namespace) -> None:
    # 1. read
    if exists := next((path for path in (options.profile, options.csv) if path and path.exists()), None):
        raise foreign.TraceError(f"{exists} is there already: give another name, or remove it")
    with err.status("reading the trace"):
        read = foreign.read_lanes(options.files, foreign.read_names(options.names))
        traced = foreign.align(foreign.make_steps(*read))
        rows: list[list[Any]] = foreign.step_rows(traced)
    order, every, middle = traced.schedule, list(traced.spans.values()), traced.middle
    layers = options.layers or [LAYERS] * order.stages
    if len(layers) != order.stages:
        raise foreign.TraceError(f"--layers has {len(layers)} numbers for {order.stages} stages: give one per stage")
    costs, replayed = calibrate_steps(order, rows, every[middle]), replay_steps(order, [rows[middle]], every[middle])
    usual = [f"each stage has {LAYERS} layers, as --layers is not given"] * (not options.layers)
    if (options.what_if or options.profile) and max(order.copies, order.slices) > 1:
        raise foreign.TraceError(f"{order.name} has copies or slices: leave out --what-if and --profile")
    if options.what_if:
        order, sizes = _other_order(options.what_if, order, layers)
    if options.csv and max(order.copies, order.slices) > 1:
        raise foreign.TraceError(f"--csv: {order.name} has copies of stages or slices, which torch lacks: leave it out")
    for note in traced.notes:
        console.warn(note)
    # 2. record and show
    attempt, summary = foreign.record(options.output_dir / "runs", traced, rows, redact_words(sys.argv))
    _show(traced, summary, replayed)
    if len(every[-1]) <= trace.DRAWN and (step := read_traced_step(attempt, summary)):
        names = list(step.panels) if options.replay else ["measured"]
        console.draw(trace.timeline({name: step.panels[name] for name in names}, console.out.width))
    print(attempt)
    # 3. what is asked besides
    if options.what_if:
        answer, assumed = foreign.what_if(order, sizes, traced.schedule, layers, costs)
        alike, _ = foreign.what_if(traced.schedule, layers, traced.schedule, layers, costs)
        then, now = (float(trace.makespan(each)) for each in (answer, alike))
        rate = 100 * (then / order.chunks / (now / traced.schedule.chunks) - 1)
        bubbles = " for ".join(f"{float(trace.bubble_fraction(spans)):.4f}" for spans in (answer, alike))
        held, words = float(max(trace.microbatches_in_flight(order, answer))), shlex.join(options.what_if)
        off = 1e8 * now / median(float(trace.makespan(spans)) for spans in every) - 100
        print(f"what if {words}: step {then:.4g} ms; the traced order, priced alike with the median times of actions,")
        print(f"  {now:.4g} ms, {off:+.1f} % of the measured step: compare with that")
        print(f"  per microbatch {rate:+.1f} %; bubble {bubbles}; in flight at most {held:g}")
        print(*(f"  assumed: {note}" for note in usual * (sizes != layers) + assumed), sep="\n")
    if options.profile:
        profile, assumed = foreign.profile_of(traced, rows, layers, costs, options.rows)
        write_text(options.profile, yaml.safe_dump(to_plain(profile), sort_keys=False, width=120))
        words = f"model.layers={profile.model['layers']} ranks={profile.ranks} batch_size={profile.batch_size}"
        print(f"profile: python -m microp.plan {shlex.quote(f'device={options.profile}')} {words}")
        print(*(f"  assumed: {note}" for note in usual + assumed), sep="\n")
    if options.csv:
        write_text(options.csv, to_torch_csv(order))
        ranks, is_v = len(order.ranks), order.placement[order.stages - 1] == order.placement[0]
        places = "1F1B" if order.stages == ranks else "ZBVZeroBubble" if is_v else "Interleaved1F1B"
        key = "--parallelism.pipeline_parallel_schedule"
        print(f"torchtitan runs it (not tried) with {key} {places} {key}_csv {options.csv}")
        print(f"microp with schedule=file schedule.path={options.csv}; Megatron and DeepSpeed only their own orders")


def _show(traced: foreign.Traced, summary: dict[str, Any], replayed: Simulated) -> None:
    """Print the step, the bubbles, where the time went, and how well the replay meets the step."""
    schedule, every, ranks = traced.schedule, list(traced.spans.values()), range(len(traced.schedule.ranks))
    makespans = [float(trace.makespan(spans)) / 1e6 for spans in every]
    order = "one that microp does not build" if schedule.name == foreign.FOREIGN else schedule.name
    print(f"{len(ranks)} ranks, {schedule.chunks} microbatches, {counted(len(every), 'step')}; the order is {order}")
    print(f"step {_spread(makespans, '.4g')} ms, from the first start of an action to the last end")
    for name, bubble in zip(IDLE, trace.BUBBLES.values(), strict=True):
        print(f"bubble {_spread([float(bubble(spans)) for spans in every], '.4f')}  {name}")
    print(traced.clocks)
    print("microbatches in flight, at most:", *(f"{peak:g}" for peak in summary["in_flight_peak"]), flush=True)
    times = {kind: [f"{value:.2f}" for value in values] for kind, values in summary["time_ms"].items() if any(values)}
    heading = Column("last step, ms", [f"rank {rank}" for rank in ranks], "left", 1)
    show_columns([heading, *(Column(*column) for column in times.items())], "summary.json")
    path, time, taken = critical_path(replayed), float(trace.makespan(replayed)), makespans[traced.middle]
    on = [sum(float(span.end - span.start) for span in path if span.rank == rank) for rank in ranks]
    shares = "".join(f"rank {rank} {100 * part / time:.0f} %, " for rank, part in enumerate(on) if part)
    rest = f"messages and gaps between them {100 * (1 - sum(on) / time):.0f} %"
    console.out.print(f"critical path of the step of middle length: {len(path)} actions; {shares}{rest}")
    off = f"{time:.4g} ms, {100 * (time / taken - 1):+.1f} % of the measured {taken:.4g}"
    console.out.print(f"check: simulated with its own times, the step of middle length takes {off}")


def _spread(values: Sequence[float], form: str) -> str:
    """Return the median with the least and the most."""
    return f"{median(values):{form}}" + f" ({extremes(values, form)})" * (len(values) > 1)
