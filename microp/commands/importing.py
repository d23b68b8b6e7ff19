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
from microp.records import WriteError, disturbances, write_text
from microp.schedule import Schedule, to_torch_csv
from microp.schedule.builders import LOOPED, ORDERS
from microp.simulator import Costs, Simulated, calibrate_steps, critical_path, replay_steps, simulate
from microp.system import CommandParser, redact_words
from microp.terminal import Column, console, counted, paragraph, show_columns

LAYERS = 8  # of a stage, if that is not known
HEADINGS = ("step ms", "per microbatch", "gpipe bubble", "megatron bubble", "zero bubble", "in flight")
COMPARED = """step: from the first start of an action to the last end; measured: the median. replayed: the same order, \
simulated with the median times of its actions. what if: another order at these times. per microbatch: replayed \
against measured, what if against replayed. bubbles: idle / total, idle / ideal, idle / longest span of a rank."""
ASKED = re.compile(r"(schedule|partition)\b|(model|chunks|ranks)=")  # what a word of --what-if may change


def main(arguments: list[str] | None = None) -> int:
    """Read the trace of another program's pipeline as a run. Exit code 1: a file cannot be written; 2: bad input."""
    parser = CommandParser(prog="python -m microp.import_trace", description=main.__doc__)
    add = parser.add_argument
    add("files", nargs="+", type=Path, metavar="FILE", help="of torch.profiler, per rank (also .gz); Chrome JSON; CSV")
    add("--output-dir", type=Path, default=Path("outputs"), help="default: outputs")
    add("--names", type=Path, metavar="YAML", help="what the ranges of this trace are called")
    add("--replay", action="store_true", help="simulate the step with its own times, and draw both")
    add("--what-if", nargs="+", action="append", default=[], metavar="KEY=VALUE", help="an order, for microp.simulate")
    add("--layers", type=lambda text: list(map(count, text.split(","))), help="per stage, as 4,4,5,3")
    add("--profile", type=Path, metavar="YAML", help="write a profile, for device=FILE")
    add("--rows", type=count, default=1, help="of a microbatch, for the profile (default: 1)")
    add("--csv", type=Path, help="write the order, or that of the last --what-if, for torchtitan")
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


def _what_if(words: Sequence[str], traced: Schedule, layers: Sequence[int], costs: Costs) -> foreign.Answer:
    """Return the answer to words of `microp.simulate`, which are by default those of the traced order."""
    if unused := [word for word in words if not ASKED.match(word)]:
        raise foreign.TraceError(f"--what-if {unused[0]}: it takes schedule, chunks, ranks and partition")
    mine = [f"ranks={len(traced.ranks)}", f"chunks={traced.chunks}", f"model.layers={sum(layers)}"]
    if not any(word.startswith("schedule=") for word in words):
        if traced.name not in ORDERS:
            raise foreign.TraceError("--what-if: microp does not build the traced order: give schedule=... besides")
        per_rank = f"schedule.stages_per_rank={traced.stages // len(traced.ranks)}"
        mine += [f"schedule={traced.name}", *[per_rank] * (traced.name in LOOPED)]
    config: Any = read_config(compose_config(*mine, "costs.forward=1", "costs.backward=1", *words, name="simulate"))
    job = make_pricing_job(config)
    if job.workload is None:
        raise foreign.TraceError(f"{sum(layers)} layers are too few for {job.schedule.stages} stages: see --layers")
    is_alike = job.schedule.depth == traced.stages and not any(word.startswith("partition") for word in words)
    return foreign.what_if(job.schedule, layers if is_alike else job.workload.layers, traced, layers, costs)


def _import(options: argparse.Namespace) -> None:
    # 1. read
    if exists := next((path for path in (options.profile, options.csv) if path and path.exists()), None):
        raise foreign.TraceError(f"{exists} is there already: give another name, or remove it")
    with console.err.status("reading the trace"):
        traced = foreign.align(
            foreign.make_steps(*foreign.read_lanes(options.files, foreign.read_names(options.names)))
        )
        rows: list[list[Any]] = foreign.step_rows(traced)
    order, every, middle = traced.schedule, list(traced.spans.values()), traced.middle
    layers = options.layers or [LAYERS] * order.stages
    if len(layers) != order.stages:
        raise foreign.TraceError(f"--layers has {len(layers)} numbers for {order.stages} stages: give one per stage")
    costs = calibrate_steps(order, rows, every[middle])
    if (options.what_if or options.profile) and max(order.copies, order.slices) > 1:
        raise foreign.TraceError(f"{order.name} has copies or slices: leave out --what-if and --profile")
    answers: dict[str, foreign.Answer] = {"replayed": (order, replayed := simulate(order, costs), [])}
    answers |= {f"what if {shlex.join(words)}": _what_if(words, order, layers, costs) for words in options.what_if}
    asked, *_ = list(answers.values())[-1]
    if options.csv and max(asked.copies, asked.slices) > 1:
        raise foreign.TraceError(f"--csv: {asked.name} has copies of stages or slices, which torch lacks: leave it out")
    for note in traced.notes:
        console.warn(note)
    # 2. record and show
    attempt, summary = foreign.record(options.output_dir / "runs", traced, rows, redact_words(sys.argv))
    _compare(traced, answers)
    _show(every[middle], summary, replay_steps(order, [rows[middle]], every[middle]))
    if reasons := disturbances(summary, {}):
        paragraph(f"disturbed: these steps ({reasons[0].text}); trace again on an idle machine.", console.CAUTION)
    if len(every[-1]) <= trace.DRAWN:
        in_ns = trace.Spans(replayed, *(1e6 * getattr(replayed, moment) for moment in trace.MOMENTS))
        panels = {"replayed (as above)": in_ns, "last step": every[-1]} if options.replay else {"measured": every[-1]}
        console.draw(trace.timeline(panels, console.out.width))
    print(attempt)
    # 3. what is written besides
    if options.profile:
        profile, assumed = foreign.profile_of(traced, rows, layers, costs, options.rows)
        write_text(options.profile, yaml.safe_dump(to_plain(profile), sort_keys=False, width=120))
        words = f"model.layers={profile.model['layers']} ranks={profile.ranks} batch_size={profile.batch_size}"
        print(f"plan  python -m microp.plan {shlex.quote(f'device={options.profile}')} {words} schedule=1f1b,zb_v")
        paragraph(f"assumed of the profile: {'; '.join(assumed)}.")
    if options.csv:
        write_text(options.csv, to_torch_csv(asked))
        ranks, is_v = len(asked.ranks), asked.placement[asked.stages - 1] == asked.placement[0]
        places = "1F1B" if asked.stages == ranks else "ZBVZeroBubble" if is_v else "Interleaved1F1B"
        key = "--parallelism.pipeline_parallel_schedule"
        paragraph(f"{asked.name}: microp with schedule=file schedule.path={options.csv}; torchtitan (untried) with", "")
        print(f"  {key} {places} \\\n  {key}_csv {options.csv}")


def _compare(traced: foreign.Traced, answers: dict[str, foreign.Answer]) -> None:
    """Print the measured steps beside the `answers`: first their replay, then other orders at the same costs."""
    figures: list[Any] = [trace.makespan, *trace.BUBBLES.values()]
    times, *fractions = ([float(figure(spans)) for spans in traced.spans.values()] for figure in figures)
    picks: dict[str, Any] = {"measured": median, **({"- least": min, "- most": max} if len(times) > 1 else {})}
    rows = [[f"{pick(times) / 1e6:.4g}", "", *(f"{pick(x):.4f}" for x in fractions), ""] for pick in picks.values()]
    ran, base, notes = traced.schedule, median(times) / 1e6, [COMPARED]
    for name, (order, spans, assumed) in answers.items():
        step, *bubbles = (float(figure(spans)) for figure in figures)
        change = f"{100 * (step / order.chunks * ran.chunks / base - 1):+.1f} %"
        held = f"{float(max(trace.microbatches_in_flight(order, spans))):g}"
        rows.append([f"{step:.4g}", change, *(f"{bubble:.4f}" for bubble in bubbles), held])
        notes += [f"{name}, assumed: {'; '.join(assumed)}."] * bool(assumed)
        base = step if name == "replayed" else base
    names = Column("", [*picks, *answers], "left", 1, 20)
    known = "one that microp does not build" if ran.name == foreign.FOREIGN else ran.name
    print(f"{len(ran.ranks)} ranks, {ran.chunks} microbatches, {counted(len(times), 'step')}; the order is {known}")
    show_columns([names, *map(Column, HEADINGS, zip(*rows, strict=True))], "the command")
    for note in [*notes, traced.clocks]:
        paragraph(note)


def _show(middle: Sequence[trace.Span], summary: dict[str, Any], own: Simulated) -> None:
    """Print where the time went; `own` is the step of middle length, simulated."""
    ranks = range(summary["ranks"])
    paragraph(f"microbatches in flight, at most: {' '.join(f'{peak:g}' for peak in summary['in_flight_peak'])}", "")
    times = {kind: [f"{value:.2f}" for value in values] for kind, values in summary["time_ms"].items() if any(values)}
    heading = Column("last step, ms", [f"rank {rank}" for rank in ranks], "left", 1)
    show_columns([heading, *(Column(*column) for column in times.items())], "summary.json")
    path, time = critical_path(own), float(trace.makespan(own))
    on = [sum(float(span.end - span.start) for span in path if span.rank == rank) for rank in ranks]
    shares = "".join(f"rank {rank} {100 * part / time:.0f} %, " for rank, part in enumerate(on) if part)
    rest = f"messages and gaps between them {100 * (1 - sum(on) / time):.0f} %"
    what = f"the middle step, simulated with its own times ({1e8 * time / float(trace.makespan(middle)) - 100:+.1f} %)"
    paragraph(f"critical path of {what}: {len(path)} actions; {shares}{rest}", "")
