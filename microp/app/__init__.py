"""The command line and the Python interface: composes and checks configurations, runs points and sweeps.

::

    command line ─ run_app ─► Config ─ make_job ─► Job ─ run_point ─► an attempt on disk ─► table
    Python       ─ measure, price ──┘

torch is imported only where ranks are started or memory is measured.
"""

from microp.app.config import compose_config, read_config
from microp.app.errors import ConfigError, RunError
from microp.app.help_page import about_sweep
from microp.app.hydra_app import run_app
from microp.app.interface import Run, measure, price
from microp.app.job_factory import job_of, make_job
from microp.app.ordering import run_order
from microp.app.places import CONF, answer_version, installed_version, sweep_names
from microp.app.planning import run_plan, search_words
from microp.app.points import run_point
from microp.app.pricing import Price, run_price
from microp.app.profiling import run_profile
from microp.app.schema import Config
