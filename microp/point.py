"""`python -m microp.point FOLDER RUN`: runs one point of a sweep as the sweep's plan says; a job of Slurm does this."""

from __future__ import annotations

from microp.settings import CommandParser, run_command


def main(arguments: list[str] | None = None) -> int:
    """Run the point; exit code 1 if it did not finish, 2 if the plan does not have it, 130 if it was interrupted.

    Slurm interrupts it by SIGTERM while the ranks run.
    """
    from microp.app import answer_version, run_from_plan, see_current_folder

    answer_version()
    parser = CommandParser("microp.point", description=str(__doc__).partition(": ")[2])
    parser.add_argument("folder", help="the sweep's folder, outputs/sweeps/<time>_<name>")
    parser.add_argument("run", help="the id of one of its runs")
    options = parser.parse_args(arguments)
    see_current_folder()
    return run_from_plan(options.folder, options.run)


if __name__ == "__main__":
    run_command(main)
