"""`python -m microp.simulate`: what will a schedule cost? The configuration of a run, priced and drawn.

::

    Config ── schedule, costs ─► simulate ─► spans ─► makespan, three bubbles, memory, critical path
                                               ├────► the timeline as text
                                               └────► outputs/simulated/<run>/  timeline.svg .png, trace.json
"""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from fractions import Fraction
from math import inf, isfinite
from numbers import Rational
from pathlib import Path
from typing import Any

from hydra.core.utils import JobReturn
from omegaconf import MISSING, DictConfig

from microp import config as configuration
from microp import render, terminal
from microp.config import Config, make_partition, make_schedule, read, run_id
from microp.costs import Costs, for_stages
from microp.device import Workload
from microp.emulated import EmulatedSettings
from microp.footprint import batch_bytes, stage_footprint
from microp.memory import activation_peak
from microp.partition import spread
from microp.points import Point, PointsCallback, refuse
from microp.reduction import Reduction, ends_at, exposed, reductions
from microp.schedule import Schedule
from microp.schedule_io import to_text, to_torch_csv
from microp.schedules import closed_forms
from microp.simulate import Simulated, critical_path, simulate
from microp.trace import bubble_fraction, in_flight_peak, makespan, megatron_bubble, zero_bubble_rate
from microp.train import MIB
from microp.transfer import TRANSFERS
from microp.validate import validate

PROVEN = 500_000  # microbatches on ranks; beyond that the simulation, which no deadlock passes, has to do
PER_STAGE = ("forward", "backward", "weight", "recompute", "boundary", "reduction")
DRAWN = 20_000  # actions; beyond that a figure is a grey wall and a trace hundreds of megabytes


@dataclass
class CostsConfig:
    """Costs by hand; see `conf/simulate.yaml`."""

    forward: Any = MISSING
    backward: Any = MISSING
    weight: Any = MISSING
    recompute: Any = MISSING
    latency: Any = MISSING
    boundary: Any = MISSING
    bandwidth: Any = MISSING
    reduction: Any = MISSING
    transfer: str = MISSING

    def problems(self) -> list[str]:
        """What is no number, a sentence each."""
        found = []
        for key, value in self.numbers().items():
            many = isinstance(value, list) and key in PER_STAGE
            if not all(_is_number(each, key) for each in (value if many else [value])) and value is not None:
                form = "a number, or a list with one a stage" if key in PER_STAGE else "a number"
                found.append(f"costs.{key}={value} is not {form}: give {form}")
        return found

    def numbers(self) -> dict[str, Any]:
        """All but the rule."""
        return {key: value for key, value in vars(self).items() if key != "transfer"}


def _is_number(value: Any, key: str) -> bool:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    return isfinite(value) or (key == "bandwidth" and value == inf)


@dataclass
class SimulateConfig(Config):
    """A run's configuration, with what only a price needs."""

    costs: CostsConfig = MISSING
    output: str = MISSING


def problems(config: SimulateConfig) -> list[str]:
    """Everything that keeps a configuration from being priced, a sentence each."""
    found = [
        f"{key}={value} is below 1: use at least 1"
        for key in ("ranks", "chunks", "replicas", "batch_size")
        if (value := getattr(config, key)) < 1
    ]
    if config.output not in ("text", "json"):
        found.append(f"output={config.output} is not one of text, json")
    if config.costs.transfer not in TRANSFERS:
        found.append(f"costs.transfer={config.costs.transfer} is not one of {', '.join(TRANSFERS)}")
    found += config.model.problems() + config.checkpointing.problems() + config.device.problems(1)
    found += config.costs.problems()
    if not found and config.ranks * config.chunks <= PROVEN:
        try:
            make_costs(config, validate(make_schedule(config), config.activation_limit))
        except ValueError as error:
            found.append(str(error))
    return found


def make_costs(config: SimulateConfig, schedule: Schedule) -> Costs:
    """The costs that the configuration names: by hand, an emulated device's, or one a stage.

    Raises:
        ValueError: they do not fit the schedule, or are all 0; the message names the key.
    """
    costs = _named_costs(config, schedule)
    if not any((*costs.forward, *costs.backward, *costs.weight)):
        raise ValueError("no action takes any time: give one of costs.forward, costs.backward a value above 0")
    return costs


def _named_costs(config: SimulateConfig, schedule: Schedule) -> Costs:
    given = {key: _exact(value) for key, value in config.costs.numbers().items()}
    given["transfer"] = TRANSFERS[config.costs.transfer]
    by_hand = any(given[key] is not None for key in ("forward", "backward", "weight"))
    if isinstance(config.device, EmulatedSettings) and not by_hand:
        return _emulated_costs(config, config.device, schedule)
    if not by_hand:
        workload = make_workload(config, schedule)
        sizes = workload.layers if workload else (1,) * schedule.stages
        stages = [_exact(Fraction(size * config.ranks, sum(sizes))) for size in sizes]
        given |= {"forward": stages, "backward": stages, "weight": stages}
    if config.checkpointing.segments:
        given["recompute"] = given["forward"] if given["recompute"] is None else given["recompute"]
        given["spared"] = (schedule.chunks - 1,) if config.checkpointing.spare_last else ()
    return for_stages(schedule.stages, **given)


def _emulated_costs(config: SimulateConfig, device: EmulatedSettings, schedule: Schedule) -> Costs:
    """An emulated device's own; of `costs` the rule by which a hop is charged."""
    taken = [
        key for key in ("recompute", "latency", "boundary", "bandwidth", "reduction") if getattr(config.costs, key)
    ]
    if taken:
        raise ValueError(f"costs.{taken[0]} is not for device=emulated, which has times of its own: give device.*_ms")
    workload = make_workload(config, schedule)
    if workload is None and "layer" in device.per:
        raise ValueError(
            f"device.per={device.per} needs at least a layer a stage: "
            f"model.layers={config.model.layers}, and the schedule has {schedule.stages} stages"
        )
    if workload is None:
        workload = Workload(schedule, (1,) * schedule.stages, _rows(config), config.checkpointing)
    costs = device.costs(workload, config.batch_size / config.replicas / config.chunks)
    return replace(costs, transfer=TRANSFERS[config.costs.transfer])


def make_workload(config: Config, schedule: Schedule) -> Workload | None:
    """The model's layers on the schedule's stages; None if it has fewer layers than stages."""
    if config.model.layers < schedule.stages:
        return None
    layers = make_partition(config, schedule.stages).sizes
    return Workload(schedule, layers, _rows(config), config.checkpointing)


def _rows(config: Config) -> tuple[int, ...]:
    """The rows of each microbatch, of the first replica."""
    return spread(spread(config.batch_size, config.replicas)[0], config.chunks)


def _exact(value: Any) -> Any:
    """Whole numbers as integers, so that times stay exact; lists as lists of them."""
    if isinstance(value, list):
        return [_exact(each) for each in value]
    return int(value) if isinstance(value, int | float | Fraction) and value % 1 == 0 else value


def price(config: SimulateConfig) -> tuple[dict[str, Any], Simulated, Schedule]:
    """The figures of a point, its spans and its schedule."""
    schedule = make_schedule(config)
    costs = make_costs(config, schedule)
    spans = simulate(schedule, costs)
    per_rank = [len(schedule.stages_of(rank)) for rank in range(len(schedule.ranks))]
    in_flight = in_flight_peak(spans)
    figures = {
        "schedule": schedule.name,
        "ranks": len(schedule.ranks),
        "chunks": schedule.chunks,
        "makespan": makespan(spans),
        "bubble": {
            "gpipe": bubble_fraction(spans),
            "megatron": megatron_bubble(spans),
            "zero_bubble": zero_bubble_rate(spans),
        },
        "in_flight_peak": [Fraction(in_flight[rank], held) for rank, held in enumerate(per_rank)],
        "peak_memory_mib": _memory(config, schedule, spans),
        "closed_form": closed_forms.makespan(schedule, costs),
        "critical_path": len(critical_path(spans)),
        "reduction": _reduction(schedule, spans, costs),
    }
    return {key: _plain(value) for key, value in figures.items()}, spans, schedule


def _reduction(schedule: Schedule, spans: Simulated, costs: Costs) -> dict[str, Any] | None:
    """When the step is over with its sums over the replicas, and how long each rank waits for them."""
    sums = _sums(schedule, spans, costs)
    if not sums:
        return None
    left = exposed(spans, sums)
    return {"makespan": ends_at(spans, sums), "exposed": [left[rank] for rank in range(len(schedule.ranks))]}


def _sums(schedule: Schedule, spans: Simulated, costs: Costs) -> list[Reduction]:
    return reductions(schedule, spans, costs.reduction) if costs.reduction else []


def _memory(config: SimulateConfig, schedule: Schedule, spans: Simulated) -> list[float] | None:
    """The peak of each rank: weights with Adam's state, the batch, activations; None for a model that was not built."""
    workload = make_workload(config, schedule)
    if workload is None:
        return None
    try:
        footprint, state = stage_footprint(config.model, workload)
    except ValueError as error:
        terminal.warn(str(error))
        return None
    peaks = activation_peak(spans, footprint)
    batch = batch_bytes(config.model, spread(config.batch_size, config.replicas)[0])
    ends = {schedule.placement[0], schedule.placement[schedule.stages - 1]}
    return [
        (sum(state[stage] for stage in schedule.stages_of(rank)) + (batch if rank in ends else 0) + peaks[rank]) / MIB
        for rank in range(len(schedule.ranks))
    ]


def _plain(value: Any) -> Any:
    """What JSON can say: whole numbers as integers, other exact numbers as floats."""
    if isinstance(value, dict):
        return {key: _plain(each) for key, each in value.items()}
    if isinstance(value, list):
        return [_plain(each) for each in value]
    if value is None or isinstance(value, str):
        return value
    return value.numerator if isinstance(value, Rational) and value.denominator == 1 else float(value)


def run(config: DictConfig) -> dict[str, Any]:
    """Hydra's task: price one point, print it or draw it, and give its figures."""
    point = read(config)
    assert isinstance(point, SimulateConfig)
    try:
        with terminal.err.status(f"pricing {point.schedule['name']}"):
            figures, spans, schedule = price(point)
    except ValueError as error:
        refuse([str(error)])
    if point.output == "json":
        print(json.dumps(figures), flush=True)
        return figures
    folder = Path(point.output_dir) / "simulated" / run_id(point)
    drawn = len(spans) <= DRAWN
    if drawn:
        folder.mkdir(parents=True, exist_ok=True)
        render.figure({"simulated": spans}, folder.name, folder / "timeline", render.UNITS)
        render.perfetto({"simulated": spans}, schedule, folder / "trace.json", render.UNITS)
        (folder / "schedule.txt").write_text(to_text(schedule))
        (folder / "schedule.csv").write_text(to_torch_csv(schedule))
    sums = _sums(schedule, spans, make_costs(point, schedule))
    figures["text"] = render.text(spans, rows=32, sums=sums)
    figures["folder"] = str(folder) if drawn else None
    return figures


class PricingCallback(PointsCallback):
    """Checks all points before the first; shows one in full, several as a table."""

    def problems_of(self, config: Config) -> list[str]:
        assert isinstance(config, SimulateConfig)
        return problems(config)

    def begin(self, config: DictConfig, points: list[Point]) -> None:
        self._as_text = config.output == "text"
        self._figures: list[dict[str, Any]] = []

    def on_job_end(self, config: DictConfig, job_return: JobReturn, **_: Any) -> None:
        if isinstance(job_return.return_value, dict):
            self._figures.append(job_return.return_value)

    def end(self, config: DictConfig) -> None:
        if self._as_text and self._figures:
            terminal.show_prices(self._figures)


def main() -> None:
    """Compose, check, price, show. Exit code 2 for bad input."""
    from microp.run import run_hydra

    configuration.SCHEMAS["simulate"] = SimulateConfig
    run_hydra("simulate", run)
