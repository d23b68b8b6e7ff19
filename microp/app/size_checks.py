"""Checks that a run fits into this machine's memory, from numbers alone: nothing is built to find out.

::

    weights    x 4        the weights, their gradients, the optimizer's state (of Adam two moments), in every replica
    batch      x 1 or 2   the text, on the rank of the first stage and on that of the last one
    boundary   x 1        the tensor between two stages, of the largest microbatch
    processes  x PROCESS  what a rank has besides

This is the least that a run needs, so that no run is refused that could have run.
"""

from __future__ import annotations

from microp.app.schema import Config
from microp.settings import GIB, MIB, memory_bytes

PROCESS = 40 * MIB  # a rank that holds a small model
WEIGHTS = "the weights, their gradients and the optimizer's state"
TEXT = "the text of the batch"
BOUNDARY = "the tensor between two stages"
REMEDIES = {
    WEIGHTS: "use a smaller model.dim, or fewer model.layers or replicas",
    TEXT: "use a smaller batch_size",
    BOUNDARY: "use a smaller batch_size or model.dim, or more chunks",
}


def memory_problems(config: Config, processes: int) -> list[str]:
    """Return why the run does not fit into this machine's memory, in at most one sentence.

    Args:
        config: a configuration whose values are good, each by itself.
        processes: the number of processes that the run starts on this machine.
    """
    model = config.model
    share = -(-config.batch_size // config.replicas)
    rows = -(-share // config.chunks)
    numbers = model.weights + (1 + config.optimizer.states) * model.trained  # a frozen weight has no gradient
    needs = {
        WEIGHTS: numbers * config.replicas * model.weight_bytes,
        TEXT: model.batch_bytes(config.batch_size) * min(config.ranks, 2),
        BOUNDARY: round(rows * model.hop_bytes((model.layers,), config.computing)),
        f"{processes} processes": PROCESS * processes,
    }
    if config.device.name == "cuda":
        needs = {TEXT: needs[TEXT]}
    if sum(needs.values()) <= memory_bytes():
        return []
    most = max(needs, key=lambda part: needs[part])
    return [
        f"this run needs at least {_gib(sum(needs.values()))} of memory, {_gib(needs[most])} of them for {most}, "
        f"but this machine has {_gib(memory_bytes())}: {REMEDIES.get(most, 'use fewer ranks or replicas')}"
    ]


def _gib(size: int) -> str:
    return f"{size / GIB:,.1f} GiB"
