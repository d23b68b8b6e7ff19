"""`python -m microp.null_stages`: measures the time of the harness itself, with stages that do nothing."""

from microp.commands import overheads
from microp.system import run_command

main = overheads.main

if __name__ == "__main__":
    run_command(main)
