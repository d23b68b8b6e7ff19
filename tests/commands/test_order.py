"""`python -m microp.order`: the file that it writes is a valid schedule that a run takes, and bad input is refused."""

import json
from importlib.util import find_spec
from pathlib import Path

import pytest
from profiled import profile
from user import microp, ran

from microp.records import write_profile
from microp.schedule import from_text, validate
from microp.settings import MlpSettings
from microp.simulator import Costs, simulate
from microp.trace import makespan

SMALL = ("ranks=2", "chunks=4", "search.seconds=0.3", "costs.forward=[1,3]", "costs.backward=2", "costs.weight=1")


def test_the_found_order_is_written_and_priced_as_it_says(tmp_path):
    done = microp(*SMALL, "activation_limit=2", "output=json", folder=tmp_path, program="microp.order")
    figures = json.loads(done.stdout)
    schedule = validate(from_text((tmp_path / "order.txt").read_text()), 2)
    assert makespan(simulate(schedule, Costs((1, 3), (2, 2), (1, 1)))) == figures["makespan"]
    assert figures["makespan"] <= min(row["makespan"] for row in figures["orders"])
    assert figures["refused"] == {"gpipe": 4, "eager_1f1b": 3, "zb_h2": 3, "two_bp": 4}
    refused = microp(*SMALL, folder=tmp_path, program="microp.order")
    assert (refused.returncode, refused.stderr) == (2, "error: search.file=order.txt exists: give another name\n")
    assert from_text((tmp_path / "order.txt").read_text()) == schedule
    again = ("schedule=file", "schedule.path=order.txt", *SMALL[:2], *SMALL[3:], "output=json")
    priced = json.loads(microp(*again, folder=tmp_path, program="microp.simulate").stdout)
    assert priced["makespan"] == figures["makespan"]


@pytest.mark.parametrize(
    "words",
    [
        "ranks=4 chunks=4 schedule=seq_1f1b model=gpt schedule.eager=true",
        "ranks=4 chunks=8 schedule=interleaved schedule.warmup=single",
        "ranks=2 chunks=4 schedule=breadth_first schedule.drain=lifo costs.per_microbatch=[1,3,1,2]",
    ],
)
def test_the_named_schedule_is_priced_with_its_typed_keys(words, tmp_path):
    asked = *words.split(), "costs.latency=0.8", "output=json"
    done = ran(*asked, "search.seconds=0.1", folder=tmp_path, program="microp.order")
    priced = json.loads(ran(*asked, folder=tmp_path, program="microp.simulate").stdout)
    rows = {row["schedule"]: row["makespan"] for row in json.loads(done.stdout)["orders"]}
    assert rows[priced["schedule"]] == priced["makespan"]


def test_the_table_names_bounds_the_solver_and_the_command_that_runs_the_order(tmp_path):
    pytest.importorskip("ortools")
    words = (*SMALL, "search.solver_seconds=20", "search.file=my.txt")
    text = microp(*words, folder=tmp_path, program="microp.order").stdout
    for part in ("zb_h1", "Lower bounds of any order: chain", "is the optimum, proven", "order my.txt"):
        assert part in text
    assert "simulate 'costs.forward=[1,3]' costs.backward=2 costs.weight=1 schedule=file schedule.path=my.txt" in text


def test_the_command_of_an_estimated_device_prices_the_order(tmp_path):
    words = ["device=estimate", "device.tflops=100", "device.gb_per_s=1000"]
    done = microp(*words, "ranks=2", "chunks=4", "search.seconds=0.3", folder=tmp_path, program="microp.order")
    assert "times are estimated, not measured" in done.stderr
    [command] = [line.split(maxsplit=1)[1] for line in done.stdout.splitlines() if line.startswith("price ")]
    assert command.startswith(f"python -m microp.simulate {' '.join(words)} ")


EMULATED = "device=emulated device.forward_ms=3 device.backward_ms=4"
BY_HAND = "costs.forward=3 costs.backward=4 costs.weight=2 costs.latency=2"
PROVEN = [  # words, and the least makespan that there is
    (
        "chunks=2 schedule=zb_h1 costs.forward=[5,2] costs.backward=[6,2] costs.weight=[5,8] costs.latency=6 "
        "checkpointing=except_last costs.recompute=[5,3]",
        48,
    ),
    (f"chunks=3 schedule=1f1b {BY_HAND} costs.transfer=serial_link", 34),
    (f"chunks=3 schedule=1f1b {EMULATED} device.weight_ms=2 device.latency_ms=2 device.overhead_ms=1", 40),
    (f"chunks=3 schedule=zb_h1 {EMULATED} device.weight_ms=4 device.full_ms=5", 31),
    (f"chunks=2 schedule=gpipe {EMULATED} device.weight_ms=4 device.full_ms=1", 12),  # no W is worth its time
    (f"chunks=3 schedule=1f1b {EMULATED} checkpointing=except_last device.recompute_ms=2", 28),  # B and W take halves
    (f"chunks=2 schedule=seq_1f1b {BY_HAND} costs.per_slice=[1,2]", 74 / 3),
    (f"chunks=4 schedule=chimera {BY_HAND} activation_limit=2", 38),
    (f"chunks=3 schedule=1f1b {BY_HAND} costs.per_microbatch=[1,3,2]", 67),
]


@pytest.mark.parametrize(("words", "best"), PROVEN, ids=range(len(PROVEN)))
def test_what_is_proven_is_the_price_of_the_same_words(words, best, tmp_path):
    pytest.importorskip("ortools")
    given = ("ranks=2", *words.split(), "output=json")
    searched = (*given, "search.seconds=0.3", "search.solver_seconds=100")
    figures = json.loads(microp(*searched, folder=tmp_path, program="microp.order").stdout)
    assert (figures["makespan"], figures["proven"], figures["solver"]["bound"]) == (best, True, best)
    assert figures["makespan"] == max(figures["bounds"].values())
    assert priced(given, tmp_path) == best


def priced(given: tuple[str, ...], folder: Path) -> float:
    """Return the price of the written order with the same words."""
    words = [word for word in given if not word.startswith("schedule=")]
    done = ran("schedule=file", "schedule.path=order.txt", *words, folder=folder, program="microp.simulate")
    return json.loads(done.stdout)["makespan"]


@pytest.mark.parametrize("words", ["partition=balanced model.layers=7", "profile=PROFILE"])
def test_where_costs_depend_on_the_order_each_is_priced_with_its_own_and_no_bound_is_claimed(words, tmp_path):
    """The times of a profile depend on what ran before, and a balanced partition on the whole order."""
    path = write_profile(tmp_path, profile(MlpSettings("mlp", 16, 256, "float32")))
    words = words.replace("PROFILE", str(path))
    emulated = "" if "profile" in words else f"{EMULATED} device.per=[layer] device.overhead_ms=1"
    given = ("ranks=2", "chunks=3", "schedule=zb_h1", "device=emulated", *words.split(), *emulated.split())
    solver = ["search.solver_seconds=5"] if find_spec("ortools") else []
    given = (*given, "output=json")
    done = microp(*given, "search.seconds=0.3", *solver, folder=tmp_path, program="microp.order")
    figures = json.loads(done.stdout)
    assert (figures["bounds"], figures["proven"]) == ({}, False)
    assert figures["makespan"] == min(row["makespan"] for row in figures["orders"]) == priced(given, tmp_path)
    named = {row["schedule"]: row["makespan"] for row in figures["orders"]}
    one = json.loads(microp("schedule=1f1b", *given[:2], *given[3:], folder=tmp_path, program="microp.simulate").stdout)
    assert one["makespan"] == named["1f1b"]
