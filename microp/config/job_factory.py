"""Makes a job from a configuration: checks everything, and builds the schedule and the partition once.

::

    Config ── make_job ──► Job
                     └───► ConfigError: all problems at once

A partition's builder that asks for it is told what the partition is for::

    def uniform(layers, stages)                 needs two numbers
    def balanced(layers, stages, task, ...)     `task` has the schedule, times, memory and cap of this configuration

The snapshot from which a run goes on is found and checked here, before any process starts::

    snapshot.resume=true   the newest snapshot of this run   ┐
    snapshot.path=FOLDER   that one, also of another run     ┴─► Job.resumed, or what is wrong with it
"""

from __future__ import annotations

import logging
from contextlib import suppress
from dataclasses import fields, replace
from pathlib import Path
from typing import Any, NamedTuple

from microp.config import config_checks
from microp.config.config import compose_config, plain, read_config
from microp.config.errors import ConfigError
from microp.config.factory import build, is_computed
from microp.config.memory_advice import memory_cap, memory_problem
from microp.config.prediction import asked_workload, layer_memory, prices_of, profile_command, times_of
from microp.config.schema import Config
from microp.job import Job, Snapshot, question_id, run_id
from microp.planner import Task
from microp.records import RecordError, read_env, snapshots
from microp.schedule import Action, Partition, Schedule, builders, of_sizes, to_text, validate
from microp.settings import EmulatedSettings, broken_rules, changed_data
from microp.simulator import Ranks, closed_forms, nominal_costs, nominal_optimizer

log = logging.getLogger(__name__)


def proved(config: Config, schedule: Schedule, limit: int | None) -> Schedule:
    """Return an order that is valid, with what to set if its group cannot end; ValueError as `validate`."""
    try:
        return validate(schedule, limit)
    except ValueError as error:
        if (group := config.schedule.get("group")) and "deadlocks" in str(error):
            raise ValueError(
                f"schedule.group={group} deadlocks with chunks={config.chunks}: use chunks that it divides, or a group "
                "that leaves other rounds"
            ) from error
        raise


def make_job(config: Config) -> Job:
    """Return the job that the configuration describes, or raise ConfigError with all that is wrong."""
    problems = config_checks.problems(config)
    # 1. the order; `text` is that of the builder, which identifies runs
    schedule, text = None, ""
    order_notes: tuple[str, ...] = ()
    try:
        if not any(problem.startswith(("ranks=", "chunks=")) for problem in broken_rules(config)):
            whole = build("schedule", config.schedule, Schedule, ranks=config.ranks, chunks=config.chunks)
            built = config_checks.as_run(config, whole)
            order_notes = _order_notes(config, whole, built)
            limit = config.activation_limit
            proven = proved(config, _named(config, whole), None if limit is None or limit < 1 else limit)
            schedule = config_checks.as_run(config, proven)
            log.debug("%s is valid: %d ranks, %d chunks", schedule.name, config.ranks, config.chunks)
            text = to_text(built)
            problems += config_checks.order_problems(config, schedule)
    except ValueError as error:
        problems.append(str(error))
    # 2. the partition, with the times of the device
    chosen: Chosen | None = None
    try:
        if 1 <= config.ranks <= config.model.layers:
            chosen = choose_partition(config, schedule)
        if schedule is not None and chosen is not None:
            sizes = chosen.partition.sizes
            problems += not_frozen(config, schedule, chosen.partition)
            if not problems:
                config = replace(config, device=times_of(config, schedule, sizes))
            if isinstance(config.device, EmulatedSettings) and not config.device.problems():
                nominal_costs(config.device, asked_workload(config, schedule, sizes), rows=1)
                nominal_optimizer(config.device, sizes * schedule.copies, schedule.copies)
    except ValueError as error:
        problems.append(str(error))
    if problems or schedule is None or chosen is None:
        raise ConfigError(problems)
    # 3. the job, its memory, and the snapshot from which it goes on
    asked = chosen.asked({**plain(config), "model": config.model.identity})
    job = job_with(config, schedule, chosen.partition, run_id(asked, text), question_id(asked, text))
    if problem := memory_problem(config, job):
        raise ConfigError([problem])
    return replace(job, resumed=find_resumed(config, job), notes=(*chosen.notes, *order_notes))


def job_with(config: Config, schedule: Schedule, partition: Partition, run: str, question: str) -> Job:
    """Return the job of a valid configuration with this order and this partition, and with these ids."""
    given: dict[str, Any] = {"schedule": schedule, "partition": partition, "run_id": run, "question_id": question}
    given |= {"backend": config.comms.backend(config.device), "timeout_s": config.comms.timeout_s}
    keys = {field.name for field in fields(Job)} - given.keys()
    return Job(**given, **{key: getattr(config, key) for key in keys if hasattr(config, key)})  # the keys of both


def job_of(*overrides: str) -> Job:
    """Return the job of a run's overrides, such as `schedule=1f1b`, or raise ConfigError with all that is wrong."""
    return make_job(read_config(compose_config(*overrides)))


# --- the schedule -----------------------------------------------------------------------------------


def make_schedule(config: Config) -> Schedule:
    """Return the schedule that the builder of group `schedule` makes; a user's own gets the name of its option.

    ValueError: a key is wrong, the builder refuses or fails, or a user's own schedule has the name of one of microp's.
    """
    return _named(config, build("schedule", config.schedule, Schedule, ranks=config.ranks, chunks=config.chunks))


def _named(config: Config, schedule: Schedule) -> Schedule:
    """Return the schedule; one that a user's own function made gets the name of its option.

    The function can return any name, also that of a schedule with closed forms, which would be wrong for it.
    """
    name, builder = config.schedule["name"], config.schedule["builder"]
    what, asked = f"schedule.builder={builder} returned a Schedule", (config.ranks, config.chunks)
    try:
        is_whole = all(isinstance(action, Action) for row in schedule.ranks for action in row)
    except TypeError:
        is_whole = False
    if not is_whole:
        raise ValueError(
            f"{what} with something else than actions: give `ranks` a tuple per rank, as (Action(Op.F, 0, 0), ...)"
        )
    if (given := (len(schedule.ranks), schedule.chunks)) != asked:
        raise ValueError("{} for ranks={}, chunks={}: return one for ranks={}, chunks={}".format(what, *given, *asked))
    if builder.startswith(f"{builders.__name__}."):
        return schedule
    if closed_forms.has_form(name):
        raise ValueError(
            f"schedule.name={name} is the name of one of microp's schedules, but builder={builder} is not microp's: "
            "choose another name"
        )
    return replace(schedule, name=name)


def _order_notes(config: Config, whole: Schedule, built: Schedule) -> tuple[str, ...]:
    """Return what the user should know of an order, which is `whole`, and `built` as it runs."""
    notes = []
    if built is not whole:
        where = "device.pair_ms gives a pair its own time" if config.device.is_emulated else "nothing overlaps here"
        notes.append(f"{whole.name} has {len(whole.pairs)} pairs, each run as its F, then its B: {where}")
    if built.copies > 1 and getattr(config.device, "reduce_ms", 0) is None and config.profile is None:
        notes.append(
            f"{built.name} sums the gradients of its {built.copies} copies of the model in real time, which is a part "
            "of the step but of no prediction: device.reduce_ms gives the sum of a stage a nominal time"
        )
    return tuple(notes)


def not_frozen(config: Config, schedule: Schedule, partition: Partition) -> list[str]:
    """Return of each stage that has no W, and no B, that the model trains one of its layers, one sentence each."""
    divided = {stage for stage, _ in schedule.input_gradients}
    stages = sorted(divided - schedule.last_gradients.keys()) if divided else []
    trained = {stage: set(partition.layers_of(stage % schedule.depth)) - set(config.model.frozen) for stage in stages}
    return [
        f"schedule={config.schedule['name']} has no W for stage {stage}, and model={config.model.name} trains its "
        f"layer {min(layers)}: write a W for each I of it, or freeze all weights of its layers (requires_grad_(False))"
        for stage, layers in trained.items()
        if layers
    ]


# --- the partition ----------------------------------------------------------------------------------


class Chosen(NamedTuple):
    """A partition and how it was made."""

    partition: Partition
    notes: tuple[str, ...] = ()  # what the user should know about it, one sentence each
    by_costs: bool = False  # whether its builder asked what the partition is for

    def asked(self, config: dict[str, Any]) -> dict[str, Any]:
        """Return the plain configuration by which the run is known: a partition that was computed counts by its sizes.

        The same sizes are the same question, whatever the costs were from which they follow.
        """
        if not self.by_costs:
            return config
        builder = f"{of_sizes.__module__}.{of_sizes.__name__}"
        return {**config, "partition": {"name": "sizes", "builder": builder, "sizes": list(self.partition.sizes)}}


def choose_partition(config: Config, schedule: Schedule | None) -> Chosen | None:
    """Return the partition that the builder of group `partition` makes, or raise ValueError with what is wrong with it.

    None if the builder asks what the partition is for, and that is refused anyway, such as the order, which is None.
    """
    device = config.device
    given = {"layers": config.model.layers, "stages": config.ranks if schedule is None else schedule.depth}
    if not is_computed(config.partition):
        return Chosen(build("partition", config.partition, Partition, **given))
    if schedule is None or device.problems() or device.speed_problems(config.ranks) or config.model.problems():
        return None
    task = _task_of(config, schedule)
    partition = build("partition", config.partition, Partition, task=task, **given)
    if task.prices.is_known:
        return Chosen(partition, by_costs=True)
    note = (
        f"partition={config.partition['name']} {list(partition.sizes)} weighs layers by their FLOPs and bytes, "
        "because no times of them are known"
    )
    remedy = "" if config.compile else f": {profile_command(config)} measures them"
    return Chosen(partition, (note + remedy,), by_costs=True)


def _task_of(config: Config, schedule: Schedule) -> Task:
    """Return what the partition is for, or raise ValueError if a model whose memory counts cannot be measured."""
    workload, cap = asked_workload(config, schedule), memory_cap(config)
    ranks, split = None, bool(schedule.input_gradients)
    if cap is not None:
        memory = layer_memory(config.model, workload.mean_rows, split, config.computing, schedule.slices)
        ranks = Ranks(workload, memory, config.model.batch_bytes(sum(workload.rows)))
    return Task(workload, prices_of(config), ranks, cap)


# --- the snapshot -----------------------------------------------------------------------------------


def find_resumed(config: Config, job: Job) -> Snapshot | None:
    """Return the snapshot from which a job goes on; None if it starts at its beginning.

    Raises:
        ConfigError: the snapshot is not there, is damaged, or is not of this training.
    """
    path = config.snapshot.path
    snapshot: Snapshot | None = None
    try:
        if path is not None:
            snapshot = snapshots.find_snapshot(Path(path).expanduser())
        elif config.snapshot.resume:
            snapshot = snapshots.unfinished_snapshot(_run(config, job), job.training_steps)
        problem = snapshots.snapshot_problem(snapshot, job) if snapshot else None
    except RecordError as error:
        problem = str(error)
    if problem:
        raise ConfigError([problem if path is None else f"snapshot.path: {problem}"])
    return snapshot


def nothing_to_resume(config: Config, job: Job) -> list[str]:
    """Return that `snapshot.resume=true` finds nothing, for a run alone; a sweep's point starts at its beginning."""
    if not config.snapshot.resume or job.resumed:
        return []
    return [
        f"snapshot.resume=true, but {_run(config, job)} has no snapshot of an attempt that did not finish: "
        "leave it out to start at the beginning, or give snapshot.path"
    ]


def about_resumed(jobs: list[Job]) -> list[str]:
    """Return from which snapshots jobs go on, one sentence each, and which of their data have changed since."""
    resumed = [(job, job.resumed) for job in jobs if job.resumed]
    goes_on = [
        f"{job.run_id} goes on after step {snapshot.step} of {job.training_steps}, from {snapshot.folder}"
        for job, snapshot in resumed
    ]
    read, now = [], {}
    for job, snapshot in resumed:
        with suppress(RecordError, IndexError):  # the snapshot was taken out of its attempt
            path = getattr(job.data, "path", None)
            read.append((path, read_env(Path(snapshot.folder).parents[1])))
            now[path] = job.data.contents()
    return goes_on + changed_data(read, now)


def _run(config: Config, job: Job) -> Path:
    return Path(config.output_dir) / "runs" / job.run_id
