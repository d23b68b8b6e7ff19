"""Lab 2: the memory wall. Compares the memory that training a model needs with the memory of a card.

::

    40 GB  ████████████████████  parameters                  a card of 24 GB
    40 GB  ████████████████████  their gradients             ████████████│
    80 GB  ████████████████████████████████████████  Adam's two moments

A number in float32 takes 4 bytes. GB are 10^9 bytes, as in the specification of a card.
"""

from __future__ import annotations

import math

from microp.config import job_of
from microp.device import probe_layers
from microp.simulator import stage_bytes
from microp.system import CommandParser, run_command

GB = 1e9
MEASURED_DIM = 256


def activation_bytes(rows: int, layers: int, dim: float) -> float:
    """Return the bytes that the layers keep for the backward of `rows` rows, measured at a small width and scaled."""
    job = job_of("ranks=1", "chunks=1", f"batch_size={rows}", f"model.dim={MEASURED_DIM}", f"model.layers={layers}")
    measured = probe_layers(job.model, rows, split=False)
    return stage_bytes(measured, rows, job.checkpointing).whole / MEASURED_DIM * dim


def main(arguments: list[str] | None = None) -> None:
    """Print the memory that training a model needs, and the number of cards with that memory."""
    parser = CommandParser(prog="python -m microp.labs.memory_wall", description=main.__doc__)
    parser.add_argument("--parameters", type=float, default=10e9, help="parameters of the model (default: 1e10)")
    parser.add_argument("--layers", type=int, default=16, help="layers of the model (default: 16)")
    parser.add_argument("--rows", type=int, default=256, help="rows of a batch (default: 256)")
    parser.add_argument("--card", type=float, default=24, help="memory of a card in GB (default: 24, an RTX 4090)")
    options = parser.parse_args(arguments)
    dim = math.sqrt(options.parameters / options.layers)
    weights = 4 * options.parameters
    kept = {
        "parameters, float32": weights,
        "gradients": weights,
        "Adam's two moments": 2 * weights,
        f"activations of {options.rows} rows": activation_bytes(options.rows, options.layers, dim),
    }
    print(f"{options.parameters:,.0f} parameters: {options.layers} layers, each {dim:,.0f} wide\n")
    for name, size in kept.items():
        print(f"{size / GB:8.2f} GB  {name:24} {'█' * min(60, round(size / GB / 2))}")
    total = sum(kept.values())
    print(f"{total / GB:8.2f} GB  in all; a card has {options.card:g} GB: {'█' * round(options.card / 2)}\n")
    verdict = "do not fit" if weights > options.card * GB else "fit"
    print(f"The parameters alone are {weights / GB:g} GB: they {verdict} on a card of {options.card:g} GB.")
    cards = math.ceil(total / GB / options.card)
    print(f"Cut into equal stages, training needs {cards} cards and {total / cards / GB:.1f} GB on each.")


if __name__ == "__main__":
    run_command(main)
