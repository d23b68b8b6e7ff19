"""Makes a job from a configuration: checks everything, and builds the schedule and the partition once.

::

    Config ── make_job ──► Job
                     └───► ConfigError: all problems at once
"""

from __future__ import annotations

import logging
from dataclasses import replace

from microp.app import config_checks
from microp.app.config import compose_config, plain, read_config
from microp.app.errors import ConfigError
from microp.app.factory import build
from microp.app.memory_advice import memory_problem
from microp.app.partition_factory import Chosen, choose_partition
from microp.app.profiles import rows_of_first_replica, times_of
from microp.app.resume import find_resumed
from microp.app.schema import Config
from microp.job import Job, Workload, question_id, run_id, torch_problems
from microp.schedule import Action, Op, Partition, Schedule, builders, spread, to_text, validate
from microp.settings import EmulatedSettings, OwnSettings, quoted
from microp.simulator import closed_forms, nominal_costs, nominal_optimizer

log = logging.getLogger(__name__)


def make_job(config: Config) -> Job:
    """Return the job that the configuration describes.

    Raises:
        ConfigError: the configuration is wrong; its `problems` lists all problems.
    """
    found = config_checks.problems(config)
    schedule, order, refused = _schedule_of(config)
    found += refused
    chosen, refused = _partition_of(config, schedule)
    found += refused
    if schedule is not None and chosen is not None and not found:
        config = replace(config, device=times_of(config, schedule, chosen.partition.sizes))
    if schedule is not None and chosen is not None:
        found += _nominal_problems(config, schedule, chosen.partition)
    found += _sync_problems(config, schedule)
    if found or schedule is None or chosen is None:
        raise ConfigError(found)
    asked = chosen.asked({**plain(config), "model": config.model.identity})
    job = job_with(config, schedule, chosen.partition, run_id(asked, order), question_id(asked, order))
    if problem := memory_problem(config, job):
        raise ConfigError([problem])
    return replace(job, resumed=find_resumed(config, job), notes=chosen.notes)


def job_with(config: Config, schedule: Schedule, partition: Partition, run: str, question: str) -> Job:
    """Return the job of a valid configuration with this order and this partition, and with these ids."""
    return Job(
        run_id=run,
        question_id=question,
        schedule=schedule,
        partition=partition,
        model=config.model,
        checkpointing=config.checkpointing,
        data=config.data,
        device=config.device,
        backend=config.comms.backend(config.device),
        timeout_s=config.comms.timeout_s,
        batch_size=config.batch_size,
        steps=config.steps,
        warmup_steps=config.warmup_steps,
        learning_rate=config.learning_rate,
        optimizer=config.optimizer,
        computing=config.computing,
        seed=config.seed,
        engine=config.engine,
        sync=config.sync,
        replicas=config.replicas,
        snapshot=config.snapshot,
    )


def job_of(*overrides: str) -> Job:
    """Return the job that these overrides give on the command line of a run, for example `schedule=1f1b`.

    Raises:
        ConfigError: the configuration is wrong; its `problems` lists all problems.
    """
    return make_job(read_config(compose_config(*overrides)))


def make_schedule(config: Config) -> Schedule:
    """Return the schedule that the builder of group `schedule` makes; a user's own gets the name of its option.

    Raises:
        ValueError: a key is unknown or of the wrong type, the builder refuses the numbers or fails, or
            a user's own schedule has the name of one of microp's.
    """
    return _named(config, _built(config))


def _built(config: Config) -> Schedule:
    return build("schedule", config.schedule, Schedule, ranks=config.ranks, chunks=config.chunks)


def _named(config: Config, schedule: Schedule) -> Schedule:
    """Return the schedule; one that a user's own function made gets the name of its option.

    The function can return any name, also that of a schedule with closed forms, which would be wrong for it.
    """
    name, builder = config.schedule["name"], config.schedule["builder"]
    if builder.startswith(f"{builders.__name__}."):
        return schedule
    if problem := _form_problem(schedule, config.ranks, config.chunks):
        raise ValueError(f"schedule.builder={builder} returned {problem}")
    if name.removesuffix("_lifo") in closed_forms.NAMES:
        raise ValueError(
            f"schedule.name={name} is the name of one of microp's schedules, but builder={builder} is not microp's: "
            "choose another name"
        )
    return replace(schedule, name=name)


def _form_problem(schedule: Schedule, ranks: int, chunks: int) -> str | None:
    """Return what a user's own function returned if it is no schedule for these numbers, with the remedy."""
    try:
        strange = next((each for row in schedule.ranks for each in row if not _is_action(each)), None)
        given = len(schedule.ranks), schedule.chunks
    except TypeError:
        return "a Schedule whose `ranks` are not rows of actions: give a tuple of one tuple per rank"
    if strange is not None:
        return f"a Schedule with {quoted(repr(strange))}: give actions, such as Action(Op.F, 0, 0)"
    if given != (ranks, chunks):
        return f"a Schedule for ranks={given[0]}, chunks={given[1]}: return one for ranks={ranks}, chunks={chunks}"
    return None


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
        built = _built(config)
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


def _partition_of(config: Config, schedule: Schedule | None) -> tuple[Chosen | None, list[str]]:
    if not 1 <= config.ranks <= config.model.layers:
        return None, []
    try:
        return choose_partition(config, schedule), []
    except ValueError as error:
        return None, [str(error)]


def _nominal_problems(config: Config, schedule: Schedule, partition: Partition) -> list[str]:
    if not isinstance(config.device, EmulatedSettings) or config.device.problems():
        return []
    try:
        rows = rows_of_first_replica(config)
        nominal_costs(config.device, Workload(schedule, partition.sizes, rows, config.checkpointing), rows=1)
        nominal_optimizer(config.device, partition.sizes)
    except ValueError as error:
        return [str(error)]
    return []


def _sync_problems(config: Config, schedule: Schedule | None) -> list[str]:
    backend = config.comms.backend(config.device)
    if schedule is None or config.replicas < 2:
        return config.sync.problems("", False, backend)
    return config.sync.problems(schedule.name, bool(schedule.split), backend)
