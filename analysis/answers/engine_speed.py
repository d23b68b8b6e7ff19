"""How far microp and torch's pipeline runtime are from the limit, and from one another."""

from __future__ import annotations

from typing import Any

import pandas as pd

from analysis.answers.words import brackets, closing, doubts, listed, middle, number, points, sentence
from analysis.engine_speed import NAME, PANEL, POINT, RATIOS, prepared
from analysis.exhibit import counted, kind_of
from microp.store import Store

MICROP, TORCH, BOTH = RATIOS
NEEDS = "runs with engine=compare"


def answer(store: Store) -> str:
    """Return a sentence per device, K, width of the model and transport, and what ratios below 1 mean, if any."""
    runs = prepared(store.runs(NAME))
    if runs.empty:
        return ""
    table = points(runs, POINT, list(RATIOS))
    told = [_of(key, own) for key, own in table.groupby(PANEL, sort=True, dropna=False)]
    last = closing(runs, POINT)
    if table["launches"].max() > 1:
        widths = [(table[f"{ratio}.high"] - table[f"{ratio}.low"]).max() for ratio in RATIOS]
        spreads = brackets(table["launches"].max())
        last = f"The {spreads} of a ratio over launches are at most {number(max(widths))} wide."
    return " ".join(map(sentence, [*told, *_explained(table), last]))


def _explained(table: pd.DataFrame) -> list[str]:
    """Return what ranges are over, and what a measured limit that is beaten means."""
    told = []
    if table.groupby(PANEL, dropna=False).size().max() > 1:
        told.append("figures are medians over configurations (schedule and M), with their ranges")
    if (table[table["device"] != "emulated"][[MICROP, TORCH]] < 1).any(axis=None):
        told.append(
            "with real compute the limit is measured too, by one rank that computes alone in turn with the engines; a "
            "ratio below 1 means that the schedule fills bubbles with W or runs several W as one product, or that the "
            "machine was disturbed in that rank's turns"
        )
    return told


def _of(key: tuple[Any, ...], table: pd.DataFrame) -> str:
    device, ranks, dim, comms = key
    size = "" if device == "emulated" else f", width {dim}"
    counts = {int(table[ratio].notna().sum()) for ratio in RATIOS} - {0}
    over = counted(counts.pop(), "configuration") if len(counts) == 1 else ""

    def of(ratio: str) -> str:
        return "" if over else f" over {counted(int(table[ratio].notna().sum()), 'configuration')}"

    known = [(name, ratio) for name, ratio in (("microp", MICROP), ("torch", TORCH)) if table[ratio].notna().any()]
    steps = listed([f"{middle(table[ratio])} with {name}{of(ratio)}" for name, ratio in known])
    place = f"{kind_of(device)}, K = {ranks}{size}, {comms}"
    text = f"{place}{over and f', {over}'}: in units of the limit a step takes {steps}"
    if table[BOTH].notna().any():
        text += f"; torch's step is {middle(table[BOTH])} times that of microp in the same turn{of(BOTH)}"
    return f"{text}{doubts(table, MICROP)}"
