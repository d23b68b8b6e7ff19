"""A schedule that a user added is drawn by every experiment: its order is read from the runs, not built by name."""

from dataclasses import replace
from typing import Any

import pytest
from stored import store_run
from user import readme_block

from analysis.command import section
from microp.results import finished_runs
from tests import made_sweeps
from tests.boxes import unreadable
from tests.made_up import Made, by_stem

NAME = "mine"  # the option; the function calls it `backwards_first`
FIGURES = {  # of the runs of which sweep
    **{f"m-sensitivity-{what}": "m_sensitivity" for what in ("speed-up", "bubble", "memory")},
    **{f"partition-skew-{what}": "partition_skew" for what in ("utilisation", "throughput", "position")},
    **{f"schedules-{what}": "schedules" for what in ("compared", "pareto")},
    **{"replayed-measured": "prediction", "rank-time": "rank_time"},
}


def test_every_experiment_shows_it_with_the_theory_of_its_own_order(tmp_path, monkeypatch):
    """GPipe over groups of two: four groups of F F B B on 4 ranks, each 5 slots of F and of B long; no closed form."""
    own: dict[str, Any] = {}
    exec(readme_block("python", "backwards_first"), own)
    order = made_sweeps.order
    monkeypatch.setattr(
        made_sweeps,
        "order",
        lambda name, *size: replace(own["backwards_first"](*size), name=NAME) if name == NAME else order(name, *size),
    )
    where = [("emulated", 4)]
    compared = Made(list(made_sweeps.schedule_runs(tmp_path, (NAME, "1f1b"), (8,), ("never",), ("emulated",), 4)))
    stores = {"schedules": compared, "prediction": compared, "rank_time": compared}
    stores["m_sensitivity"] = Made(list(made_sweeps.m_runs(tmp_path, where, (1, 4), (NAME, "naive"))))
    stores["partition_skew"] = Made(list(made_sweeps.skew_runs(tmp_path, where, (0.25, 0.5), (0, 3), (NAME,))))
    exhibits = {name: by_stem(section(name, store).exhibits) for name, store in stores.items()}
    for stem, name in FIGURES.items():
        assert NAME in set(exhibits[name][stem].table["schedule"]), stem
        assert unreadable([exhibits[name][stem]]) == []
    table = exhibits["schedules"]["schedules-compared"].table.set_index("schedule")
    assert table.loc[NAME, "step_ms.formula"] == pytest.approx(4 * 5 * (5 + 10))
    assert exhibits["partition_skew"]["partition-skew-throughput"].table["formula"].notna().all()
    store_run(tmp_path / "outputs", "chunks=4", bubble={"measured": 0.2, "closed_form": None})
    assert finished_runs(tmp_path / "outputs")["bubble.closed_form"].dtype == float
