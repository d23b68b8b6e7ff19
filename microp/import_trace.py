"""`python -m microp.import_trace`: read the trace of another program's pipeline as a run."""

from microp.commands import importing
from microp.system import run_command

main = importing.main

if __name__ == "__main__":
    run_command(main)
