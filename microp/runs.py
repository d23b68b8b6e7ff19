"""`python -m microp.runs`: lists recorded runs, newest first; compares or deletes them."""

from microp.system import run_command
from microp.terminal import run_list

main = run_list.main

if __name__ == "__main__":
    run_command(main)
