"""Prices a schedule: how long each action takes, when it runs, and what each rank holds.

::

    Schedule ─┐
    Costs ────┴─ simulate ─► spans ─┬─► metrics of `microp.trace`
                                    └─► activation_peak

    costs        per stage and hop: given, nominal, or calibrated from measured spans
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
    schedule_of,
)
from microp.simulator.costs import PER_STAGE, Costs, for_stages
from microp.simulator.link_model import LINK_MODELS, LinkModel
from microp.simulator.memory import StageMemory, activation_peak
from microp.simulator.nominal import nominal_costs
from microp.simulator.simulation import Simulated, critical_path, simulate

__all__ = [
    "LINK_MODELS",
    "PER_STAGE",
    "Costs",
    "LinkModel",
    "Simulated",
    "StageMemory",
    "activation_peak",
    "calibrate",
    "calibrate_steps",
    "closed_forms",
    "critical_path",
    "for_stages",
    "kind_of",
    "nominal_costs",
    "replay",
    "replay_reductions",
    "schedule_of",
    "simulate",
]
