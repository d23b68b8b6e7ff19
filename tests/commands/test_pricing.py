"""`python -m microp.simulate`: what it prints, what it prices, and what it refuses."""

import json
from contextlib import nullcontext
from fractions import Fraction
from functools import partial
from pathlib import Path

import pytest
import training
from threads import in_threads
from typed import type_in
from user import ran

from microp.commands import pricing
from microp.commands.pricing import Price
from microp.config import compose_config, make_job, read_config
from microp.config.prediction import predict
from microp.config.pricing_job import make_pricing_job
from microp.schedule import to_text
from microp.schedule.builders import one_f_one_b
from microp.trace import makespan
from microp.worker import launch_ranks

KEYS = {"schedule", "ranks", "chunks", "makespan", "bubble", "in_flight_peak", "peak_memory_mib", "closed_form"}


def simulate(*words: str, folder):
    return ran(*words, folder=folder, program="microp.simulate")


def composed(text: str = ""):
    """The configuration that these words make on the command line of `microp.simulate`."""
    return read_config(compose_config(*text.split(), name="simulate"))


def test_one_schedule_as_text(tmp_path):
    done = simulate("schedule=zb_h1", "ranks=4", "chunks=8", "model.dim=64", folder=tmp_path)
    assert done.stderr == ""
    asked, _, row, *_ = done.stdout.splitlines()
    assert asked.startswith("simulated: schedule=zb_h1 ranks=4 chunks=8 device=cpu partition=uniform")
    assert row.split()[:5] == ["27", "27", "0.1111", "0.1250", "0.1111"]
    drawn = [line for line in done.stdout.splitlines() if line.startswith("rank ")]
    assert len(drawn) == 4
    for rank, line in enumerate(drawn):  # 27 units fill the 160 columns, and rank r begins after r of them
        assert line.startswith(f"rank {rank} |" + "·" * round(rank * (160 - len("rank 0 ||")) / 27) + "F0-")
        assert len(line) == 160
    assert "in flight per rank: 4 3 2 1" in done.stdout
    [folder] = (tmp_path / "outputs" / "simulated").iterdir()
    assert folder.name.startswith("zb_h1-m8-k4-")
    drawings = {"timeline.svg", "timeline.pdf", "timeline.png", "trace.json"}
    assert {path.name for path in folder.iterdir()} == drawings | {"schedule.txt", "schedule.csv"}
    for name in ("schedule.txt", "schedule.csv"):  # what was written is read back, and is the same
        assert figures(composed(f"schedule=file schedule.path={folder / name} ranks=4 chunks=8"))["makespan"] == 27
    assert f"drawn outputs/simulated/{folder.name}" in done.stdout
    assert {path.name for path in tmp_path.iterdir()} <= {"outputs", ".config", ".cache", ".local"}


def test_several_as_one_table(tmp_path):
    done = simulate("-m", "schedule=1f1b,zb_h1", "ranks=2", "chunks=4,8", "model.dim=64", folder=tmp_path)
    rows = [line.split() for line in done.stdout.splitlines() if line.startswith(("1f1b", "zb_h1"))]
    found = ["1f1b 4 15 15", "1f1b 8 27 27", "zb_h1 4 13 13", "zb_h1 8 25 25"]
    assert [" ".join(row[:4]) for row in rows] == found
    assert done.stdout.startswith("4 simulated, the same in all: ranks=2 ")
    assert "a cost is of a microbatch, whatever its rows: compare bubbles" in done.stderr
    assert "rank 0 |" not in done.stdout


def test_points_that_are_not_valid_are_named_and_the_others_priced_with_each_note_once(tmp_path, monkeypatch):
    shares: list[float] = []  # of the points that are priced, for a bar
    monkeypatch.setattr(pricing, "bar", lambda _: nullcontext(shares.append))
    done = type_in(tmp_path, "simulate -m schedule=seq_1f1b,gpip chunks=0,2,4 model.dim=64")
    assert (done.returncode, shares) == (2, [0.5, 1.0])
    assert done.stdout.startswith("2 simulated, the same in all: schedule=seq_1f1b ")
    assert "error: schedule=seq_1f1b chunks=0: chunks=0 is below 1" in done.stderr
    assert "error: schedule=gpip chunks=0, schedule=gpip " in done.stderr
    assert done.stderr.count("no run, so no MiB: ") == 1


def test_json_is_one_object_a_point_and_nothing_else(tmp_path):
    words = ["-m", "schedule=interleaved,1f1b", "model.dim=64", "costs.latency=0,0.5", "output=json"]
    done = simulate(*words, folder=tmp_path)
    points = [json.loads(line) for line in done.stdout.splitlines()]
    assert [p["schedule"] for p in points] == ["interleaved", "interleaved", "1f1b", "1f1b"]
    for point in points:
        assert point.keys() >= KEYS
        assert point["bubble"].keys() == {"gpipe", "megatron", "zero_bubble"}
        assert len(point["in_flight_peak"]) == len(point["peak_memory_mib"]) == point["ranks"] == 2
    assert [p["closed_form"]["makespan"] is None for p in points] == [False, True, False, False]  # interleaved: no hops
    assert (points[0]["makespan"], points[2]["makespan"]) == (4 * 3 + Fraction(3, 2), 15)
    assert all(p["closed_form"]["makespan"] == p["makespan"] for p in points[2:])
    assert not list(tmp_path.rglob("trace.json"))


def figures(config) -> dict:
    return Price(make_pricing_job(config)).figures


def test_too_little_memory_for_a_run_is_a_warning(tmp_path):
    words = ["model.layers=4", "model.dim=64", "schedule=1f1b", "output=json", "device.memory_gib=0.0001"]
    done = simulate(*words, folder=tmp_path)
    peaks = json.loads(done.stdout)["peak_memory_mib"]
    needs = f"warning: rank {peaks.index(max(peaks))} needs {max(peaks):.1f} MiB, more than device.memory_gib=0.0001: "
    assert " ".join(done.stderr.split()).startswith(needs)


def test_without_costs_an_average_rank_takes_one_for_each():
    assert figures(composed("ranks=4 chunks=8"))["makespan"] == 11 * 3
    # 16 layers as 12 and 4, the last of which computes half as much: 24/31 of the whole are the first rank's
    for words in ("partition=skewed partition.share=0.75", "partition=sizes partition.sizes=[12,4]"):
        skewed = figures(composed(f"{words} chunks=4 model.dim=512"))["makespan"]
        assert skewed == pytest.approx(3 * 2 + 3 * 3 * 2 * 24 / 31, rel=1e-9)
    assert figures(composed("ranks=32 chunks=4"))["makespan"] == 35 * 3  # more stages than layers


EMULATED = "ranks=4 chunks=8 device=emulated"
BY_HAND = "ranks=4 chunks=8 costs.forward=1 costs.backward=2"
RECOMPUTED = "ranks=1 chunks=9 costs.forward=2 costs.backward=3 checkpointing="


@pytest.mark.parametrize(
    ("words", "makespan"),
    [
        (EMULATED, 11 * 15),  # device/test_emulated.py has its other times
        (f"{EMULATED} device.latency_ms=0.5 checkpointing=always", 11 * 20 + 2 * 3 * 0.5),
        (f"{EMULATED} device.per=[row] device.forward_ms=0.5 device.backward_ms=1 batch_size=64", 11 * 1.5 * 8),
        (f"{EMULATED} ranks=32", (8 + 31) * 15),  # more stages than layers: the times are none of theirs
        (f"{EMULATED} costs.forward=1 costs.backward=1", 11 * 2),  # by hand comes first
        (f"{EMULATED} schedule=1f1b device.latency_ms=1", 11 * 15 + 2 * (3 + 7 * 3 // 4)),
        (f"{BY_HAND} schedule=interleaved", Fraction("28.5")),  # a number is of a rank, which its stages share
        (f"{BY_HAND} schedule=zb_v", Fraction("25.5")),  # and without costs.weight I and W are halves of B
        (f"{BY_HAND} schedule=dualpipe", 25),
        (f"{BY_HAND} schedule=1f1b costs.backward=[2,2,2,2]", 33),
        (f"{RECOMPUTED}always", 9 * 7),  # costs.recompute is costs.forward, if it is not given
        (f"{RECOMPUTED}except_last costs.recompute=1", 9 * 6 - 1),
    ],
)
def test_times_are_those_of_the_emulated_device_or_of_the_costs(words, makespan):
    assert figures(composed(words))["makespan"] == makespan


def test_unequal_microbatches_are_told():
    rows = "device=emulated device.per=[row] batch_size=16 chunks="
    assert any(
        note.startswith("microbatches have 3 or 2 rows") for note in make_pricing_job(composed(f"{rows}7")).notes
    )
    assert make_pricing_job(composed(f"{rows}8")).notes == ()


ALIKE = "model.layers=8 model.dim=256 batch_size=512 chunks=8"
GPT = "model=gpt model.dim=32 batch_size=28 chunks=6"  # microbatches of 5 and of 4 rows
MODES = ("never", "always")
MEMORY_OF = [f"{ALIKE} schedule={name} checkpointing={mode}" for name in ("gpipe", "1f1b", "zb_h1") for mode in MODES]
MEMORY_OF += [f"{GPT} schedule={name} checkpointing={mode}" for name in ("breadth_first", "v_min") for mode in MODES]
MEMORY_OF += [
    *(f"{GPT} schedule={words}" for words in ("dualpipe_v partition=skewed", "1f1b checkpointing=segments")),
    *(f"{ALIKE} schedule=gpipe {words}" for words in ("checkpointing=segments", "chunks=4")),
    f"{GPT} schedule=interleaved checkpointing=except_last",
    *(f"{ALIKE} schedule={words} dtype=bf16" for words in ("gpipe", "1f1b checkpointing=always", "zb_h1")),
    f"{GPT} schedule=1f1b dtype=bf16",
]


def check_peaks(words: list[str], folder: Path, **tolerance: float) -> None:
    """The predicted peaks are those that ranks measure, of configurations with the same ranks and transport."""
    configs = [composed(f"{each} device.threads=1") for each in words]
    jobs = list(map(make_job, configs))
    if jobs[0].backend == "threads":
        measured = in_threads(jobs[0].ranks, lambda comms: training.peak_memories(jobs, jobs[0], comms, 0, folder))
    else:
        measured = launch_ranks(jobs[0], folder, partial(training.peak_memories, jobs))
    for number, config in enumerate(configs):
        peaks = [measured[rank][number] for rank in range(jobs[0].ranks)]
        assert figures(config)["peak_memory_mib"] == pytest.approx(peaks, **tolerance), words[number]


@pytest.mark.parametrize("comms", ["shm", "gloo"])
def test_predicted_memory_is_what_a_run_measures(comms, whole, tmp_path):
    """Sent tensors stay in the sender's memory over gloo alone. The cases take turns; --whole has all over both."""
    cases = MEMORY_OF if whole else MEMORY_OF[2 if comms == "shm" else 1 :: 3]
    check_peaks([f"{words} ranks=2 comms={comms}" for words in cases], tmp_path, rel=0.008)


EVERY_TENSOR = ["gpipe", "1f1b", "zb_h1", "zb_h2", "zb_v", "v_half", "dualpipe_v", "interleaved"]
EVERY_TENSOR += ["dualpipe", "chimera"]


@pytest.mark.parametrize("comms", ["shm", "threads"])
def test_no_tensor_between_stages_is_forgotten(comms, whole, tmp_path):
    """Microbatches so small that one tensor is half a percent; the step counts of the optimizer are left out.

    The modes take turns over schedules and transports; --whole has all over both.
    """
    of = f"model.dim=64 model.layers=16 batch_size=64 chunks=8 ranks=4 comms={comms}"
    modes = (*MODES, "segments", "except_last")
    words = [f"schedule={name} checkpointing={mode} {of}" for name in EVERY_TENSOR for mode in modes]
    check_peaks(words if whole else words[2 * (comms == "shm") :: 5], tmp_path, abs=0.1 * 8 * 64 * 4 / 2**20)


def test_predicted_memory_of_large_microbatches_is_exact_where_backwards_are_divided(tmp_path):
    """Without a transport's mailboxes, where activations are most of the memory: the peak lies in an I."""
    of = "model.dim=64 chunks=8 ranks=2 comms=threads"
    words = [
        f"schedule={name} checkpointing={mode} batch_size=4096 {of}" for name in ("zb_h1", "zb_v") for mode in MODES
    ]
    gpt = f"model=gpt model.layers=6 batch_size=32 checkpointing=except_last {of}"
    words += [f"{gpt} schedule={name}" for name in ("1f1b", "v_min")]
    check_peaks(words, tmp_path, rel=0.001)


def test_predicted_memory_of_replicas_has_their_buckets(tmp_path):
    of = f"{GPT} ranks=1 schedule=gpipe replicas=2 sync="
    check_peaks([of + sync for sync in ("naive", "flat", "ddp")], tmp_path, rel=0.02)


def test_a_model_that_no_machine_here_could_hold_is_priced():
    big = "model=gpt model.dim=12288 model.heads=96 model.layers=96 model.context=2048 ranks=16 batch_size=64 chunks=64"
    peaks = figures(composed(f"{big} schedule=1f1b checkpointing=always"))["peak_memory_mib"]
    state = 4 * 4 * 12 * 12288**2 * 6 / 2**20  # weights, gradients and two of Adam of six blocks
    assert all(state < peak < 1.2 * state for peak in peaks)


def test_rows_are_those_of_the_replica_that_has_most(tmp_path):
    """100 rows on 3 replicas are 34, 33 and 33: a price, a plan and a run take the step of the first one."""
    words = ["device=emulated", "device.per=[layer,row]", "device.forward_ms=0.1", "device.reduce_ms=0.5"]
    words += ["batch_size=100", "model.layers=8", "model.dim=64", "replicas=3", "chunks=4"]
    priced = ran(*words, "ranks=2", "output=json", folder=tmp_path, program="microp.simulate")
    makespan = json.loads(priced.stdout)["reduction"]["makespan"]
    only = ["schedule=gpipe", "partition=uniform", "checkpointing=never"]
    ran(*words, *only, "ranks=6", folder=tmp_path, program="microp.plan")
    [path] = (tmp_path / "outputs" / "plans").glob("*.json")
    assert json.loads(path.read_text())["plans"][0]["step"] == pytest.approx(makespan)
    config = read_config(compose_config(*words, "ranks=2"))
    assert predict(config, make_job(config)).step_ms == pytest.approx(makespan)


def test_stages_without_w_are_priced_for_a_model_that_trains_them(tmp_path):
    path = tmp_path / "mine.txt"
    path.write_text(to_text(one_f_one_b(4, 8).without_weight_gradients([1, 2, 3])))
    words = ["schedule=file", f"schedule.path={path}", "ranks=4", "chunks=8"]
    job = make_pricing_job(read_config(compose_config(*words, name="simulate")))
    assert makespan(Price(job).timeline) == 27  # as zb_h1; with every W it takes 33
    assert [note.split(",")[0] for note in job.notes] == [f"schedule=file has no W for stage {at}" for at in (1, 2, 3)]
