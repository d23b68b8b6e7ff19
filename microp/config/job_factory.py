"""Makes a job from a configuration: checks everything, and builds the schedule and the partition once.

::

    Config ── make_job ──► Job
                     └───► ConfigError: all problems at once
"""

from __future__ import annotations

import logging
from dataclasses import fields, replace
from typing import Any

from microp.config import config_checks
from microp.config.config import compose_config, plain, read_config
from microp.config.errors import ConfigError
from microp.config.factory import build
from microp.config.memory_advice import memory_problem
from microp.config.partition_factory import Chosen, choose_partition
from microp.config.profiles import rows_of_first_replica, times_of
from microp.config.resume import find_resumed
from microp.config.schema import Config
from microp.job import Job, Workload, question_id, run_id, torch_problems
from microp.schedule import Action, Op, Partition, Schedule, builders, spread, to_text, validate
from microp.settings import EmulatedSettings, OwnSettings, quoted
from microp.simulator import closed_forms, nominal_costs, nominal_optimizer

log = logging.getLogger(__name__)


def make_job(config: Config) -> Job:
    """Return the job that the configuration describes, or raise ConfigError with all that is wrong."""
    found = config_checks.problems(config)
    schedule, order, refused = _schedule_of(config)
    found += refused
    chosen: Chosen | None = None
    try:
        if 1 <= config.ranks <= config.model.layers:
            chosen = choose_partition(config, schedule)
        if schedule is not None and chosen is not None:
            sizes = chosen.partition.sizes
            if not found:
                config = replace(config, device=times_of(config, schedule, sizes))
            if isinstance(config.device, EmulatedSettings) and not config.device.problems():
                rows = rows_of_first_replica(config)
                nominal_costs(config.device, Workload(schedule, sizes, rows, config.checkpointing), rows=1)
                nominal_optimizer(config.device, sizes)
    except ValueError as error:
        found.append(str(error))
    name, is_split = ("", False) if schedule is None or config.replicas < 2 else (schedule.name, bool(schedule.split))
    found += config.sync.problems(name, is_split, config.comms.backend(config.device))
    if found or schedule is None or chosen is None:
        raise ConfigError(found)
    asked = chosen.asked({**plain(config), "model": config.model.identity})
    job = job_with(config, schedule, chosen.partition, run_id(asked, order), question_id(asked, order))
    if problem := memory_problem(config, job):
        raise ConfigError([problem])
    return replace(job, resumed=find_resumed(config, job), notes=chosen.notes)


def job_with(config: Config, schedule: Schedule, partition: Partition, run: str, question: str) -> Job:
    """Return the job of a valid configuration with this order and this partition, and with these ids."""
    own: dict[str, Any] = {"schedule": schedule, "partition": partition, "run_id": run, "question_id": question}
    own |= {"backend": config.comms.backend(config.device), "timeout_s": config.comms.timeout_s}
    keys = {field.name for field in fields(Job)} - own.keys()
    return Job(**own, **{key: getattr(config, key) for key in keys if hasattr(config, key)})  # the keys of both


def job_of(*overrides: str) -> Job:
    """Return the job of a run's overrides, such as `schedule=1f1b`, or raise ConfigError with all that is wrong."""
    return make_job(read_config(compose_config(*overrides)))


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
    if builder.startswith(f"{builders.__name__}."):
        return schedule
    what, ranks, chunks = f"schedule.builder={builder} returned a Schedule", config.ranks, config.chunks
    try:
        strange = [each for row in schedule.ranks for each in row if not _is_action(each)]
        given = len(schedule.ranks), schedule.chunks
    except TypeError:
        raise ValueError(f"{what} whose `ranks` are not rows of actions: give a tuple of one tuple per rank") from None
    if strange:
        raise ValueError(f"{what} with {quoted(repr(strange[0]))}: give actions, such as Action(Op.F, 0, 0)")
    if given != (ranks, chunks):
        raise ValueError(
            f"{what} for ranks={given[0]}, chunks={given[1]}: return one for ranks={ranks}, chunks={chunks}"
        )
    if name.removesuffix("_lifo") in closed_forms.NAMES:
        raise ValueError(
            f"schedule.name={name} is the name of one of microp's schedules, but builder={builder} is not microp's: "
            "choose another name"
        )
    return replace(schedule, name=name)


def _is_action(value: object) -> bool:
    return (
        isinstance(value, Action)
        and isinstance(value.op, Op)
        and type(value.stage) is type(value.microbatch) is int  # a bool is no index
    )


def _schedule_of(config: Config) -> tuple[Schedule | None, str, list[str]]:
    """Return the schedule, its text with the builder's own name, which identifies runs, and its problems.

    The schedule is None if it is invalid, or its numbers are refused anyway.
    """
    if not config_checks.is_worth_a_schedule(config):
        return None, "", []
    try:
        built = build("schedule", config.schedule, Schedule, ranks=config.ranks, chunks=config.chunks)
        limit = config.activation_limit
        schedule = validate(_named(config, built), None if limit is None or limit < 1 else limit)
        log.debug("%s is valid: %d ranks, %d chunks", schedule.name, config.ranks, config.chunks)
    except ValueError as error:
        return None, "", [str(error)]
    found: list[str] = []
    if config.compile and schedule.split:
        found.append(
            f"schedule={config.schedule['name']} divides the backward into B and W, and compile=true makes one "
            "function of both: use a schedule without W, for example 1f1b, or compile=false"
        )
    if isinstance(config.model, OwnSettings) and schedule.split:
        found += config.model.facts.undivided
    if config.engine.name == "torch":
        found += torch_problems(schedule, config.checkpointing, spread(config.batch_size, config.chunks))
    return schedule, to_text(built), found
