"""`python -m microp.wandb_grid NAME`: the files for `wandb sweep` that ask for the runs of a stored sweep."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from microp import terminal
from microp.app.wandb_grid import files_of, grids_of
from microp.config import ConfigError


def main(arguments: list[str] | None = None) -> int:
    """Print the grids, or write a file for each. Exit code 2 if there is nothing to make them of."""
    parser = argparse.ArgumentParser(prog="python -m microp.wandb_grid", description=__doc__)
    parser.add_argument("name", help="a stored sweep, as m_sensitivity")
    parser.add_argument("--part", help="only this part of it, as k4_batch")
    parser.add_argument(
        "--output", type=Path, help="a file .yaml, or a folder for a file a grid; else they are printed"
    )
    parser.add_argument("--config-dir", "-cd", type=Path, help="a folder of your own stored sweeps")
    asked = parser.parse_args(arguments)
    try:
        grids = grids_of(asked.name, asked.part, asked.config_dir)
        if asked.output is None:
            print("---\n".join(grid.to_yaml() for grid in grids), end="")
            if len(grids) > 1:
                terminal.note(
                    f"{len(grids)} grids, for W&B cannot leave points out of one: --output DIR makes a file each"
                )
            return 0
        for file, grid in files_of(grids, asked.output):
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(grid.to_yaml())
            print(f"wandb sweep {file}")
    except ConfigError as error:
        for problem in error.problems:
            terminal.error(problem)
        return 2
    except OSError as error:
        terminal.error(f"cannot write {error.filename}: {error.strerror}")
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
