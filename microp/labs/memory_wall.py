"""Lab 2: the memory wall. Compares the memory that training a model needs with the memory of a card.

::

     40 GB  ██████████  parameters
     40 GB  ██████████  their gradients
     80 GB  ████████████████████  Adam's two moments
    160 GB  ████████████████████████████████████████  in all, and activations
     24 GB  ██████  a card

A number in float32 takes 4 bytes. GB are 10^9 bytes, as in the specification of a card. A stage has whole layers.
Another card: `python -m microp.labs 2 card=80`, or `--card 80`.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Callable

from microp.config import ConfigError, job_of
from microp.device import probe_layers
from microp.labs.typed import bar, flags_of, parser_of, say
from microp.simulator import stage_bytes
from microp.system import run_command
from microp.terminal import counted

GB = 1e9
MEASURED_DIM = 256


def activation_bytes(rows: int, layers: int, dim: float) -> Callable[[int], float]:
    """Return the bytes that some of the layers keep for the backward of `rows` rows, by their number.

    They are measured at a small width and scaled. A stage of n layers keeps its input and n outputs.
    """
    job = job_of("ranks=1", "chunks=1", f"batch_size={rows}", f"model.dim={MEASURED_DIM}", f"model.layers={layers}")
    measured = probe_layers(job.model, rows, split=False)
    return lambda count: stage_bytes(measured[:count], rows, job.checkpointing).whole / MEASURED_DIM * dim


def main(arguments: list[str] | None = None) -> None:
    """Print the memory that training a model needs, and the number of cards with that memory."""
    parser, add = (made := parser_of("memory_wall", __doc__)), made.add_argument
    learned = "the numbers that the model learns, each of 4 bytes (default: 1e10)"
    add("--parameters", metavar="N", type=float, default=10e9, help=learned)
    add("--layers", metavar="N", type=int, default=16, help="equal layers that they are divided into (default: 16)")
    cost = "rows of a batch: for each, the input and every layer's output are kept until the backward (default: 256)"
    add("--rows", metavar="N", type=int, default=256, help=cost)
    add("--card", metavar="GB", type=float, default=24, help="memory of one card (default: 24, as an RTX 4090 has)")
    options = flags_of(parser, arguments)
    for key, value in vars(options).items():
        if not 0 < value < math.inf:
            parser.error(f"{key}={value:g}: use a number above 0")
    dim = math.sqrt(options.parameters / options.layers)
    weights = 4 * options.parameters
    try:
        activations = activation_bytes(options.rows, options.layers, dim)
    except ConfigError as error:
        parser.error(str(error))
    kept = {
        "parameters, float32": weights,
        "gradients": weights,
        "Adam's two moments": 2 * weights,
        f"activations, {counted(options.rows, 'row')}": activations(options.layers),
    }
    say(f"{options.parameters:,.0f} parameters: {counted(options.layers, 'layer')}, each {dim:,.0f} wide\n")
    total, card = sum(kept.values()), options.card * GB
    for name, size in {**kept, "in all": total, "a card": card}.items():
        print(bar(f"{size / GB:8.2f} GB  {name:26} ", size, max(total, card)))
    verdict = "do not fit" if weights > card else "fit"
    say(f"\nThe parameters alone are {weights / GB:g} GB: they {verdict} on a card of {options.card:g} GB.")

    def needs(count: int) -> float:
        return float(4 * weights * count / options.layers + activations(count))

    if needs(1) > card:
        say(f"A layer alone needs {needs(1) / GB:.1f} GB, more than a card: no cut between layers is enough.")
        return
    fits = bisect_right(range(1, options.layers + 1), card, key=needs)
    cards = math.ceil(options.layers / fits)
    most = math.ceil(options.layers / cards)
    count = f"{counted(most, 'layer')} and {needs(most) / GB:.1f} GB"
    say(f"Cut into stages of whole layers, training needs {counted(cards, 'card')}: at most {count} on each.")


if __name__ == "__main__":
    run_command(main)
