"""What the largest common share of the layers on one rank costs, and whether the rank's position matters."""

from __future__ import annotations

from typing import Any

import pandas as pd

from analysis import looks, nominal
from analysis.answers.words import closing, number, points, sentence, spread, versus
from analysis.partition_skew import NAME, POINT, Part, parts
from microp.store import Store, paired, records

NEEDS = "the uniform partition and a skewed one, or a heavy first and a heavy last rank under 1f1b"


def answer(store: Store) -> str:
    """Return a sentence per device and K on throughput, and one on the position of the heavy rank."""
    found = list(parts(store.runs(NAME)))
    told = [text for part in found for text in (_cost(part), _position(part)) if text]
    if not told:
        return ""
    rows = pd.concat([part.rows for part in found])
    return " ".join(map(sentence, [*told, closing(rows, ["device", "ranks", *POINT], compared=True)]))


def _cost(part: Part) -> str:
    """Return the throughput of the most skewed partition relative to the uniform one, and by the heavy rank's work."""
    rows = part.rows
    even = rows[[len(set(layers)) == 1 for layers in rows["partition"]]]
    compared = paired(rows[rows["share"] == rows["share"].max()], even, ["schedule", "position"], "samples_per_s")
    if compared.empty or rows["share"].nunique() < 2:
        return ""
    schedule = looks.in_order(sorted(compared["schedule"].unique()))[0]
    own = compared[(compared["schedule"] == schedule) & (compared["position"] == compared["position"].max())]
    [point] = records(points(own, POINT, ["ratio"]))
    times = "nominal times" if part.device == "emulated" else "times measured with the uniform partition"
    return (
        f"{part.title}: with {point['share']:g} % of the layers on rank {point['position']}, the throughput of "
        f"{schedule} is {spread(point, 'ratio')} of that with the uniform partition; the heavy rank's work alone would "
        f"give {number(_alone(part, records(own)[0], records(even)[0]['partition']))}, computed from the {times}"
    )


def _alone(part: Part, row: dict[str, Any], even: list[int]) -> float:
    """Return the throughput if a step took the heavy rank's work alone, relative to the uniform partition's."""
    return float(nominal.step_ms(part.orders[row["schedule"]], part.costs(even)) / part.alone_ms(row)[0])


def _position(part: Part) -> str:
    """Return whether a heavy first rank is cheaper than a heavy last one, under 1F1B at a share near 50 %."""
    rows = part.rows[(part.rows["schedule"] == "1f1b") & (part.rows["share"] > part.rows["share"].min())]
    ends = {heavy: rows[rows["position"] == heavy] for heavy in (0, part.ranks - 1)}
    shares = set.intersection(*(set(own["share"]) for own in ends.values()))
    if not shares:
        return ""
    share = min(shares, key=lambda each: abs(each - 50))
    first, last = (own[own["share"] == share] for own in ends.values())
    text = versus("a step with a heavy first rank", first, "one with a heavy last rank", last)
    return f"{part.title}, 1f1b with a share of {share:g} %: {text}"
