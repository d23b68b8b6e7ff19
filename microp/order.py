"""`python -m microp.order`: search for an order under a memory cap, and write it as a schedule file."""

from microp.commands import ordering
from microp.system import run_command

main = ordering.main

if __name__ == "__main__":
    run_command(main)
