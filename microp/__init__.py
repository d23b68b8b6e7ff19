"""microp: a laboratory for pipeline parallelism in PyTorch.

A schedule is a value. It is validated, priced, drawn and run; simulated and measured
time are the same type, so a prediction and a measurement are compared by one join::

    Schedule ──┬── validate
               ├── simulate ─► spans ─┐
               ├── engine ───► spans ─┴─► metrics, drawings, records, report
               └── render
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    __version__: str
else:

    def __getattr__(name: str) -> str:
        """`microp.__version__`, looked up when it is asked for: every rank imports this file."""
        if name != "__version__":
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        from microp.app.version import version

        return version()
