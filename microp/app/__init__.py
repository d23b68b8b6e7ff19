"""The command line and the Python interface: composes and checks configurations, runs points and sweeps.

::

    command line ─ run_app ─► Config ─ make_job ─► Job ─ run_point ─► an attempt on disk ─► table
    Python       ─ measure, price ──┘

Names are imported when they are used, and torch only where ranks are started or memory is measured, so
that `--version`, `--help` and TAB are quick.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from microp.app.config import compose_config, read_config
    from microp.app.errors import ConfigError, RunError
    from microp.app.help_page import about_sweep
    from microp.app.hydra_app import run_app
    from microp.app.interface import Run, measure, price
    from microp.app.job_factory import job_of, make_job
    from microp.app.ordering import run_order
    from microp.app.places import CONF, see_current_folder, sweep_names
    from microp.app.planning import run_plan, search_words
    from microp.app.points import run_point
    from microp.app.pricing import Price, run_price
    from microp.app.profiling import run_profile
    from microp.app.schema import Config
    from microp.app.version import answer_version, installed_version

_MODULES = {
    "CONF": "places",
    "Config": "schema",
    "ConfigError": "errors",
    "Price": "pricing",
    "Run": "interface",
    "RunError": "errors",
    "about_sweep": "help_page",
    "answer_version": "version",
    "compose_config": "config",
    "installed_version": "version",
    "job_of": "job_factory",
    "make_job": "job_factory",
    "measure": "interface",
    "price": "interface",
    "read_config": "config",
    "run_app": "hydra_app",
    "run_order": "ordering",
    "run_plan": "planning",
    "run_point": "points",
    "run_price": "pricing",
    "run_profile": "profiling",
    "search_words": "planning",
    "see_current_folder": "places",
    "sweep_names": "places",
}
__all__ = [
    "CONF",
    "Config",
    "ConfigError",
    "Price",
    "Run",
    "RunError",
    "about_sweep",
    "answer_version",
    "compose_config",
    "installed_version",
    "job_of",
    "make_job",
    "measure",
    "price",
    "read_config",
    "run_app",
    "run_order",
    "run_plan",
    "run_point",
    "run_price",
    "run_profile",
    "search_words",
    "see_current_folder",
    "sweep_names",
]


def __getattr__(name: str) -> Any:
    """Return a name of this package, imported from its module."""
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
