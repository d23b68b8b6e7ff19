"""Hydra's door: words of a command line become a checked configuration, and that becomes a job; the help page.

::

    words ── compose_config ─► DictConfig ── read_config ─► Config ── problems ─► refused, or ── make_job ─► Job
"""

from microp.config.config import (
    Composed,
    compose_config,
    compose_points,
    from_plain,
    is_basic,
    lost_keys,
    plain,
    read_composed,
    read_config,
    register,
    stored,
    to_yaml,
    typed_folder,
    typed_overrides,
    what_runs,
    with_profiles,
    word_problems,
)
from microp.config.errors import REFUSED, ConfigError, RunError, Stop, log_traceback, refusal, tracebacks, typed_words
from microp.config.factory import own_model
from microp.config.help_page import key_page, sweep_page
from microp.config.job_factory import about_resumed, find_resumed, job_of, job_with, make_job, nothing_to_resume
from microp.config.knobs import NOTHING_LEFT, Knobs, chosen, run_of, unused
from microp.config.memory_advice import NO_MEMORY, memory_cap, subject_of
from microp.config.prediction import (
    doubt,
    lacks_profile,
    machine_of,
    order_peaks,
    predict,
    predicted_seconds,
    prices_of,
    profile_command,
    profile_notes,
    profile_problems,
    used_profile,
)
from microp.config.pricing_job import PricingJob, costs_depend_on_order, make_pricing_job, with_order
from microp.config.schema import Config, OrderConfig, PlanConfig, ProfileConfig, SimulateConfig, default_values
