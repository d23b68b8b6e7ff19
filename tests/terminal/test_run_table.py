"""The table of a command's runs: it names what was swept, defines what it shows, and says whom not to trust."""

import csv
import re
from functools import cache
from itertools import product
from pathlib import Path

import pandas as pd
import pytest
from rich.console import Console
from user import ROOT

from microp.config import Config
from microp.config.config import compose_config, plain, read_config
from microp.records import DISTURBANCES, disturbances
from microp.records.disturbance import Disturbance
from microp.results import NOISY, PointRow, one_process, unscaled, verdicts, write_table
from microp.results.verdicts import BRACKETS
from microp.system import flatten
from microp.terminal import columns, run_table

FOUND = {"run_id": "a", "status": "finished", "schedule": "gpipe", "device": "cpu", "ranks": 2, "replicas": 1}
FOUND |= {"step_ms": {"median": 61.23, "p10": 60.0, "p90": 63.0, "n": 20}, "samples_per_s": 4180.9, "overruns": 0}
FOUND |= {"between_steps_ms": 1.25, "bubble": {"measured": 0.2113, "closed_form": 0.2}, "engines": None, "syncs": None}
FOUND |= {"peak_memory_mib": [36.7, 34.6], "loss": {"first": 3.77, "last": 3.1}}
ENGINES = {
    "pipeline_ms": {name: {"median": ms} for name, ms in (("microp", 60.1), ("limit", 55.5), ("torch", 80.8))},
    "ratio": {"microp/limit": 1.08, "torch/limit": 1.46, "torch/microp": 1.34},
    "torch_schedule": "gpipe",
}
WIDE = {"median": 928.8, "p10": 446.8, "p90": 4635.0, "n": 20}


def lasting(ms: float) -> dict:
    """A row's changes: each step takes so long."""
    return {"step_ms": {"median": ms, "p10": ms, "p90": ms, "n": 5}}


@cache
def composed(words: str) -> Config:
    return read_config(compose_config(*words.split()))


def row(words: str, env=None, message=None, **changes) -> PointRow:
    config = plain(composed(words))
    summary = {**FOUND, "run_id": words, **changes}
    return PointRow(config, words.split(), summary, Path("runs/a"), message, tuple(disturbances(summary, env or {})))


@pytest.fixture
def lines(monkeypatch, capsys):
    def printed(rows, width=160):
        for module in (run_table, columns):
            monkeypatch.setattr(module, "out", Console(width=width, highlight=False))
        run_table.show_runs(rows, "outputs/sweeps/now/table.csv")
        return capsys.readouterr().out.splitlines()

    return printed


def test_one_line_for_what_is_the_same_then_the_swept_keys_then_the_results(lines):
    rows = [row(f"model.dim={dim} schedule=1f1b output_dir=x") for dim in (64, 128)]
    first, headings, *values = lines(rows)[:4]
    assert first.startswith("2 finished, the same in all: schedule=1f1b chunks=4 ranks=2 model=mlp device=cpu")
    assert headings.split("  ")[0] == "model.dim"
    assert [value.split()[:2] for value in values] == [["64", "61.2"], ["128", "61.2"]]
    alone = lines(rows[:1])
    assert alone[0].startswith("finished: schedule=1f1b chunks=4 ranks=2 model=mlp")
    assert "model.dim=64" in alone[0]
    assert alone[1].split()[0] == "step"


def test_a_long_sweep_is_divided_by_its_part_and_keys_that_follow_have_no_column(lines):
    """As `-cn m_sensitivity_quick`: with a part the ranks and the model change, and in one of them the batch with M."""
    words = {"real_batch": "ranks=2 batch_size=256 model.dim=64 chunks={}"}
    words["k4_microbatch"] = "ranks=4 batch_size={}0 model.dim=32 device=emulated chunks={}"
    rows = []
    for chunks, part, schedule in product((2, 4), words, ("gpipe", "1f1b")):
        typed = ["repeat=0", f"part={part}", f"chunks={chunks}", f"schedule={schedule}"]
        asked = f"{words[part].format(chunks, chunks)} schedule={schedule}"
        rows.append(row(asked)._replace(overrides=typed))
    text = lines(rows, 80)
    first, second = (next(at for at, line in enumerate(text) if line.startswith(f"{part}: ")) for part in words)
    assert {"chunks", "schedule", "batch_size", "bubble", "MiB"} <= set(" ".join(text[1:first]).split())
    assert text[first] == "real_batch: ranks=2 model.dim=64 device=cpu"
    assert text[second] == "k4_microbatch: ranks=4 model.dim=32 device=emulated"
    shown = [" ".join(line.split()[:4]) for line in (text[first + 1], text[second + 4])]
    assert shown == ["2 gpipe 256 61.2", "4 1f1b 40 61.2"]
    few = lines(rows[:4])  # two rows a part: the part is a column, and stands for all that follows but the device
    assert few[1].split()[:4] == ["part", "schedule", "device", "step"]


def test_the_page_that_the_footer_names_defines_every_column():
    page = (ROOT / "analysis" / "README.md").read_text()
    page = page.partition("## Figures and columns, defined")[2].partition("\n## ")[0]
    syncs = {"ratio": {"ddp/torch_ddp": 0.9}, "step_ms": {"ddp": {"median": 9.0}, "torch_ddp": {"median": 10.0}}}
    full = row("", engines=ENGINES, syncs=syncs, step_ms=WIDE, predicted={"step_ms": 1.0, "at_peak_ms": 232.2})
    full.config["model"]["context"] = 10
    columns = [column.name for column in run_table.result_columns([full, row("", status="failed")])]
    assert len(columns) == 20
    shown = {column.name: column.values[0] for column in run_table.result_columns([full])}
    assert (shown["tokens/s"], shown["of peak"]) == ("41,809", "25 %")
    priced = row("", bubble={"measured": 0.3, "closed_form": None}, predicted={"bubble": 0.25})
    assert [column.values for column in run_table.result_columns([priced]) if column.name == "formula"] == [["~0.250"]]
    assert [name for name in (*columns, *DISTURBANCES) if f"`{name}`" not in page] == []


def test_disturbed_runs_say_why_in_their_row(lines):
    rows = [row("chunks=2"), row("chunks=4", step_ms=WIDE), row("chunks=8", overruns=12, actions=640)]
    text = lines(rows)
    table = text[2:5] if "disturbed" in text[1] else text[3:6]
    assert [re.findall("spread 451 %|12 overruns", line) for line in table] == [[], ["spread 451 %"], ["12 overruns"]]
    whole = " ".join(text)
    said = "run again with again=true on an idle machine, or with longer times."
    assert f"disturbed: 2 of 3 runs (spread, overruns); {said}" in whole
    alone = " ".join(lines(rows[1:2]))
    assert "disturbed: this run (spread 451 %); run again on an idle machine." in alone
    for work, remedy in ((0.9, "use longer times, or a smaller model"), (0.1, "idle machine, or with longer times")):
        short = row("", step_ms=WIDE, overruns=120, actions=640, nominal={"step": 37.5, "work": work})
        said = " ".join(lines([short]))
        assert f"37.500 x nominal, {100 * work:.0f} % real work" in said
        assert said.endswith(f"{remedy}.")
    crowded = " ".join(lines([rows[1]._replace(env={"cores": 1})]))
    assert "disturbed: this run (spread 451 %); more ranks than cores measure the cores: use fewer ranks, or" in crowded


def test_engines_in_turn_show_torch_the_limit_and_the_ratios(lines):
    text = lines([row("engine=compare", engines=ENGINES)])
    assert {"microp", "torch", "limit"} <= set(" ".join(text[1:3]).split())
    assert {"60.1", "55.5", "80.8", "1.34", "1.08"} <= set(" ".join(text[2:4]).split())
    whole = " ".join(text)
    assert "torch has no" not in whole
    assert "torch against microp: the spread of 1 launch each is unknown; " in whole
    near = lines([row("engine=compare", schedule="zb_h1", engines=ENGINES)])
    assert "torch has no zb_h1 and ran gpipe." in " ".join(near)


def launches(words: str, *times: float, **changes) -> list[PointRow]:
    return [row(f"{words} repeat={n}", **lasting(time), **changes) for n, time in enumerate(times)]


def test_two_schedules_are_compared_launch_by_launch():
    base = launches("schedule=gpipe", 50.2, 49.3, 51.4)
    sentence, _ = verdicts([*base, *launches("schedule=1f1b", 48.2, 47.3, 49.2)])
    assert sentence.startswith("1f1b is 4.1 % faster than gpipe [")
    assert sentence.endswith("], 3 launches each")
    *calm, last = launches("schedule=1f1b", 48.2, 47.3, 49.2)
    last = last._replace(disturbed=(Disturbance("load", "load 30 on 2 cores"),))
    assert verdicts([*base, *calm, last])[0] == f"{sentence}; disturbed launches are among them"
    sentence, _ = verdicts([*base, *launches("schedule=1f1b", 50.0, 47.3, 53.2)])
    assert sentence.startswith("1f1b against gpipe: too noisy to say: ")
    sentence, _ = verdicts([*base, *launches("chunks=8", 60.0, 59.3, 61.2)])
    assert sentence.startswith("chunks=8 is 19.")
    assert "slower than chunks=4" in sentence


def test_one_launch_of_each_cannot_say_and_two_things_that_differ_are_not_compared():
    once = [row(f"chunks={chunks}") for chunks in (2, 4, 8)]
    [sentence] = verdicts(once)
    assert sentence.startswith("chunks=4, chunks=8 against chunks=2: the spread of 1 launch each is ")
    nothing = ([], once[:1], [row("chunks=2", step_ms=None), once[0]])
    for rows in (*nothing, [row("chunks=2 schedule=gpipe"), row("chunks=4 schedule=1f1b")]):
        assert verdicts(rows) == []
    many = [each for chunks in range(1, 8) for each in launches(f"chunks={chunks}", 50 + chunks, 51 + chunks)]
    found = verdicts(many)
    assert (len(found), found[-2:]) == (6, ["2 more comparisons: python -m microp.runs", BRACKETS])


def test_engines_are_compared_within_their_launches_for_each_point():
    def engines(torch: float):
        medians = {"microp": {"median": 60.0}, "torch": {"median": 90.0}}  # of other turns: they do not decide
        return {**ENGINES, "pipeline_ms": medians, "ratio": {"torch/microp": torch / 60}}

    rows = [
        row(f"engine=compare schedule={schedule} repeat={n}", engines=engines(torch))
        for schedule in ("gpipe", "1f1b")
        for n, torch in enumerate((80.0, 81.0, 82.0))
    ]
    found = verdicts(rows)
    assert [sentence.split(":")[0] for sentence in found] == ["gpipe", "1f1b", "[ ]"]
    assert "torch is 35.0 % slower than microp" in found[0]
    alone = verdicts(rows[:3])
    assert alone == [found[0].removeprefix("gpipe: "), BRACKETS]
    noisy = verdicts([row(f"engine=compare repeat={n}", engines=engines(60 * r)) for n, r in enumerate((0.89, 1.92))])
    assert noisy[0].startswith("torch against microp: too noisy to say: 30.7 % more time [")  # sqrt(0.89 * 1.92)


STAGES = [[f"schedule={name}" for name in ("1f1b", "interleaved", "zb_v")], ["ranks=2", "ranks=4"]]


@pytest.mark.parametrize(
    ("points", "scaled"),
    [*((points, "layer") for points in STAGES), (["chunks=4", "chunks=8"], "row")],
    ids=["orders", "ranks", "chunks"],
)
def test_points_are_not_ranked_by_times_that_do_not_know_their_layers_or_rows(points, scaled):
    def rows(per: str) -> list[PointRow]:
        return [row(f"device=emulated batch_size=16 device.per=[{per}] {point}") for point in points]

    other = {"layer": "row", "row": "layer"}[scaled]
    for per, lacks in ((other, "layer,row"), ("", scaled)):
        reason = str(unscaled([each.config for each in rows(per)]))
        assert f"set device.per=[{lacks}], with device.forward_ms and device.backward_ms of" in reason
        assert verdicts(rows(per)) == []
        table = pd.DataFrame([flatten(each.config) for each in rows(per)])  # with NaN where an order lacks a key
        assert unscaled(table.to_dict("records")) == reason
    assert unscaled([each.config for each in rows(scaled)]) is None
    assert verdicts(rows(scaled))


def test_one_process_is_compared_with_the_fastest_pipeline_of_the_same_model_and_batch():
    def ran(words, ms):
        name = next((word[9:] for word in words.split() if word.startswith("schedule=")), "gpipe")
        return row(words, schedule=name, **lasting(ms))._replace(folder=Path("runs") / words / "attempt-1")

    pipelines = [ran("schedule=gpipe", 60.0), ran("schedule=1f1b", 50.0)]
    [said] = one_process([*pipelines, ran("ranks=1 chunks=1 steps=3", 80.0)])
    assert said.startswith("one process takes 80 ms for this step; 1f1b with chunks=4 on 2 ranks, the fastest ")
    assert said.endswith(" takes 50 ms: 1.60 times as fast, in one launch each")
    several = [ran("ranks=1 chunks=1 steps=3", 20.0), ran("ranks=1 chunks=1", 80.0)]
    assert next(one_process([*pipelines, *several])).startswith("one process takes 80 ms")  # of as many steps
    larger = [ran("model.layers=32", 90.0), ran("ranks=1 chunks=1 model.layers=32", 180.0)]
    starts = [said.partition(" ms ")[0] for said in one_process([*pipelines, *several[1:], *larger])]
    assert starts == ["model.layers=16: one process takes 80", "model.layers=32: one process takes 180"]
    [naive] = one_process([*pipelines, ran("schedule=naive", 45.0), ran("ranks=1 chunks=1", 80.0)])
    assert "; 1f1b with chunks=4 on 2 ranks, the fastest of these pipelines besides naive, takes 50 ms: 1.60" in naive
    [slower] = one_process([*pipelines, ran("ranks=1 chunks=1", 40.0)])
    assert slower.endswith("takes 50 ms: no pipeline here is faster, in one launch each")
    loaded = (Disturbance("load", "load 30 on 2 cores"),)
    [calm] = one_process([pipelines[0], pipelines[1]._replace(disturbed=loaded), ran("ranks=1 chunks=1", 80.0)])
    assert "; gpipe with chunks=4 on 2 ranks, the fastest undisturbed one of these pipelines, takes 60 ms: 1.33" in calm
    noisy = ran("ranks=1 chunks=1", 55.0)._replace(disturbed=loaded)
    [unknown] = one_process([ran("schedule=1f1b checkpointing=always", 50.0), noisy])
    assert unknown.startswith("one process takes 55 ms for this step (disturbed); 1f1b with chunks=4, checkpointing=")
    assert unknown.endswith("50 ms: too noisy to say which is faster: disturbed, and less than 2 times apart")
    [too_fast] = one_process([pipelines[1], ran("ranks=1 chunks=1", 200.0)._replace(disturbed=loaded)])
    assert too_fast.endswith("50 ms: too noisy to say which is faster: 4.00 times as fast is more than 2 ranks can be")
    assert f"the slower takes less than {NOISY:g} times as long" in (ROOT / "analysis/README.md").read_text()
    for other in ("chunks=2", "chunks=1 model.dim=64", "chunks=1 batch_size=64"):
        assert list(one_process([*pipelines, ran(f"ranks=1 {other}", 80.0)])) == []


def test_the_csv_has_what_was_planned_and_all_that_was_found(tmp_path):
    done = row("schedule=gpipe model.dim=64 chunks=4", step_ms={"median": 9.0, "p10": 5.0, "p90": 10.0})
    planned = row("schedule=interleaved model.dim=128 chunks=4", run_id="later")
    points = {each.summary["run_id"]: (each.config, each.overrides) for each in (done, planned)}
    write_table(tmp_path / "table.csv", points, [done])
    first, second = csv.DictReader((tmp_path / "table.csv").open())
    assert first["overrides"] == "schedule=gpipe model.dim=64 chunks=4"
    keys = ("status", "schedule.name", "model.dim", "schedule.stages_per_rank", "step_ms.median", "disturbed")
    assert [first[key] for key in keys] == ["finished", "gpipe", "64", "", "9.0", "spread 56 %"]
    assert [second[key] for key in keys[:-1]] == ["planned", "interleaved", "128", "2", ""]
    assert "chunks" not in first
