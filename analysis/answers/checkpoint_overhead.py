"""What each policy of recomputation costs in time and saves in memory, relative to keeping every activation."""

from __future__ import annotations

import pandas as pd

from analysis.answers.words import brackets, closing, doubts, middle, number, points, sentence
from analysis.checkpoint_overhead import NAME, POINT, POLICIES, compare
from microp.store import LAUNCH, Store

NEEDS = "runs with checkpointing=never and with another policy, for the same model, schedule and M"


def answer(store: Store) -> str:
    """Return a sentence per policy on time and memory, each over the points that have a run without recomputation."""
    runs = store.runs(NAME)
    if runs.empty:
        return ""
    compared = compare(runs.drop_duplicates([*POINT, LAUNCH]))
    if compared.empty:
        return ""
    table = points(compared, POINT, ["ratio", "simulated", "kept"])
    order = [*POLICIES, *sorted(set(table["checkpointing"]) - set(POLICIES))]
    told = [_of(name, own) for name in order if not (own := table[table["checkpointing"] == name]).empty]
    sizes = table.groupby("checkpointing").size()
    number_of = f"{sizes.min()}" if sizes.nunique() == 1 else f"{sizes.min()} to {sizes.max()}"
    combined = f"Figures are medians, with ranges, over {number_of} combinations of model, schedule and M"
    last = closing(compared, POINT)
    if table["launches"].max() > 1:
        width = (table["ratio.high"] - table["ratio.low"]).max()
        spreads = brackets(table["launches"].max())
        last = f"The {spreads} of the ratios of step times over launches are at most {number(width)} wide."
    return " ".join(map(sentence, [*told, *([combined] if sizes.max() > 1 else []), last]))


def _of(policy: str, table: pd.DataFrame) -> str:
    """Return the cost and the saving of one policy; the ranges are over models, schedules and M."""
    text = f"with {policy}, a step takes {middle(table['ratio'])} times as long as with checkpointing=never"
    if table["simulated"].notna().any():
        text += f", by simulation {middle(table['simulated'])},"
    if table["kept"].notna().any():
        text += f" and keeps {middle(table['kept'])} of the peak activations"
    return f"{text}{doubts(table, 'ratio')}"
