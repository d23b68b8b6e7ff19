"""What W&B's agent makes of a grid."""

from __future__ import annotations

from itertools import product

import yaml


def words_of(text: str) -> list[list[str]]:
    """The words that W&B's agent gives each run of a grid."""
    from wandb.sdk.launch.sweeps.utils import create_sweep_command_args  # takes 2 s, and few tests need it

    parameters = yaml.safe_load(text)["parameters"]
    chosen = product(*(parameter["values"] for parameter in parameters.values()))
    runs = [{key: {"value": value} for key, value in zip(parameters, values, strict=True)} for values in chosen]
    return [create_sweep_command_args({"args": run})["args_no_hyphens"] for run in runs]
