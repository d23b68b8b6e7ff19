"""Hydra's door: words of a command line become a checked configuration; the help page.

::

    words ── compose_config ─► DictConfig ── read_config ─► Config
"""

from microp.config.composing import Composed, compose_points, is_basic, typed_folder, typed_overrides, word_problems
from microp.config.config import (
    compose_config,
    from_plain,
    plain,
    read_composed,
    read_config,
    register,
    to_yaml,
    what_runs,
    with_profiles,
)
from microp.config.errors import REFUSED, ConfigError, RunError, Stop, fitted, log_traceback, refusal, tracebacks
from microp.config.factory import asks_for, build
from microp.config.help_page import about_sweep, key_page, sweep_page
from microp.config.knobs import NOTHING_LEFT, Knobs, chosen, default_values, run_of, unused
from microp.config.model_factory import own_model
from microp.config.schema import Config, OrderConfig, PlanConfig, ProfileConfig, SimulateConfig, is_fixed
