"""`python -m microp.dashboard [EXPERIMENT]`: makes the W&B dashboard of an experiment from its recorded runs."""

from __future__ import annotations

import json
from importlib.util import find_spec
from pathlib import Path

from microp.mirror import dashboard as wandb_dashboard
from microp.records import RecordError
from microp.results import varied
from microp.settings import NEEDS_KEY
from microp.system import CommandParser, has_key, run_command
from microp.terminal import console


def main(arguments: list[str] | None = None) -> int:
    """Make two workspaces on the W&B server, or print them as JSON. Exit code 2 for bad input."""
    parser = CommandParser(prog="python -m microp.dashboard", description=main.__doc__)
    parser.add_argument("experiment", nargs="?", help="a stored sweep that was run; without it all runs")
    parser.add_argument("--outputs", default="outputs", type=Path, help="the folder with the runs (default: outputs)")
    parser.add_argument("--entity", help="the W&B team or user (default: that of the runs, else of the account)")
    parser.add_argument("--project", help="the W&B project (default: that of the runs)")
    parser.add_argument(
        "--print",
        action="store_true",
        help="print the panels, to stderr, and the specification as JSON; needs no server",
    )
    options = parser.parse_args(arguments)
    if find_spec("wandb_workspaces") is None:
        console.error(
            "the dashboard needs wandb-workspaces: install microp with its extra, as `pip install -e '.[dashboard]'`"
        )
        return 2
    name = (options.experiment or "").removesuffix("_quick") or None
    try:
        subject = wandb_dashboard.subject_of(options.outputs, name, options.entity, options.project, varied=varied)
    except RecordError as problem:
        console.error(str(problem))
        return 2
    if options.print:
        for panel in wandb_dashboard.panel_lines(subject):
            console.note(panel)
        print(json.dumps(wandb_dashboard.specification(subject), indent=1))
        return 0
    if not has_key():
        console.error(f"the dashboard {NEEDS_KEY} add --print")
        return 2
    try:
        print("\n".join(wandb_dashboard.save(subject)))
    except Exception as failure:  # W&B may raise anything
        console.error(f"W&B failed: {failure}")
        return 1
    return 0


if __name__ == "__main__":
    run_command(main)
