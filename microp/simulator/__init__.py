"""Prices a schedule: how long each action takes, when it runs, and what it holds.

::

    Schedule ─┐
    Costs ────┴─ simulate ─► spans ──► metrics of `microp.trace`

    costs        per stage and hop: given, nominal, calibrated from measured spans, or composed from those of layers
    stage_memory the memory of stages, from that of their layers
    rank_memory  the memory of ranks, from that of their stages and what they hold at each moment
    link_model   the rules for the times of a hop
    closed_forms formulas for named schedules
"""

from microp.simulator import closed_forms
from microp.simulator.calibration import (
    calibrate,
    calibrate_steps,
    replay,
    replay_steps,
    schedule_of,
)
from microp.simulator.costs import (
    PER_STAGE,
    Costs,
    LayerTimes,
    costs_of,
    even_shares,
    for_stages,
    ratio,
    unit_shares,
)
from microp.simulator.link_model import LINK_MODELS, LinkModel
from microp.simulator.nominal import nominal_costs, nominal_optimizer, slowed
from microp.simulator.rank_memory import Part, Ranks
from microp.simulator.shared_cores import simulate_on_cores
from microp.simulator.simulation import Simulated, critical_path, simulate, step_times
from microp.simulator.stage_memory import (
    MOST_ROWS,
    NOTHING,
    WORK,
    LayerBytes,
    LayerMemory,
    Size,
    StageBytes,
    stage_bytes,
    weight_bytes,
)
