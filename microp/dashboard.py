"""`python -m microp.dashboard [EXPERIMENT]`: makes the W&B dashboard of an experiment from its recorded runs."""

from __future__ import annotations

from microp.commands import dashboard
from microp.system import run_command

main = dashboard.main

if __name__ == "__main__":
    run_command(main)
