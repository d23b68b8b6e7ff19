"""`python -m microp.simulate`: price a schedule and draw it. Options: `--help`."""

from microp.commands import pricing
from microp.system import run_command

main = pricing.main

if __name__ == "__main__":
    run_command(main)
