"""How much of the sums over the replicas is exposed at the end of a step, and how far the simulation is from it."""

from __future__ import annotations

from analysis import looks
from analysis.answers.words import closing, doubts, listed, points, sentence, spread
from analysis.exhibit import counted, distance
from analysis.hybrid import MEASURED, NAME, POINT, SIMULATED, prepared, summed
from microp.store import Store, records

EXPOSED = "reduction.exposed_ms"
NEEDS = "emulated runs with at least two replicas"


def answer(store: Store) -> str:
    """Return the exposed time of the longest sum under each schedule, and the simulation's distance from all steps."""
    runs = summed(prepared(store.runs(NAME)))
    if runs.empty:
        return ""
    table = points(runs, POINT, [MEASURED, SIMULATED, EXPOSED])
    at = table[table["chunks"] == table["chunks"].max()]
    at = at[at["reduce_ms"] == at["reduce_ms"].max()]
    own = {row["schedule"]: row for row in records(at)}
    seen = [f"{spread(own[name], EXPOSED, 'ms')} under {name}" for name in looks.in_order(sorted(own))]
    first = at.iloc[0]
    told = [
        f"with M = {first['chunks']} and a sum of {first['reduce_ms']:g} ms per stage, the rank that waits longest for "
        f"its sums waits {listed(seen)}",
        f"the measured step times differ from the simulated ones by {distance(table[MEASURED], table[SIMULATED])}, "
        f"over {counted(len(table), 'point')}{doubts(table, MEASURED)}",
        closing(runs, POINT),
    ]
    return " ".join(map(sentence, told))
