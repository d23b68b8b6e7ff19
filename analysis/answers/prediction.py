"""How far the replay is from the measurement, and how far launches are from one another."""

from __future__ import annotations

import pandas as pd

from analysis.answers.words import sentence
from analysis.exhibit import counted, percent
from analysis.prediction import compared
from microp.store import Store


def answer(store: Store) -> str:
    """Return a sentence per kind of computation on the error of the replay, and on the noise of launches."""
    runs = store.runs()
    table = compared(store)
    if table.empty:
        return ""
    table = table.merge(runs[["run_id", "disturbed"]], on="run_id")
    told = [_of(str(kind), own) for kind, own in table.groupby("kind")]
    if table["noise"].isna().all():
        told.append("one launch per configuration, so the noise between launches is unknown")
    return " ".join(map(sentence, told))


def _of(kind: str, own: pd.DataFrame) -> str:
    error, noise = own["error"].abs(), own["noise"].abs().dropna()
    disturbed = f", {own['disturbed'].sum()} of them disturbed" if own["disturbed"].any() else ""
    text = f"{kind}, {counted(len(own), 'run')}{disturbed}: the replayed makespan differs from the measured one by "
    text += f"{percent(error.median())} in the median"
    if len(own) > 1:
        text += f", and by at most {percent(error.quantile(0.9))} in 90 % of the runs"
    if not noise.empty:
        text += (
            f"; a launch differs from the other launches of its configuration by {percent(noise.median())} in the "
            f"median, and by at most {percent(noise.quantile(0.9))} in 90 %"
        )
    return text
