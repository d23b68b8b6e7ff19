"""`python -m microp.wandb_grid NAME`: makes files for `wandb sweep` that together give the runs of a stored sweep."""

from __future__ import annotations

from pathlib import Path

from microp.app import ConfigError, answer_version, wandb_grid
from microp.settings import CommandParser, run_command
from microp.terminal import console


def main(arguments: list[str] | None = None) -> int:
    """Print the grids or write them into files. Exit code 2 for bad input."""
    answer_version()
    parser = CommandParser(prog="python -m microp.wandb_grid", description=__doc__)
    parser.add_argument("name", help="a stored sweep, for example m_sensitivity")
    parser.add_argument("--part", help="only this part of it, for example k4_batch")
    parser.add_argument(
        "--output", type=Path, help="a file .yaml, or a folder for one file per grid; without it they are printed"
    )
    parser.add_argument("--config-dir", "-cd", type=Path, help="a folder of your own stored sweeps")
    options = parser.parse_args(arguments)
    try:
        grids = wandb_grid.grids_of(options.name, options.part, options.config_dir)
        if options.output is None:
            print("---\n".join(grid.to_yaml() for grid in grids), end="")
            if len(grids) > 1:
                console.note(
                    f"{len(grids)} grids, because one cannot leave points out: --output DIR writes a file for each"
                )
            return 0
        for file, grid in wandb_grid.files_of(grids, options.output):
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(grid.to_yaml())
            print(f"wandb sweep {file}")
    except ConfigError as error:
        for problem in error.problems:
            console.error(problem)
        return 2
    except OSError as error:
        console.error(f"cannot write {error.filename}: {error.strerror}")
        return 2
    return 0


if __name__ == "__main__":
    run_command(main)
