"""`python -m microp.tracking`: mirror to Weights & Biases what has not been mirrored yet."""

from __future__ import annotations

from microp.commands import tracking
from microp.system import run_command

main = tracking.main

if __name__ == "__main__":
    run_command(main)
