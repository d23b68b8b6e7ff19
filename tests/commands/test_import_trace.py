"""`python -m microp.import_trace`, as a user types it: the run that it leaves, what it answers, and what is refused."""

import re
import shlex

import pytest
from user import microp, ran

from microp import Run, load_runs
from microp.schedule import from_torch_csv
from microp.schedule.builders import gpipe, one_f_one_b, zb_h1
from microp.simulator import for_stages, simulate

PROGRAM = "microp.import_trace"


@pytest.fixture
def folder(tmp_path):
    """A folder with a trace of two steps of 1F1B, on two ranks with four microbatches, in milliseconds."""
    write_trace(tmp_path / "spans.csv", one_f_one_b(2, 4), 10, 10)
    return tmp_path


def write_trace(path, schedule, *forwards):
    lines = ["rank,op,stage,microbatch,start,end"]
    for step, forward in enumerate(forwards):
        for span in simulate(schedule, for_stages(2, forward=forward, backward=20, latency=1)):
            moments = f"{span.start + 200 * step},{span.end + 200 * step}"
            lines.append(f"{span.rank},{span.op},{span.stage},{span.microbatch},{moments}")
    path.write_text("\n".join(lines))


def test_a_trace_becomes_a_run(folder):
    done = microp("spans.csv", "--replay", folder=folder, program=PROGRAM)
    assert (done.returncode, done.stderr) == (0, "")
    assert "2 ranks, 4 microbatches, 2 steps; the order is 1f1b" in done.stdout
    assert "the middle step, simulated with its own times (+0.0 %)" in done.stdout
    assert re.search(r"^measured +154 +0.2208 ", done.stdout, re.M)
    assert re.search(r"^replayed +154 +\+0.0 % +0.2208 ", done.stdout, re.M)
    [row] = load_runs(folder / "outputs").to_dict("records")
    assert (row["schedule"], row["engine"], row["status"]) == ("1f1b", "foreign", "finished")
    run = Run(folder / "outputs" / "runs" / row["run_id"])
    assert run.summary["bubble"]["measured"] == pytest.approx(1 - 240 / 308)
    assert "replayed 154 ms, bubble 0.221" in run.draw()
    assert "foreign" in microp("engine=foreign", "--columns=run,engine", folder=folder, program="microp.runs").stdout
    drawn = microp(f"outputs/runs/{row['run_id']}", folder=folder, program="analysis.timeline")
    assert (drawn.returncode, "measured 154 ms" in drawn.stdout) == (0, True)
    assert "mirrored rank0, rank1, summary" in microp("--mode=offline", folder=folder, program="microp.tracking").stdout


def test_steps_that_spread_are_disturbed(folder):
    write_trace(folder / "spans.csv", one_f_one_b(2, 4), 10, 10, 20)
    done = microp("spans.csv", folder=folder, program=PROGRAM)
    assert "disturbed: these steps (spread 26 %); trace again on an idle machine." in done.stdout


def test_traces_that_no_key_tells_apart_have_no_partner(folder):
    """Of two of 1F1B and one of GPipe it is not known which belong together; two named by their ids are compared."""
    ids = []
    for build, forward in ((one_f_one_b, 10), (one_f_one_b, 11), (gpipe, 12)):
        write_trace(folder / "spans.csv", build(2, 4), forward, forward)
        done = microp("spans.csv", folder=folder, program=PROGRAM)
        ids += re.findall(r"^outputs/runs/(.*)/attempt-1$", done.stdout, re.M)
    for words in (["schedule=1f1b", "schedule=gpipe"], [ids[0], ids[2]]):
        done = microp("--compare", *words, folder=folder, program="microp.runs")
        by_filter = words[0] != ids[0]
        assert done.returncode == 2 * by_filter
        said = "traces that no key tells apart are named by their ids" if by_filter else "tells neither model nor batch"
        assert said in " ".join(done.stderr.split())
        assert "time per step" not in done.stdout


def test_what_if_profile_and_csv(folder):
    """Several answers in a table: that of the traced order is the replay."""
    asked = "--what-if schedule=1f1b --what-if schedule=zb_h1 chunks=8 --layers 4,4 --profile there.yaml --csv a.csv"
    done = microp("spans.csv", *asked.split(), folder=folder, program=PROGRAM, COLUMNS="80")
    assert (done.returncode, done.stderr) == (0, "")
    step = simulate(zb_h1(2, 8), for_stages(2, forward=10, backward=10, weight=10, latency=1)).end.max()
    assert re.search(rf"^what if schedule=1f1b +154 +\+0.0 % .*\nwhat if schedule=zb_h1.* {step:g} ", done.stdout, re.M)
    assert "I and W take half of a B each" in " ".join(done.stdout.split())
    assert [line for line in done.stdout.splitlines() if len(line) > 80 and "python -m" not in line] == []
    assert from_torch_csv((folder / "a.csv").read_text(), "zb_h1") == zb_h1(2, 8)
    words = ("device=emulated", "profile=there.yaml", "model.layers=8", "chunks=4", "batch_size=4", "schedule=1f1b")
    priced = microp(*words, "output=json", folder=folder, program="microp.simulate")
    assert '"makespan": 154.0' in priced.stdout, priced.stderr
    assert '"peak_memory_mib": null' in priced.stdout  # it would be that of the small model that stands in
    assert "no MiB: the profile is of a trace" in priced.stderr
    [printed] = re.findall(r"^plan  python -m microp.plan (.*)", done.stdout, re.M)
    words = shlex.split(printed)
    planned = ran(*words, folder=folder, program="microp.plan")
    assert "MiB" not in planned.stdout
    refused = microp(*words, "memory_gib=2", folder=folder, program="microp.plan")
    assert (refused.returncode, refused.stderr.count("tells no memory of layers; leave it out")) == (2, 1)
    for attempts in (1, 2):
        microp("spans.csv", folder=folder, program=PROGRAM)
        assert len(list((folder / "outputs").glob("runs/*/attempt-*"))) == attempts
        next((folder / "outputs").glob("runs/*/attempt-1/status.json")).write_text("{")  # it is imported again


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["absent.json"], "absent.json cannot be read"),
        (["spans.csv", "spans.csv"], "rank 0 is in spans.csv and in spans.csv"),
        (["spans.csv", "--layers", "4"], "--layers has 1 numbers for 2 stages"),
        (["spans.csv", "--layers", "4,x"], "argument --layers: x: give numbers from 1"),
        (["spans.csv", "--what-if", "schedule=none"], "Could not find 'schedule/none'"),
        (["spans.csv", "--what-if", "chunks=0"], "chunks=0"),
        (["spans.csv", "--what-if", "model.layers=12"], "--what-if model.layers=12: it takes schedule, chunks, ranks"),
        (["twice.csv"], "twice.csv, rank 0: 0F0 begins before 0F0 has ended"),
        (["spans.csv", "--what-if", "partition=sizes", "partition.sizes=[8,9]"], "partition.sizes=[8, 9]"),
        (["spans.csv", "--what-if", "schedule=interleaved", "chunks=8", "ranks=64"], "16 layers are too few for 128"),
        (["spans.csv", "--what-if", "schedule=zb_h1", "schedule.drain=up"], "schedule.drain"),
        (["own.csv", "--what-if", "chunks=8"], "--what-if: microp does not build the traced order: give"),
        (["spans.csv", "--names", "spans.csv"], "spans.csv is no table of names"),
        (["spans.csv", "--csv", "a.csv", "--what-if", "schedule=dualpipe"], "--csv: dualpipe has copies of stages"),
    ],
)
def test_bad_input_is_one_line(folder, words, said):
    rows = (folder / "spans.csv").read_text()
    (folder / "twice.csv").write_text(f"{rows}\n0,F,0,0,1,2")  # a part of what stands there already
    own = re.sub(r"(?m)^(\d,\w,\d),([01]),", lambda found: f"{found[1]},{1 - int(found[2])},", rows)
    (folder / "own.csv").write_text(own)  # microbatch 1 comes first
    done = microp(*words, folder=folder, program=PROGRAM)
    assert (done.returncode, done.stderr.count("\n")) == (2, 1), done.stderr
    assert done.stderr.startswith(f"error: {said}")
    assert not (folder / "outputs").exists()
