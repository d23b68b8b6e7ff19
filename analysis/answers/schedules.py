"""Which schedule is fastest at equal M, and which needs least memory."""

from __future__ import annotations

import pandas as pd

from analysis import nominal
from analysis.answers.words import closing, doubts, figure, memory, points, sentence, spread, versus
from analysis.schedules import NAME, POINT
from microp.store import LAUNCH, Store, records, worst_rank_mib

TIME, MEMORY = "step_ms.median", "activation_mib"
NEEDS = "at least two schedules with the same M and checkpointing=never on emulated devices"


def answer(store: Store) -> str:
    """Return the fastest and the smallest schedule for the largest M with several schedules, without recomputation."""
    runs = nominal.emulated(store.runs(NAME))
    if runs.empty:
        return ""
    runs = runs[runs["checkpointing"] == "never"].drop_duplicates([*POINT, LAUNCH])
    if runs.empty:
        return ""
    several = runs.groupby("chunks")["schedule"].nunique()
    if several.max() < 2:
        return ""
    chunks = several[several == several.max()].index.max()
    runs = runs[runs["chunks"] == chunks]
    runs = runs.assign(activation_mib=worst_rank_mib(runs))
    table = points(runs, ["schedule"], [TIME, MEMORY, "bubble.measured"])
    told = [_fastest(runs, table.sort_values([TIME, "schedule"]), chunks), *_smallest(table.dropna(subset=[MEMORY]))]
    return " ".join(map(sentence, [*told, closing(runs, POINT, compared=True)]))


def _fastest(runs: pd.DataFrame, table: pd.DataFrame, chunks: int) -> str:
    """Return the fastest schedule, the verdict against the next one, and the slowest."""
    first, second, last = (records(table)[place] for place in (0, 1, -1))
    rows = {name: runs[runs["schedule"] == name] for name in (first["schedule"], second["schedule"])}
    text = (
        f"of {len(table)} schedules with M = {chunks} on {runs['ranks'].iloc[0]} emulated ranks{doubts(table, TIME)}, "
        f"{first['schedule']} has the shortest step: {spread(first, TIME, 'ms')}, with a bubble of "
        f"{figure(first, 'bubble.measured')}; {last['schedule']} has the longest, {spread(last, TIME, 'ms')}"
    )
    if first["launches"] > 1 < second["launches"]:
        (name, own), (other, others) = rows.items()
        text += f"; against the next one, {versus(name, own, other, others)}"
    elif len(table) > 2:
        text += f"; next is {second['schedule']} with {spread(second, TIME, 'ms')}"
    return text


def _smallest(table: pd.DataFrame) -> list[str]:
    """Return the schedules with the least and the most activations on the rank that holds most."""
    if len(table) < 2:
        return []
    by_memory = records(table.sort_values([MEMORY, TIME]))
    least, most = by_memory[0], by_memory[-1]
    small, large = memory(least[MEMORY], most[MEMORY])
    return [
        f"least memory: {least['schedule']}, where the rank that holds most keeps {small} of activations; most: "
        f"{most['schedule']} with {large}"
    ]
