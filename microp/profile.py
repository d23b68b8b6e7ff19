"""`python -m microp.profile`: measure the times of a model's layers, for predictions. Options: `--help`."""

from microp.commands import profiling
from microp.system import run_command

main = profiling.main

if __name__ == "__main__":
    run_command(main)
