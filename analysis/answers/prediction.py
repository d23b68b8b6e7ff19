"""How far replay and prediction are from the measurement, and how far launches are from one another."""

from __future__ import annotations

import pandas as pd

from analysis.answers.words import sentence
from analysis.exhibit import counted, percent
from analysis.forecasts import BASELINES
from analysis.prediction import compared, judged, judged_forecasts
from microp.store import Store, records


def answer(store: Store) -> str:
    """Return sentences per kind of computation on the errors of replay and prediction, and on the noise of launches."""
    runs = store.runs()
    table = compared(store)
    if table.empty:
        return ""
    table = table.merge(runs[["run_id", "disturbed"]], on="run_id")
    told = [_of(str(kind), own) for kind, own in table.groupby("kind")]
    if table["noise"].isna().all():
        told.append("one launch per configuration, so the noise between launches is unknown")
    _, known = judged_forecasts(store)
    if not known.empty:
        told += [_predicted(own) for _, own in known.groupby("kind")]
    return " ".join(map(sentence, told))


def _predicted(own: pd.DataFrame) -> str:
    """Return what predictions were worth, beside the baselines; `own` has the rows of `summary` of one kind."""
    found = {row["forecast"]: row for row in records(own)}
    text = f"predicted before the run: {judged(found['predicted'])}"
    others = [f"{name} {percent(found[name]['median'])}" for name in BASELINES if name in found]
    return text + (f"; median error of the baselines: {', '.join(others)}" if others else "")


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
