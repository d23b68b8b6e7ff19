"""A schedule that a user added is drawn by every experiment: its order is read from the runs, not built by name."""

from __future__ import annotations

import re
import shutil

import pandas as pd
import pytest
from user import ROOT, add_schedule, microp

from microp.store import finished_runs

NAME = "mine"  # the option; the function calls it `backwards_first`
QUICK = ["tracking=disabled", "comms=threads", "steps=1", "warmup_steps=1", "model.dim=32"]
SWEEPS = {  # name -> its sweeper's keys that differ from the stored sweep's, and words
    "m_sensitivity": (
        {
            "repeat": "0",
            "m_sensitivity": "k4_batch,k4_microbatch,k4_monolith",
            "chunks": "1,4,8",
            "schedule": "mine,naive",  # naive stands for the model undivided
        },
        ["device.forward_ms=0.01", "device.backward_ms=0.02"],
    ),
    "partition_skew": (
        {
            "repeat": "0",
            "partition_skew": "k4",
            "partition.rank": "0,3",
            "partition.share": "0.25,0.5",
            "schedule": "mine",
        },
        ["batch_size=16", "model.layers=12", "device.forward_ms=0.2", "device.backward_ms=0.4"],
    ),
    "schedules": (
        {"repeat": "0", "chunks": "4,8", "schedule": "mine,1f1b"},
        ["batch_size=16", "device.forward_ms=0.5", "device.backward_ms=1"],
    ),
}


def own_copy(name: str, **params: str) -> str:
    """A stored sweep with other values of some of its sweeper's keys."""
    text = (ROOT / "sweeps" / f"{name}.yaml").read_text().replace(": real_batch\n", ": k4_batch\n")
    for key, values in params.items():
        text, changed = re.subn(rf"^(      {re.escape(key)}:).*$", rf"\1 {values}", text, flags=re.MULTILINE)
        assert changed == 1
    return text


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A user's own folder, in which three sweeps of the schedule were run and the report was made."""
    place = add_schedule(tmp_path_factory.mktemp("own"))
    for name, (params, words) in SWEEPS.items():
        (place / f"{name}.yaml").write_text(own_copy(name, **params))
        done = microp("-cd", ".", "-cn", name, *QUICK, *words, folder=place)
        assert done.returncode == 0, done.stdout + done.stderr
    done = microp(folder=place, program="analysis")
    assert done.returncode == 0, done.stderr
    assert "left out" not in done.stderr
    return place


@pytest.mark.parametrize(
    "stem",
    [
        *(f"m-sensitivity-{what}" for what in ("speed-up", "bubble", "depth", "memory")),
        *(f"partition-skew-{what}" for what in ("utilisation", "throughput", "position")),
        *(f"schedules-{what}" for what in ("compared", "pareto")),
        *("replayed-measured", "rank-time"),
    ],
)
def test_every_figure_of_the_experiments_shows_it(folder, stem):
    report = folder / "outputs" / "report"
    assert (report / f"{stem}.svg").stat().st_size
    assert NAME in set(pd.read_csv(report / f"{stem}.csv")["schedule"])


def test_its_theory_is_simulated_with_its_own_order(folder):
    """GPipe over groups of two: four groups of F F B B on 4 ranks, each 5 slots of F and of B long."""
    table = pd.read_csv(folder / "outputs" / "report" / "schedules-compared.csv")
    [row] = table[(table["schedule"] == NAME) & (table["chunks"] == 8)].to_dict("records")
    layers = 2  # of a rank
    assert row["step_ms.formula"] == pytest.approx(4 * 5 * layers * (0.5 + 1))
    skewed = pd.read_csv(folder / "outputs" / "report" / "partition-skew-throughput.csv")
    assert skewed["formula"].notna().all()


def test_it_is_drawn_as_a_timeline_and_as_a_sweep(folder):
    [run, *_] = sorted((folder / "outputs" / "runs").glob("mine-m8-k4-*"))
    done = microp(str(run), folder=folder, program="analysis.timeline")
    assert done.returncode == 0, done.stderr
    swept = microp("outputs/sweeps", folder=folder, program="analysis.sweep")
    assert swept.returncode == 0, swept.stderr


def test_a_report_of_its_runs_alone_is_made(folder, tmp_path):
    """No run has a closed form of the bubble then."""
    for kind, name in (("runs", "mine-*"), ("sweeps", "*partition_skew")):
        for path in (folder / "outputs" / kind).glob(name):
            shutil.copytree(path, tmp_path / "outputs" / kind / path.name)
    assert finished_runs(tmp_path / "outputs")["bubble.closed_form"].dtype == float
    done = microp("outputs", folder=tmp_path, program="analysis")
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "outputs" / "report" / "partition-skew-utilisation.svg").exists()
