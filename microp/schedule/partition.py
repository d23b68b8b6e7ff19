"""Assigns consecutive layers to stages.

::

    uniform(16, 3)                [0 ─ 5][6 ─ 10][11 ─ 15]         sizes (6, 5, 5)
    skewed(16, 3, 0.8, 0)         [0 ────────── 12][13 14][15]     sizes (13, 2, 1)
    of_sizes(16, 3, [2, 4, 10])   [0 1][2 ─ 5][6 ───────── 15]    sizes (2, 4, 10)
    balanced(16, 3, task)         by what each layer costs; `microp.planner` works it out
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import accumulate
from typing import Protocol


@dataclass(frozen=True)
class Partition:
    """An assignment of consecutive layers to stages.

    Attributes:
        sizes: the number of layers of each stage, all at least 1.

    Raises:
        ValueError: there is no stage, or a stage has no layer.
    """

    sizes: tuple[int, ...]

    def __post_init__(self) -> None:
        if not self.sizes or min(self.sizes) < 1:
            raise ValueError(f"sizes={list(self.sizes)}: every stage needs at least 1 layer")

    @property
    def layers(self) -> int:
        """The number of layers of the model."""
        return sum(self.sizes)

    def layers_of(self, stage: int) -> range:
        """Return the indices of the layers of `stage`."""
        end = list(accumulate(self.sizes))[stage]
        return range(end - self.sizes[stage], end)


def spread(items: int, places: int) -> tuple[int, ...]:
    """Return the sizes of `places` shares of `items`, as even as possible; the first shares take the remainder."""
    share, remainder = divmod(items, places)
    return tuple(share + (place < remainder) for place in range(places))


def uniform(layers: int, stages: int) -> Partition:
    """Return equal stages; if the layers do not divide evenly, the first stages have one more.

    Under 1F1B a heavy early stage costs less than a heavy late one.

    Raises:
        ValueError: there are more stages than layers.
    """
    _enough(layers, stages)
    return Partition(spread(layers, stages))


def skewed(layers: int, stages: int, share: float = 0.8, rank: int = 0) -> Partition:
    """Return `share` of the layers (rounded) on one stage, and the rest spread over the others.

    Every other stage keeps at least one layer, even if `share` would leave it none.

    Args:
        share: the share of the layers on that stage, between 0 and 1.
        rank: the number of that stage.

    Raises:
        ValueError: `share` is not between 0 and 1, `rank` is not a stage, or there are
            more stages than layers.
    """
    _enough(layers, stages)
    if not 0 < share < 1:
        raise ValueError(f"share={share} is not between 0 and 1: use a fraction of the layers, such as 0.8")
    if not 0 <= rank < stages:
        raise ValueError(f"rank={rank} is not one of the {stages} ranks: use 0 to {stages - 1}")
    if stages == 1:
        return Partition((layers,))
    heavy = min(max(1, round(share * layers)), layers - (stages - 1))
    others = spread(layers - heavy, stages - 1)
    return Partition((*others[:rank], heavy, *others[rank:]))


def of_sizes(layers: int, stages: int, sizes: list[int]) -> Partition:
    """Return the partition with exactly these sizes.

    Args:
        sizes: the number of layers of each stage, for example [4,12].

    Raises:
        ValueError: there is not one size per stage, a size is below 1, or the sizes do not
            add up to `layers`.
    """
    if len(sizes) != stages:
        raise ValueError(f"sizes={list(sizes)} has length {len(sizes)} for {stages} stages: give one size per stage")
    if sum(sizes) != layers:
        raise ValueError(f"sizes={list(sizes)} add up to {sum(sizes)}: they must add up to {layers} layers")
    return Partition(tuple(sizes))


class Task(Protocol):
    """What a partition is chosen for, `microp.planner.Task`."""

    def partition(self, layers: int) -> Partition:
        """Return the partition that makes the step as short as possible."""


def balanced(layers: int, stages: int, task: Task) -> Partition:
    """Return the partition that makes the step as short as possible, from what each layer costs.

    Args:
        task: what the partition is for.

    Raises:
        ValueError: there are more stages than layers.
    """
    _enough(layers, stages)
    return task.partition(layers)


def _enough(layers: int, stages: int) -> None:
    if stages > layers:
        raise ValueError(
            f"{stages} stages are more than {layers} layers: use model.layers={stages}, or fewer stages "
            "(ranks, schedule.stages_per_rank)"
        )
