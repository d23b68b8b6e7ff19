"""`python -m microp.plan`: search the fastest plans within the ranks' memory. Options: `--help`."""

from microp.commands import planning
from microp.system import run_command

main = planning.main

if __name__ == "__main__":
    run_command(main)
