"""Models as people write them train as in plain PyTorch, or are refused: in every schedule that divides, and in others.

shapes x schedules x partitions x checkpointing x types x replicas: each shape meets each partition with each way of
checkpointing, while schedules, types and replicas take turns over the shapes; with `--whole` all meet all.
"""

from collections.abc import Iterator
from itertools import cycle, islice, product

import pytest
import shape_runs
from shape_runs import CUTS, DIVIDED, MODES, SYNCS, WHOLE, Case
from shapes import SHAPES

TYPES = ("float32", "float64")  # what is to be refused may have weights that are no layer's, of the first type
NAMES = list(SHAPES)


def cases(name: str, whole: bool) -> Iterator[Case]:
    """The cases of a shape, without those that a configuration refuses: changed buffers recomputed, or of replicas."""
    shape, place = SHAPES[name], NAMES.index(name)
    types = TYPES if shape.expect == "equal" else TYPES[:1]
    if not whole:
        types = [types[place // 2 % len(types)]]  # to inspect a model takes longer than to train it
    syncs = () if shape.changes_buffers else SYNCS
    ways = list(product(CUTS, MODES[:1] if shape.changes_buffers else MODES, types))
    if whole:
        for ranks, schedule, sync, way in product((2, 3), (*DIVIDED, *WHOLE), ("", *syncs), ways):
            if has_layers(schedule, ranks):
                yield Case(schedule, *way, sync=sync, ranks=ranks)
    turns = islice(cycle(ways), place, None)
    steps = (0, 3) if shape.expect == "refused" or shape.is_slow else (0, 3, 5)
    for schedule in (*(DIVIDED[(place + step) % len(DIVIDED)] for step in steps), WHOLE[place % 2]):
        yield Case(schedule, *next(turns))
    if shape.expect != "refused" and syncs:
        where = (WHOLE[place // 2 % 2], "ddp") if place % 2 else (DIVIDED[place % len(DIVIDED)], list(SYNCS)[place % 3])
        yield Case(where[0], *next(turns), sync=where[1])
    if place % 3 == 1:
        yield Case("zb_h1", *next(turns), batches_weights=True)


def has_layers(schedule: str, ranks: int) -> bool:
    """Whether five layers are enough for the stages: those schedules that have two on a rank need six on three."""
    return ranks < 3 or schedule in ("zb_h1", "zb_h2", *WHOLE)


@pytest.mark.parametrize("name", NAMES)
def test_every_shape(name, whole):
    problems = {str(case): said for case in cases(name, whole) if (said := shape_runs.problem(name, case))}
    assert not problems, "\n".join(f"{case}: {said}" for case, said in problems.items())
