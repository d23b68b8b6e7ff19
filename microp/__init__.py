"""microp: a laboratory for pipeline parallelism in PyTorch.

A schedule is a value. It is validated, priced, drawn and run; simulated and measured
time are the same type, so that a replay and a measurement are compared by one join::

    Schedule ──┬── validate
               ├── simulate ─► spans ─┐
               ├── engine ───► spans ─┴─► metrics, drawings, records, report
               └── draw

In Python::

    run = microp.measure(schedule="1f1b", chunks=8)     # on real processes: run.summary, run.steps, run.spans
    price = microp.price(schedule="1f1b", chunks=8)     # simulated: price.makespan, price.bubble, price.spans
    runs = microp.sweep(schedule=["gpipe", "1f1b"], chunks=[4, 8])  # a DataFrame with one row per run
    runs = microp.load_runs("outputs")                  # the same of all runs that are there
    with microp.marked(schedule): ...                   # names the actions of one of torch's schedules in a profile
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from microp.commands.interface import ConfigError, Price, Run, RunError, load_runs, measure, price, sweep
    from microp.device import marked

__version__ = "0.1.0"
__all__ = ["ConfigError", "Price", "Run", "RunError", "load_runs", "marked", "measure", "price", "sweep"]


def __dir__() -> list[str]:
    return __all__


def __getattr__(name: str) -> Any:
    """Return a name of the interface, imported only when it is used, so that `import microp` is quick."""
    if name not in __all__:
        raise AttributeError(f"module 'microp' has no attribute {name!r}")
    if name == "marked":  # for a training that knows nothing of microp otherwise
        from microp.device import marked

        return marked
    from microp.commands import interface

    return getattr(interface, name)
