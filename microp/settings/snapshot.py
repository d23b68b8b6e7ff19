"""The settings of snapshots, which are the state of a training on disk. `microp.worker` saves and loads them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from microp.settings.rules import Line, OneOf, Range, broken_rules, quoted

MOST = 1_000_000_000


@dataclass
class SnapshotSettings:
    """When the training is saved, and from which snapshot it goes on.

    Attributes:
        name: the option's name in `conf/snapshot/`.
        every: save a snapshot after every N-th step, warm-up steps included; null: never.
        keep: the number of snapshots that are kept. Older ones are removed when a new one is whole.
        resume: go on from this run's newest snapshot, which an attempt that did not finish has left.
        path: go on from this snapshot, or from the newest one of this attempt or run: of the same training, also
            on other ranks or with another partition or schedule.
        final: leave the trained weights as weights.pt, a state dict that PyTorch loads without microp.
    """

    name: Annotated[str, OneOf("disk")]
    every: Annotated[int | None, Range(1, MOST, "null for no snapshots")]
    keep: Annotated[int, Range(1, MOST)]
    resume: bool
    path: Annotated[str | None, Line("give a folder, or null for none")]
    final: bool

    def problems(self) -> list[str]:
        """List the values that are wrong or contradict each other, one sentence each."""
        found = broken_rules(self, "snapshot.")
        if self.resume and self.path is not None and not found:
            one = f"snapshot.path={quoted(self.path)}"
            found.append(f"snapshot.resume=true and {one} name two snapshots: give only one of them")
        return found


NO_SNAPSHOTS = SnapshotSettings("disk", None, 1, False, None, False)
