"""What a rank's time goes to: the share of compute, and the largest of the rest."""

from __future__ import annotations

import pandas as pd

from analysis.answers.words import sentence
from analysis.exhibit import kind_of, percent
from analysis.rank_time import LOOKS, kind_ms, typical
from microp.store import Store, records

WORDS = {
    "warmup": "waiting in the warm-up",
    "steady": "waiting in the steady phase",
    "drain": "waiting in the drain",
    "transfer": "waiting for tensors that are being sent",
    "reduction": "waiting for sums over the replicas",
    "host": "the host's own work",
    "optimizer": "the optimizer",
}
COMPUTE = "compute"


def answer(store: Store) -> str:
    """Return a sentence per kind of computation: the share of compute over configurations, and the largest rest."""
    runs = typical(store.runs())
    if runs.empty:
        return ""
    told = [_of(kind, own) for kind, own in runs.groupby(runs["device"].map(kind_of))]
    return " ".join(map(sentence, told))


def _of(kind: str, runs: pd.DataFrame) -> str:
    shares = pd.DataFrame([_shares(row) for row in records(runs)])
    low, middle, high = (shares[COMPUTE].quantile(q) for q in (0, 0.5, 1))
    rest = shares.drop(columns=COMPUTE).median().sort_values(ascending=False, kind="stable")
    disturbed = f", {runs['disturbed'].sum()} of them disturbed" if runs["disturbed"].any() else ""
    if len(shares) == 1:
        text = f"{kind}, one configuration{disturbed}: ranks compute {percent(middle, 0)} of a step"
    else:
        text = (
            f"{kind}, {len(shares)} configurations{disturbed}: ranks compute {percent(middle, 0)} of a step in the "
            f"median ({percent(low, 0)} to {percent(high, 0)})"
        )
    first, second = (f"{WORDS.get(str(name), name)} ({percent(share, 0)})" for name, share in rest.head(2).items())
    return f"{text}; the next largest parts are {first} and {second}"


def _shares(row: dict[str, object]) -> dict[str, float]:
    """Return the share of each kind in the time of all ranks of a run."""
    totals = {kind: sum(kind_ms(row, kind)) for kind in LOOKS}
    return {kind: total / sum(totals.values()) for kind, total in totals.items()}
