"""`python -m microp.order`: the file that it writes is a valid schedule that a run takes, and bad input is refused."""

from __future__ import annotations

import json

import pytest
from user import microp

from microp.planner.orders import Problem, judge, pairs
from microp.schedule import builders, from_text, validate
from microp.simulator import Costs, simulate
from microp.trace import makespan

SMALL = ("ranks=2", "chunks=4", "search.seconds=1", "costs.forward=[1,3]", "costs.backward=2", "costs.weight=1")


def test_the_found_order_is_written_and_priced_as_it_says(tmp_path):
    done = microp(*SMALL, "activation_limit=2", "output=json", folder=tmp_path, program="microp.order")
    figures = json.loads(done.stdout)
    schedule = validate(from_text((tmp_path / "order.txt").read_text()), 2)
    assert makespan(simulate(schedule, Costs((1, 3), (2, 2), (1, 1)))) == figures["makespan"]
    assert figures["makespan"] <= min(row["makespan"] for row in figures["orders"])
    assert figures["refused"] == {"gpipe": 4, "eager_1f1b": 3, "zb_h2": 3}
    refused = microp(*SMALL, folder=tmp_path, program="microp.order")
    assert (refused.returncode, refused.stderr) == (2, "error: search.file=order.txt exists: give another name\n")
    assert from_text((tmp_path / "order.txt").read_text()) == schedule
    again = ("schedule=file", "schedule.path=order.txt", *SMALL[:2], *SMALL[3:], "output=json")
    priced = json.loads(microp(*again, folder=tmp_path, program="microp.simulate").stdout)
    assert priced["makespan"] == figures["makespan"]


def test_the_table_names_bounds_the_solver_and_the_command_that_runs_the_order(tmp_path):
    pytest.importorskip("ortools")
    words = (*SMALL, "search.solver_seconds=20", "search.noise=0.1", "search.file=my.txt")
    text = microp(*words, folder=tmp_path, program="microp.order").stdout
    for part in ("zb_h1", "Lower bounds of any order: chain", "noisy", "is the optimum, proven", "order my.txt"):
        assert part in text
    assert "python -m microp.run schedule=file schedule.path=my.txt ranks=2 chunks=4" in text


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("schedule=interleaved activation_limit=1", "activation_limit=1: no order keeps within 1: rank 0 has to hold"),
        ("search.seconds=0", "search.seconds=0.0 is not a number above 0"),
        ("search.file=/dev/null/a", "search.file=/dev/null/a cannot be written"),
        ("device.memory_gib=0.01", "device.memory_gib=0.01 does not limit an order: use activation_limit"),
        ("replicas=2", "replicas=2 does not change an order, which is of one pipeline: leave it out"),
        ("ranks=16 chunks=256", "too many to search: use at most 10000"),
        ("search.noise=2", "search.noise=2.0 is above 1: use at most 1"),
        ("-m chunks=4,8", "search.file=order.txt is the file of 2 points: give each its own, as"),
    ],
)
def test_what_cannot_be_searched_is_refused(words, message, tmp_path):
    done = microp(*words.split(), folder=tmp_path, program="microp.order")
    assert done.returncode == 2
    assert message in done.stderr
    assert done.stderr.count("error: ") == 1


def test_with_noise_the_order_that_is_fastest_on_average_is_written(tmp_path):
    words = ("ranks=4", "chunks=8", "search.seconds=1", "search.noise=0.5", "activation_limit=4", "output=json")
    done = microp(*words, folder=tmp_path, program="microp.order")
    assert done.returncode == 0, done.stderr
    figures = json.loads(done.stdout)
    means = {row["schedule"]: row["noisy"]["mean"] for row in figures["orders"]}
    assert means[figures["written"]] == min(means.values())
    written = validate(from_text((tmp_path / "order.txt").read_text()), 4)
    assert written.name == figures["written"]
    [expected] = [row["makespan"] for row in figures["orders"] if row["schedule"] == figures["written"]]
    assert makespan(simulate(written, Costs((1,) * 4, (1,) * 4, (1,) * 4))) == expected


def test_noise_of_zero_is_the_makespan_also_of_undivided_backwards():
    costs = Costs((1, 3), (2, 2), (1, 1), latency=1)
    problem = Problem((0, 1), 4, costs, pairs(2, None))
    orders = [builders.one_f_one_b(2, 4), builders.zb_h1(2, 4), builders.gpipe(2, 4, builders.Drain.lifo)]
    for order, noisy in zip(orders, judge(problem, orders, 0.0, draws=3), strict=True):
        assert noisy.mean == noisy.p90 == makespan(simulate(order, costs))
    calm, wild = (judge(problem, orders[:1], noise)[0] for noise in (0.05, 0.5))
    assert calm.p90 - calm.mean < wild.p90 - wild.mean
