"""Makes a pricing job from a configuration: checks its schedule and costs, and builds them once.

::

    SimulateConfig ── make_pricing_job ──► PricingJob: schedule, costs, workload
                                      └──► ConfigError: what is wrong
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from math import inf
from typing import Any

from microp.config import prediction
from microp.config.errors import ConfigError
from microp.config.factory import is_computed
from microp.config.job_factory import Chosen, choose_partition, make_schedule, not_frozen, proved
from microp.config.schema import SimulateConfig
from microp.job import Workload
from microp.schedule import Schedule, uniform
from microp.settings import EmulatedSettings, EstimateSettings, broken_rules, quoted
from microp.simulator import LINK_MODELS, PER_STAGE, Costs, for_stages, nominal_costs, ratio, unit_shares

UNITS = ("per_microbatch", "per_slice")
SHARED = ("forward", "backward", "weight", "pair", "recompute", "reduction")  # a number is of a rank, for its stages
LARGEST = 1e15  # a cost: sums of more would not be exact
PROVEN = 500_000  # ranks times chunks; a larger schedule is not validated, only the simulation finds its deadlocks


@dataclass(frozen=True)
class PricingJob:
    """A schedule and its costs, ready to be priced."""

    config: SimulateConfig  # the valid configuration
    schedule: Schedule  # the order
    costs: Costs  # of each stage and hop
    workload: Workload | None  # the model's layers on the schedule's stages; None if it has fewer layers than stages
    notes: tuple[str, ...] = ()  # what the user should know of the costs, one sentence each
    doubts: tuple[str, ...] = ()  # why the costs may be far off

    @property
    def is_in_ms(self) -> bool:
        """Whether the costs are milliseconds: those of a device with times of its own."""
        has_times = isinstance(self.config.device, EmulatedSettings | EstimateSettings)
        return has_times and not _are_by_hand(self.config)


def make_pricing_job(config: SimulateConfig) -> PricingJob:
    """Return the pricing job that the configuration describes, or raise ConfigError with what is wrong."""
    problems = broken_rules(config)
    if config.costs.transfer not in LINK_MODELS:
        transfer = quoted(config.costs.transfer)
        problems.append(f"costs.transfer={transfer} is not one of {', '.join(LINK_MODELS)}: use one of these")
    problems += config.model.problems() + config.checkpointing.problems() + config.device.problems()
    problems += config.computing.problems(config.model.name, config.model.dtype)
    problems += _cost_problems(config.costs.numbers())
    if problems := problems or prediction.profile_problems(config):
        raise ConfigError(problems)
    try:
        schedule = make_schedule(config)
        if config.ranks * config.chunks <= PROVEN:
            proved(config, schedule, config.activation_limit)
        job = with_order(config, schedule)
    except ValueError as error:
        raise ConfigError([str(error)]) from error
    if not any((*job.costs.forward, *job.costs.backward, *job.costs.weight)) or not any(job.costs.shares or [1]):
        raise ConfigError(["no action takes any time: give one of costs.forward, costs.backward a value above 0"])
    return job


def with_order(config: SimulateConfig, schedule: Schedule) -> PricingJob:
    """Return the pricing job with this order instead of its own, or raise ValueError: the costs do not fit it."""
    if config.model.layers < schedule.depth:  # one layer per stage is priced, of no model
        workload, chosen = None, Chosen(uniform(schedule.depth, schedule.depth))
    else:
        choice = choose_partition(config, schedule)
        assert choice is not None, "there is a schedule"
        workload, chosen = prediction.asked_workload(config, schedule, choice.partition.sizes), choice
        for problem in config.model.segment_problems(config.checkpointing.segments):
            raise ValueError(problem)
    notes = list(chosen.notes)
    if (weighed := _weighs_layers(config)) and not notes:
        notes.append("layers are weighed by their FLOPs and bytes, because no times of them are known")
    costs = _costs(config, schedule, workload, weighed)
    if isinstance(config.device, EstimateSettings) and not _are_by_hand(config):
        notes.append(f"times are {prediction.prices_of(config).source}")
    doubts = []
    if workload is not None and (config.device.is_emulated or chosen.by_costs):
        doubts = prediction.profile_notes(config, [workload.mean_rows])
    if config.costs.weight is None and config.costs.backward is not None and schedule.input_gradients:
        notes.append("costs.weight is not given: I and W take half of costs.backward each")
    if workload is not None:
        if config.partition["name"] == "uniform" and len({*workload.layers}) > 1 and not _are_by_hand(config):
            notes.append(f"unequal stages: {' '.join(map(str, workload.layers[: schedule.depth]))} layers")
        notes += not_frozen(config, schedule, chosen.partition)
        notes += prediction.uneven_rows(config, workload)
    return PricingJob(config, schedule, costs, workload, tuple(notes), tuple(doubts))


def costs_depend_on_order(config: SimulateConfig) -> str | None:
    """Return the key because of which two orders on the same stages may have different costs; None if there is none."""
    if _are_by_hand(config):
        return None
    if config.device.is_emulated and config.profile is not None:
        return f"profile={config.profile}"  # the times of an action depend on the action before it
    return f"partition={config.partition['name']}" if is_computed(config.partition) else None


def _cost_problems(numbers: dict[str, Any]) -> list[str]:
    """Return what is wrong with the costs that are no numbers from 0, one sentence each."""
    problems = []
    for key, value in numbers.items():
        most = inf if key == "bandwidth" else LARGEST
        values = value if isinstance(value, list) and key in (*PER_STAGE, *UNITS) else [value]
        is_wrong = not all(type(number) in (int, float) and 0 <= number <= most for number in values)
        if value is not None and (is_wrong or (key in UNITS and values is not value)):
            form = "a number, or a list with one per stage" if key in PER_STAGE else "a number"
            form = "a list of numbers" if key in UNITS else form
            problems.append(f"costs.{key}={quoted(value)}: give {form}, from 0 to {LARGEST:g}")
    return problems


def _are_by_hand(config: SimulateConfig) -> bool:
    return any(getattr(config.costs, key) is not None for key in ("forward", "backward", "weight"))


def _weighs_layers(config: SimulateConfig) -> bool:
    """Return whether layers count by what each computes and moves: no times are known, and the stages are unlike.

    Those of the uniform partition count the same, as in the closed forms.
    """
    has_times = _are_by_hand(config) or isinstance(config.device, EmulatedSettings | EstimateSettings)
    return not has_times and config.partition["name"] != "uniform" and not prediction.prices_of(config).is_known


def _costs(config: SimulateConfig, schedule: Schedule, workload: Workload | None, weighed: bool) -> Costs:
    """Return the costs: those given by hand, the device's, or else F = I = W = 1 on an average rank.

    Layers count the same then, or, if they are `weighed`, by what each computes and moves.
    """
    given = {key: _exact(value) for key, value in config.costs.numbers().items()}
    for key in SHARED:
        if given[key] is not None and not isinstance(given[key], list):
            given[key] = ratio(given[key] * config.ranks, schedule.depth)
    if schedule.input_gradients and given["weight"] is None and given["backward"] is not None:
        both = given["backward"] if isinstance(given["backward"], list) else [given["backward"]] * schedule.depth
        given["backward"] = given["weight"] = [ratio(time, 2) for time in both]
    microbatches, slices = (given.pop(key) or [] for key in UNITS)
    given |= {"transfer": LINK_MODELS[config.costs.transfer], **unit_shares(schedule, microbatches, slices)}
    if not _are_by_hand(config):
        if isinstance(config.device, EmulatedSettings | EstimateSettings):
            return replace(_device_costs(config, schedule, workload), transfer=given["transfer"])
        sizes: Sequence[Any] = workload.layers if workload else (1,) * schedule.stages
        if workload is not None and weighed:
            sizes = list(map(Fraction, prediction.prices_of(config).costs(workload).forward))
        stages = [_exact(Fraction(size * config.ranks * schedule.copies, sum(sizes))) for size in sizes]
        given |= {"forward": stages, "backward": stages, "weight": stages}
    if config.checkpointing.segments:
        given["recompute"] = given["forward"] if given["recompute"] is None else given["recompute"]
        given["spared"] = config.checkpointing.spared(schedule.units)
    return for_stages(schedule.stages, schedule.copies, **given)


def _device_costs(config: SimulateConfig, schedule: Schedule, workload: Workload | None) -> Costs:
    """Return the costs of an emulated or an estimated device, which has its own times."""
    device = config.device
    for key in ("recompute", "latency", "boundary", "bandwidth", "reduction", *UNITS):
        if getattr(config.costs, key):
            raise ValueError(
                f"costs.{key} is not for device={device.name}, which has its own times: set the keys of device"
            )
    if workload is not None:
        if not device.is_emulated:
            return prediction.prices_of(config).costs(workload)
        return nominal_costs(prediction.times_of(config, schedule, workload.layers[: schedule.depth]), workload)
    per = getattr(device, "per", ["layer"])
    if "layer" in per:
        what = f"device.per={per}" if device.is_emulated else f"device={device.name}"
        raise ValueError(
            f"{what} needs at least one layer per stage: "
            f"model.layers={config.model.layers}, and the schedule has {schedule.stages} stages"
        )
    return nominal_costs(device, prediction.asked_workload(config, schedule, (1,) * schedule.depth))


def _exact(value: Any) -> Any:
    """Return whole numbers as integers, so that times stay exact; lists as lists of them."""
    if isinstance(value, list):
        return [_exact(number) for number in value]
    return int(value) if isinstance(value, int | float | Fraction) and value % 1 == 0 else value
