"""A schedule that a user added is drawn by every experiment: its order is read from the runs, not built by name."""

import shutil

import pandas as pd
import pytest
from user import add_schedule, ran

from microp.results import finished_runs

NAME = "mine"  # the option; the function calls it `backwards_first`
QUICK = ["tracking=disabled", "comms=threads", "steps=1", "warmup_steps=1", "model.dim=32"]
SWEEPS = {  # name -> what is asked instead of the stored sweep's values
    "m_sensitivity": (
        *("repeat=0", "m_sensitivity=k4_batch,k4_microbatch,k4_monolith", "chunks=1,4"),
        *("schedule=mine,naive", "device.forward_ms=0.01", "device.backward_ms=0.02"),  # naive: the model undivided
    ),
    "partition_skew": (
        *("repeat=0", "partition_skew=k4", "partition.rank=0,3", "partition.share=0.25,0.5", "schedule=mine"),
        *("batch_size=16", "model.layers=12", "device.forward_ms=0.2", "device.backward_ms=0.4"),
    ),
    "schedules": (
        *("repeat=0", "chunks=8", "schedule=mine,1f1b"),
        *("batch_size=16", "device.forward_ms=0.5", "device.backward_ms=1"),
    ),
}
FIGURES = (
    *(f"m-sensitivity-{what}" for what in ("speed-up", "bubble", "memory")),
    *(f"partition-skew-{what}" for what in ("utilisation", "throughput", "position")),
    *(f"schedules-{what}" for what in ("compared", "pareto")),
    *("replayed-measured", "rank-time"),
)


def test_every_experiment_shows_it_with_the_theory_of_its_own_order(tmp_path):
    """GPipe over groups of two: four groups of F F B B on 4 ranks, each 5 slots of F and of B long."""
    folder = add_schedule(tmp_path)
    for name, words in SWEEPS.items():
        done = ran("-cd", ".", "-cn", name, *QUICK, *words, folder=folder)
    done = ran(folder=folder, program="analysis")
    assert "left out" not in done.stderr
    report = folder / "outputs" / "report"
    for stem in FIGURES:
        assert (report / f"{stem}.svg").stat().st_size
        assert NAME in set(pd.read_csv(report / f"{stem}.csv")["schedule"]), stem
    table = pd.read_csv(report / "schedules-compared.csv")
    [row] = table[(table["schedule"] == NAME) & (table["chunks"] == 8)].to_dict("records")
    layers = 2  # of a rank
    assert row["step_ms.formula"] == pytest.approx(4 * 5 * layers * (0.5 + 1))
    assert pd.read_csv(report / "partition-skew-throughput.csv")["formula"].notna().all()

    [run, *_] = sorted((folder / "outputs" / "runs").glob("mine-m8-k4-*"))
    for program, what in (("analysis.timeline", str(run)), ("analysis.sweep", "outputs/sweeps")):
        ran(what, folder=folder, program=program)

    alone = folder / "alone" / "outputs"  # no run there has a closed form of the bubble
    for kind, name in (("runs", "mine-*"), ("sweeps", "*partition_skew")):
        for path in (folder / "outputs" / kind).glob(name):
            shutil.copytree(path, alone / kind / path.name)
    assert finished_runs(alone)["bubble.closed_form"].dtype == float
    done = ran(str(alone), folder=folder, program="analysis.partition_skew")
    assert (alone / "report" / "partition-skew-utilisation.svg").exists()
