"""Which schedules hide the latency of a hop: the time that it adds per microbatch, or else to the step."""

from __future__ import annotations

import pandas as pd

from analysis import looks
from analysis.answers.words import closing, listed, number, points, sentence, spread
from analysis.hop_latency import NAME, POINT, added, prepared
from microp.store import Store, records

TIME = "step_ms.median"
NEEDS = "at least two values of M, each with latency 0 and with another one, on emulated devices"


def answer(store: Store) -> str:
    """Return the time added by the largest latency under each schedule; empty without runs at latency 0."""
    runs = prepared(store.runs(NAME))
    if runs.empty:
        return ""
    table = added(runs)
    if table.empty:
        return ""
    at = table["latency_ms"].max()
    table["disturbed"] = table["schedule"].map(runs.groupby("schedule")["disturbed"].any())
    own = {row["schedule"]: row for row in records(table[table["latency_ms"] == at])}
    most = max(row["added_ms"] for row in own.values())
    seen = [f"{spread(own[name], 'added_ms', 'ms', most)} under {name}" for name in looks.in_order(sorted(own))]
    text = f"a latency of {at:g} ms per hop makes the time per microbatch longer by {listed(seen)}"
    if "1f1b" in own:
        text += f"; the closed form 2c(K-1)/K gives {number(own['1f1b']['formula'])} ms for 1f1b"
    return " ".join(map(sentence, [text, *_whole_step(runs, at), closing(runs, POINT)]))


def _whole_step(runs: pd.DataFrame, at: float) -> list[str]:
    """Return the steps at the largest M without latency and with it, for the schedules that have both."""
    rows = runs[(runs["chunks"] == runs["chunks"].max()) & runs["latency_ms"].isin([0.0, at])]
    table = points(rows, ["schedule", "latency_ms"], [TIME])
    own = {(row["schedule"], row["latency_ms"]): row for row in records(table)}
    names = [name for name in looks.in_order(rows["schedule"]) if {(name, 0.0), (name, at)} <= own.keys()]
    if not names:
        return []
    steps = [
        f"from {spread(own[name, 0.0], TIME, 'ms')} to {spread(own[name, at], TIME, 'ms')} under {name}"
        for name in names
    ]
    return [f"a step with M = {runs['chunks'].max()} then grows {listed(steps)}"]
