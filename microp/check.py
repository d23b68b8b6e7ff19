"""`python -m microp.check`: checks in under a minute that microp works here and that its mathematics is right."""

from microp.commands import self_checks
from microp.system import run_command

main = self_checks.main

if __name__ == "__main__":
    run_command(main)
