"""Searches plans for a configuration: the Pareto front of a step's time and of memory, with the command of each plan.

::

    PlanConfig ── prepare ──► Plan: pricer, space, cap ── search ──► table, outputs/plans/<name>.json
"""

from __future__ import annotations

import hashlib
import json
import re
import shlex
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from microp.config import (
    NO_MEMORY,
    Config,
    ConfigError,
    PlanConfig,
    chosen,
    config_checks,
    memory_cap,
    plain,
    profile_command,
    profile_notes,
    profile_problems,
    stored,
    subject_of,
    typed_folder,
    used_profile,
)
from microp.planner import (
    KNOBS,
    POLICIES,
    Choice,
    Found,
    Priced,
    Pricer,
    Space,
    other_sizes,
    search,
    what_binds,
)
from microp.points import PointsCallback, run_app, used_words
from microp.records import write_text
from microp.schedule import Schedule, uniform
from microp.settings import EstimateSettings, broken_rules, quoted
from microp.system import GIB, MIB, size_text
from microp.terminal import Column, bar, console, counted, out, paragraph, show_columns

SEARCHED = ("schedule", "chunks", "partition", "checkpointing", "replicas", *(f"schedule.{key}" for key in KNOBS))
SLICES = (2, 4)  # that are tried by themselves
# Keys that the command of a plan does not repeat.
OWN = ("ranks", "memory_gib", "search", "output_dir", "hydra", "device.memory_gib", "tracking")
RANGE = r" *range\( *(\d{1,6})(?: *, *(\d{1,6}))?(?: *, *([1-9]\d{0,5}))? *\) *"  # as Hydra's: begin, end, step
SEGMENTS = r"segments=[1-9]\d{0,4}"
MOST_CHUNKS = 16  # times the ranks: more chunks are not tried by themselves
MOST = 100_000  # choices


@dataclass(frozen=True)
class Plan:
    """What is to be searched."""

    config: PlanConfig  # the valid configuration
    pricer: Pricer  # prices a choice
    space: Space  # what to choose from
    cap: float | None  # the bytes of memory of each rank; None: no limit


def search_words(words: Sequence[str]) -> list[str]:
    """Return a command's words with what a plan searches as lists: `chunks=4,8` is `search.chunks=[4,8]`.

    A range is written as in a sweep: `chunks=range(4,8)`.
    """
    given = []
    for word in words:
        key, equals, value = word.partition("=")
        if equals and key in SEARCHED and value != "null":
            values = value.removeprefix("[").removesuffix("]").split(",")
            if numbers := re.fullmatch(RANGE, value):
                values = list(map(str, range(*map(int, filter(None, numbers.groups())))))
            quotes = "'" if key == "checkpointing" or "(" in value else ""
            word = f"search.{key.removeprefix('schedule.')}=[{','.join(f'{quotes}{one}{quotes}' for one in values)}]"
        given.append(word)
    return given


def as_typed(problem: str) -> str:
    """Return a problem with its key as it is typed: `chunks=0 is ...` for `search.chunks=0 is ...`."""
    text = problem.removeprefix("search.")
    return f"schedule.{text}" if text.startswith(KNOBS) else text


def make_plan(config: PlanConfig) -> Plan:
    """Return what the configuration asks to be searched, or raise ConfigError with all that is wrong."""
    wanted = config.search
    problems = broken_rules(config) + broken_rules(wanted, "search.")
    problems += config.model.problems() + config.device.problems() + profile_problems(config)
    problems += [] if isinstance(config.device, EstimateSettings) else config.comms.problems(config.device)
    problems += config.computing.problems(config.model.name, config.model.dtype)
    problems += [
        f"search.checkpointing={quoted(policy)} is not one of {', '.join(POLICIES)}, segments=2: use one of these"
        for policy in wanted.checkpointing
        if policy not in POLICIES and not re.fullmatch(SEGMENTS, policy)
    ]
    problems += [
        f"search.{key}=[] is empty: give at least one value" for key, values in vars(wanted).items() if values == []
    ]
    problems += [
        f"replicas={replicas} does not divide ranks={config.ranks}: use a divisor of ranks, which form the pipelines"
        for replicas in wanted.replicas
        if replicas > 0 and config.ranks % replicas
    ]
    problems += [problem for each in wanted.slices or () if each > 0 for problem in config.model.slice_problems(each)]
    segments = [int(policy.rpartition("=")[2]) for policy in wanted.checkpointing if re.fullmatch(SEGMENTS, policy)]
    problems += [problem for each in segments for problem in config.model.segment_problems(each)]
    if config.memory_gib is not None and config.device.memory_gib is not None:
        problems.append(
            f"memory_gib={config.memory_gib:g} and device.memory_gib={config.device.memory_gib:g} both limit a rank: "
            "give one of them"
        )
    if config.compile:
        problems.append("compile=true is not for a plan: no times of compiled layers are known, leave it out")
    if problems:
        raise ConfigError(list(map(as_typed, problems)))
    cap = memory_cap(config) if config.memory_gib is None else config.memory_gib * GIB
    most = min(config.batch_size, MOST_CHUNKS * config.ranks)
    chunks = wanted.chunks or [2**power for power in range(most.bit_length())]
    knobs = {**{key: getattr(wanted, key) for key in KNOBS}, "slices": wanted.slices or SLICES}
    space = Space(wanted.schedule, chunks, wanted.checkpointing, wanted.partition, knobs, wanted.replicas)
    count = sum(1 for _ in space.choices())
    if count > MOST:
        raise ConfigError([f"search has {count} choices: use at most {MOST}, with fewer values"])
    pricer = Pricer(subject_of(config, config.ranks))
    if cap is not None and pricer.subject.memory is None:
        raise ConfigError([f"memory_gib cannot be kept to: {NO_MEMORY}; leave it out"])
    _check_stages(config, pricer, space)
    return Plan(config, pricer, space, cap)


def _check_stages(config: PlanConfig, pricer: Pricer, space: Space) -> None:
    """Raise ConfigError if no choice exists, or one has no times, or layers whose memory cannot be measured."""
    kinds: dict[tuple[Any, ...], tuple[Choice, Schedule]] = {}
    for choice in space.choices():
        if (found := pricer.schedule(choice)) is not None:
            key = found.stages, found.depth, found.chunks, found.slices, bool(found.input_gradients), choice.replicas
            kinds.setdefault(key, (choice, found))
    if not kinds:
        few = (
            f"no choice exists for ranks={config.ranks}, model.layers={config.model.layers} and "
            f"batch_size={config.batch_size}: use fewer ranks or chunks, or more layers or rows"
        )
        raise ConfigError([*pricer.refusals, few][:1])
    for choice, schedule in kinds.values():
        task, remedy = pricer.task(choice, schedule), ""
        try:
            task.prices.costs(task.workload(uniform(config.model.layers, schedule.depth).sizes))
            remedy = ": use profile=FILE"
            pricer.layers(choice, schedule)
        except ValueError as error:
            raise ConfigError([f"schedule={choice.schedule}: {error}{remedy}"]) from error


def main() -> None:
    sys.argv[1:] = search_words(sys.argv[1:])
    run_app("plan", PlanCallback.task(run_plan))


def run_plan(point: PlanConfig, plan: Plan) -> dict[str, Any]:
    """Search the plans of one point and print them, or raise ConfigError if nothing fits."""
    with bar("searching plans") as tick:
        found = search(plan.pricer, plan.space, plan.cap, tick)
    if plan.cap is not None and not found.front:
        raise ConfigError([_too_little(plan, found, plan.cap)])
    profile = used_profile(point)  # with other times, other plans have these names
    asked = [plain(point), plan.pricer.subject.prices.source, profile and profile.date]
    name = hashlib.sha256(json.dumps(asked, sort_keys=True, default=str).encode()).hexdigest()[:8]
    path = Path(point.output_dir) / "plans" / f"plan-k{point.ranks}-b{point.batch_size}-{name}.json"
    about = {"candidates": found.candidates, "too_large": found.too_large}
    result = {"times": plan.pricer.subject.prices.source, "memory_gib": plan.cap and plan.cap / GIB, **about}
    base = "simulate" if isinstance(point.device, EstimateSettings) else "config"
    program = ["python", "-m", "microp.simulate"] if base == "simulate" else ["microp"]
    folder, rows = path.with_suffix(""), []
    folder.mkdir(parents=True, exist_ok=True)
    for number, priced in enumerate(found.front, start=1):
        typed = _words(plan, priced)
        write_text(folder / f"plan{number}.yaml", stored(typed, base))
        rows.append(_row(plan, priced, shlex.join([*program, *typed_folder(), *typed])))
    write_text(path, json.dumps({**result, "plans": rows}, indent=2) + "\n")
    unit = "ms" if plan.pricer.subject.prices.is_known else "units"
    limit = "no limit of memory" if plan.cap is None else f"{size_text(plan.cap)} for each rank"
    types = {
        "model.dtype": getattr(point.model, "dtype", None),
        "dtype": point.dtype,
        "optimizer": point.optimizer.name,
    }
    kinds = " ".join(f"{key}={value}" for key, value in types.items() if value)
    for note in _notes(plan, found):
        console.note(note)
    rows_of = {point.batch_size / priced.choice.replicas / priced.choice.chunks for priced in found.front}
    for doubt in (*config_checks.memory_doubts(point), *profile_notes(point, sorted({min(rows_of), max(rows_of)}))):
        console.warn(doubt)
    show_plans(
        rows,
        unit,
        f"{counted(found.candidates, 'candidate')}, {found.too_large:,} {'needs' if found.too_large == 1 else 'need'} "
        f"too much memory; {limit}, with {kinds}; times: {result['times']}",
        shlex.join([*program, "-cd", str(folder), "-cn"]),
    )
    print(f"plans {path}", flush=True)
    return {**result, "plans": rows}


def _row(plan: Plan, priced: Priced, command: str) -> dict[str, Any]:
    """Return a plan as plain values."""
    choice = priced.choice
    return {
        "step": priced.step,
        "peak_memory_mib": [peak / MIB for peak in priced.peaks],
        "schedule": choice.schedule,
        "chunks": choice.chunks,
        **{key: dict(choice.knobs).get(key) for key in KNOBS},
        "checkpointing": choice.checkpointing,
        "partition": choice.partition,
        "sizes": list(priced.sizes),
        "replicas": choice.replicas,
        "binds": what_binds(plan.pricer, priced, plan.cap),
        "command": command,
    }


def _words(plan: Plan, priced: Priced) -> list[str]:
    """Return the overrides that run a plan, or price it if nothing can run on the device."""
    choice, left_out = priced.choice, list(OWN)
    if plan.config.device.is_emulated and plan.config.profile:
        left_out.append(r"model\.(?!layers)\w+")
    run = chosen(plan.config, choice.schedule, choice.checkpointing, choice.replicas, choice.knobs)
    words = [f"ranks={run.ranks}", *choice.words()]
    if choice.partition == "balanced" or not plan.pricer.subject.prices.is_known:  # uniform stages count the same
        words += ["partition=sizes", f"partition.sizes=[{','.join(map(str, priced.sizes))}]"]
    return [*used_words(run, left_out)[len(typed_folder()) :], *words]


def _notes(plan: Plan, found: Found) -> list[str]:
    """Return what the reader of a plan should know."""
    notes = []
    if few := [str(m) for m in plan.space.chunks if m > plan.config.batch_size]:
        notes.append(f"chunks={','.join(few)} left out: the batch has {counted(plan.config.batch_size, 'row')}")
    prices, cap = plan.pricer.subject.prices, plan.cap
    if not prices.is_known:
        notes.append(
            "the times of this machine are not known: a row takes as long in a small microbatch as in a large one, and "
            "actions and hops cost nothing besides, so many small microbatches look faster than they are; "
            f"{profile_command(plan.config)} measures them"
        )
    elif plan.config.profile is None and plan.config.device.is_emulated:
        of_what = {"row": "microbatch, whatever its rows", "layer": "stage, whatever its layers"}
        if lacking := [of_what[name] for name in of_what if name not in getattr(plan.config.device, "per", ())]:
            said = f"the nominal times are per {', and per '.join(lacking)}, so plans of other numbers of these do not"
            notes.append(f"{said} compare: device.per=[layer,row] counts them")
    sums = used_profile(plan.config) is not None or getattr(plan.config.device, "reduce_ms", None)
    if any(priced.choice.replicas > 1 for priced in found.front) and not sums:
        notes.append("the sums of the gradients over the replicas take no time here: they are not known")
    if "balanced" in plan.space.partitions and plan.pricer.subject.memory is not None:
        only = "a balanced partition is tried only where it is fastest within memory_gib"
        notes.append(f"{only}: with less memory there can be other plans")
    if cap is not None and found.over and found.over[-1].step < found.front[0].step:
        faster, unit = found.over[-1], "ms" if prices.is_known else "units"
        notes.append(
            f"memory binds: for example {' '.join(faster.choice.words())} would take {faster.step:.4g} {unit}, "
            f"{100 * (1 - faster.step / found.front[0].step):.1f} % less than plan1, with {size_text(faster.peak)}"
        )
    return notes


def _too_little(plan: Plan, found: Found, cap: float) -> str:
    """Return by how much even the smallest plan needs more memory than there is, and what would fit."""
    least = found.over[0]
    words, sizes = " ".join(least.choice.words()), other_sizes(plan.pricer, least.choice, cap)
    key = "device.memory_gib" if plan.config.memory_gib is None else "memory_gib"
    several = f"each of {found.candidates:,} plans: {words} needs least of them,"
    return (
        f"{key}={cap / GIB:g} is too little for {several if found.candidates > 1 else f'{words}, which needs'} "
        f"{size_text(least.peak)}, {size_text(least.peak - cap)} more: use {key}={1.01 * least.peak / GIB:.3g} (near "
        f"it, other partitions are tried), {', '.join([*sizes, 'or a smaller model'])}"
    )


class PlanCallback(PointsCallback):
    """Checks all points before the first is searched."""

    @classmethod
    def prepare(cls, config: Config) -> Plan:
        assert isinstance(config, PlanConfig)
        return make_plan(config)


# --- the table of plans -------------------------------------------------------------------------------


def show_plans(plans: Sequence[Mapping[str, Any]], unit: str, heading: str, run: str) -> None:
    """Print plans, the fastest first, and the command that runs one, which is `run` and its name, as `plan3`."""
    paragraph(heading, style="")
    if not plans:
        return
    several = any(plan["replicas"] > 1 for plan in plans)
    steps = [f"{plan['step']:,.{'0f' if plan['step'] >= 1000 else '4g'}}" for plan in plans]
    largest = [max(plan["peak_memory_mib"], default=0) for plan in plans]
    size, per = ("GiB", 1024) if max(largest) >= 10_000 else ("MiB", 1)
    memory = Column(
        size,
        [f"{peak / per:.4g}" for peak in largest],
        importance=90,
        about=f"{size}: predicted peak of the fullest rank.",
    )
    layers = [_sizes(plan["sizes"]) for plan in plans]
    told = [[f"{key}={plan[key]}" for key in KNOBS[1:] if plan[key]] for plan in plans]  # stages are seen in `layers`
    orders = [" ".join([plan["schedule"], *words]) for plan, words in zip(plans, told, strict=True)]
    binds = [plan["binds"] for plan in plans]
    table = [
        Column("", [f"plan{number}" for number in range(1, len(plans) + 1)], "left", 100),
        Column(
            f"step {unit}",
            steps,
            importance=90,
            about=f"step: predicted time{', a unit is F of a layer and row' * (unit != 'ms')}.",
        ),
        *[memory] * any(largest),
        Column("schedule", orders, importance=80),
        Column("chunks", [str(plan["chunks"]) for plan in plans], "right", 80),
        Column("checkpointing", [plan["checkpointing"] for plan in plans], importance=70),
        *([Column("replicas", [str(plan["replicas"]) for plan in plans], "right", 70)] if several else []),
        Column("layers", layers, importance=60, shortest=12, about="layers: of each stage."),
        Column("binds", binds, importance=40, about="binds: what keeps a plan from being faster."),
    ]
    show_columns(table, "outputs/plans")
    text = "Each is slower and smaller than the one above; each other plan is slower than one of these, and no smaller."
    if len(plans) == 1:
        text = "Every other plan that was tried, if any, is slower, and no smaller."
    paragraph(text if any(largest) else "The memory of layers is not known: this is the fastest plan.")
    out.print(f"\nrun   {run} plan1", soft_wrap=True, markup=False)


def _sizes(sizes: Sequence[int]) -> str:
    """Return the sizes of stages: `4 each`, or one after the other."""
    return f"{sizes[0]} each" if len(set(sizes)) == 1 < len(sizes) else " ".join(map(str, sizes))
