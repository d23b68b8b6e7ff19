"""The speed-up of pipelines over the monolith, the unpartitioned model with the same work per step.

::

    monolith   one rank, one microbatch   160 ms ┐
    pipeline   K ranks, M microbatches     48 ms ┴─ same work, same launch ──► speed-up 3.33
"""

from __future__ import annotations

import pandas as pd

from microp.store import LAUNCH, paired

SAME = ["device", "config.model.name", "config.model.layers", "config.model.dim", "work"]


def monoliths(runs: pd.DataFrame) -> pd.DataFrame:
    """Return the runs of unpartitioned models, each once; `runs` have the work of a step in the column `work`."""
    alone = runs[(runs["ranks"] == 1) & (runs["chunks"] == 1)]
    return alone if alone.empty else alone.drop_duplicates([*SAME, LAUNCH])


def speed_ups(rows: pd.DataFrame, runs: pd.DataFrame) -> pd.DataFrame:
    """Return those rows whose monolith is among `runs`, with the column `speed_up`, paired by launch."""
    alone = monoliths(runs)
    if alone.empty:
        return rows.head(0).assign(speed_up=0.0)
    compared = paired(rows, alone, SAME, "step_ms.median")
    return compared.assign(speed_up=1 / compared["ratio"])
