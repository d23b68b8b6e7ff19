"""Hydra's door: words of a command line become a checked configuration, and that becomes a job; the help page.

::

    words ── compose_config ─► DictConfig ── read_config ─► Config ── problems ─► refused, or ── make_job ─► Job
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
from microp.config.job_factory import job_of, job_with, make_job
from microp.config.knobs import NOTHING_LEFT, Knobs, chosen, default_values, run_of, unused
from microp.config.memory_advice import subject_of, with_advice
from microp.config.model_factory import own_model
from microp.config.partition_factory import memory_cap
from microp.config.prediction import lacks_profile, layer_memory, predict, predicted_seconds
from microp.config.pricing_job import PricingJob, costs_depend_on_order, make_pricing_job, with_order
from microp.config.profiles import doubt, machine_of, profile_command, profile_notes, profile_problems, used_profile
from microp.config.resume import about_resumed, find_resumed, nothing_to_resume
from microp.config.schema import Config, OrderConfig, PlanConfig, ProfileConfig, SimulateConfig, is_fixed
