"""`python -m microp.runs`: lists recorded runs, newest first; compares or deletes them."""

from __future__ import annotations

from microp.commands import listing
from microp.system import run_command

main = listing.main

if __name__ == "__main__":
    run_command(main)
