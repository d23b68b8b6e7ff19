"""Prices a schedule: how long each action takes, when it runs, and what it holds.

::

    Schedule ─┐
    Costs ────┴─ simulate ─► spans ──► metrics of `microp.trace`

    costs        per stage and hop: given, nominal, or calibrated from measured spans
    layer_times, layer_memory   costs and memory of stages, from those of their layers
    link_model   the rules for the times of a hop
    closed_forms formulas for named schedules
"""

from microp.simulator import closed_forms
from microp.simulator.calibration import (
    calibrate,
    calibrate_steps,
    kind_of,
    replay,
    replay_reductions,
    replay_steps,
    schedule_of,
)
from microp.simulator.costs import PER_STAGE, Costs, for_stages
from microp.simulator.layer_memory import (
    MOST_ROWS,
    LayerBytes,
    LayerMemory,
    Moved,
    Size,
    compose_memory,
    extra_memory,
    weight_bytes,
)
from microp.simulator.layer_times import NO_TIMES, LayerTimes, costs_of
from microp.simulator.link_model import LINK_MODELS, Asynchronous, LinkModel
from microp.simulator.memory import StageMemory
from microp.simulator.nominal import nominal_costs, nominal_optimizer, slowed
from microp.simulator.shared_cores import equal_shares, simulate_on_cores
from microp.simulator.simulation import Simulated, critical_path, simulate

__all__ = [
    "LINK_MODELS",
    "MOST_ROWS",
    "NO_TIMES",
    "PER_STAGE",
    "Asynchronous",
    "Costs",
    "LayerBytes",
    "LayerMemory",
    "LayerTimes",
    "LinkModel",
    "Moved",
    "Simulated",
    "Size",
    "StageMemory",
    "calibrate",
    "calibrate_steps",
    "closed_forms",
    "compose_memory",
    "costs_of",
    "critical_path",
    "equal_shares",
    "extra_memory",
    "for_stages",
    "kind_of",
    "nominal_costs",
    "nominal_optimizer",
    "replay",
    "replay_reductions",
    "replay_steps",
    "schedule_of",
    "simulate",
    "simulate_on_cores",
    "slowed",
    "weight_bytes",
]
