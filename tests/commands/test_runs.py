"""`python -m microp.runs`, as a user types it: lists, filters, CSV, comparisons, and what is refused."""

import csv
import io
import re

import pytest
from stored import store_run
from user import ran

from microp import runs as command

HEADINGS = ["when", "run", "step ms", "p10 - p90", "bubble", "peak MiB"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A folder with outputs: 1F1B and GPipe with three numbers of chunks in three launches, and runs with troubles."""
    folder = tmp_path_factory.mktemp("user")
    outputs, minute = folder / "outputs", 0
    for schedule, factor in (("1f1b", 0.9), ("gpipe", 1.0)):
        for chunks, noise in ((4, 0.002), (8, 0.01), (16, 0.15)):
            for repeat in range(3):
                time = (100.0 + chunks) * factor * (1 + noise * (-1) ** repeat * (1 if schedule == "1f1b" else -1))
                run = (f"schedule={schedule}", f"chunks={chunks}", f"repeat={repeat}")
                store_run(outputs, *run, minute=minute, step_ms=time, env={"experiment": "mine"})
                minute += 1
    store_run(outputs, "schedule=zb_h1", "chunks=4", status="failed", minute=70, message="rank 1 waited\n30 s " * 20)
    store_run(outputs, "schedule=zb_h2", "chunks=8", status="running", minute=71)
    store_run(outputs, "schedule=naive", "chunks=4", step_ms=300, spread=(0.5, 5.0), minute=72)
    broken = store_run(outputs, "schedule=naive", "chunks=8")
    (outputs / "runs" / broken / "attempt-1" / "config.yaml").write_text("{\t:")
    return folder


@pytest.fixture
def asked(folder, monkeypatch, capsys):
    """A function that answers a command in that folder, which ends with this code: standard output and error."""
    monkeypatch.chdir(folder)

    def answer(*words: str, code: int = 0) -> tuple[str, str]:
        assert command.main(list(words)) == code
        return capsys.readouterr()

    return answer


@pytest.mark.parametrize("width", [80, 200])
def test_as_typed(folder, width):
    """Results stay, and what has no room is named."""
    done = ran("-n", "4", folder=folder, program="microp.runs", COLUMNS=str(width))
    assert max(map(len, done.stdout.splitlines())) <= width
    table = done.stdout.partition("17 more: -n 0 shows all")[0]
    left_out = done.stdout.partition("left out, no room: ")[2].partition("(whole in")[0]
    assert all(name in left_out or name.split()[-1] in table for name in [*HEADINGS, "status", "schedule"])
    assert not {"step ms", "bubble", "peak MiB", "disturbed", "run"} & {*" ".join(left_out.split()).split(", ")}


def test_the_newest_comes_first_with_what_differs(asked):
    out, _ = asked("schedule=1f1b,gpipe", "chunks=4", "-n", "0")
    heading, *lines = out.splitlines()[1:8]
    assert heading.split()[:4] == ["when", "run", "step", "ms"]  # the id tells the schedule
    assert heading.split()[-1] == "repeat"  # behind the results
    assert [line.split()[2].split("-m4")[0] for line in lines[:6]] == ["gpipe"] * 3 + ["1f1b"] * 3
    assert "repeat" in heading
    assert "chunks" not in heading  # all have 4


def test_status_and_troubles_are_shown(asked):
    out = asked("chunks=4,8", "status!=finished")[0]
    text = " ".join(out.split())
    assert "2 of 21 runs in outputs with chunks=4,8 status!=finished" in text
    assert "1 running, 1 failed" in text
    assert re.search(r"failed: zb_h1-m4-k2-.*rank 1 waited 30 s rank 1", text)
    assert re.search(r"running: zb_h2-m8-k2-.*it was started under an older microp: whether it still runs", text)
    assert re.search(r"left out: .*config.yaml cannot be read", text)
    disturbed, calm, others = (asked(f"disturbed{words}")[0] for words in ("=true", "=false", "!=true"))
    assert "spread 450 %" in disturbed
    assert int(disturbed.split()[0]) + int(calm.split()[0]) == 21
    assert others.splitlines()[1:] == calm.splitlines()[1:]


def test_chosen_columns_and_their_list(asked):
    out, _ = asked("chunks=16", "--columns=run,model.dim,schedule,bubble,config.repeat,commit", "-n", "1")
    assert out.splitlines()[1].split() == ["run", "model.dim", "schedule", "bubble", "config.repeat", "commit"]
    assert out.splitlines()[2].split()[1:] == ["256", "gpipe", "0.2", "2", "c0ffee"]
    lines = dict(line.split(maxsplit=1) for line in asked("--columns=help")[0].splitlines())
    assert (lines["model.dim"], lines["schedule"], lines["experiment"]) == ("256", "naive", "mine")


def test_csv_is_whole_and_alone_on_standard_output(asked):
    out, err = asked("--csv", "--columns=when,run,message,peak_memory_mib")
    assert err.startswith("warning: left out, 1 attempt cannot be read: outputs/runs/naive-m8-k2-")
    rows = list(csv.DictReader(io.StringIO(out)))
    assert (len(rows), list(rows[0])) == (21, ["when", "run", "message", "peak_memory_mib"])
    assert asked("--csv", "-n", "2", "--columns=run")[0].splitlines() == ["run", rows[0]["run"], rows[1]["run"]]
    assert (rows[2]["message"], rows[0]["peak_memory_mib"]) == ("rank 1 waited\n30 s " * 20, "[34.0, 20.0]")
    every = csv.DictReader(io.StringIO(asked("--csv")[0])).fieldnames
    assert {"run_id", "config.model.dim", "env.commit", "step_ms.median", "started", "folder"} <= set(every)


def test_all_attempts(folder, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    for status in ("finished", "failed"):
        run = store_run(tmp_path / "outputs", "chunks=4", status=status)
    assert command.main([]) == 0
    assert "1 run in outputs, newest first: 1 finished" in capsys.readouterr().out
    command.main(["--all", "--columns=attempt,status"])
    assert "attempt-2  failed" in capsys.readouterr().out
    command.main([f"outputs/runs/{run}/attempt-2"])
    assert "1 failed" in capsys.readouterr().out


def test_one_question_with_another(asked):
    out, _ = asked("chunks=8", "--compare", "schedule=1f1b", "schedule=gpipe")
    text = " ".join(out.split())
    assert "A: 3 launches (schedule=1f1b) B: 3 launches (schedule=gpipe)" in text
    assert "same: chunks=8 ranks=2" in text
    assert "differs A B schedule 1f1b gpipe" in text
    assert "step_ms 98.2 96.2 - 98.2 106.9 106.9 - 109.1 0.906 faster [0.856, 0.960]" in text
    assert "peak_memory_mib 38.00 38.00 1.000 equal" in text
    assert "time per step: schedule=1f1b is 9.4 % faster than schedule=gpipe [4.0 %, 14.4 %], 3 launches each" in text


def test_groups_of_questions_pair_up(asked):
    out, _ = asked("--compare", "schedule=1f1b", "schedule=gpipe")
    lines = [line.split() for line in out.splitlines()]
    assert [line[0] for line in lines if line and line[0] in ("4", "8", "16")] == ["4", "8", "16"]
    text = " ".join(out.split())
    assert "too noisy to say [0.418, 2.369]" in text
    assert "over 3 pairs mean A/B least - largest verdicts step_ms" in text
    assert "step_ms 0.933 0.901 - 0.995 2 faster, 1 too noisy to say" in text
    assert "2 more pairs: -n 0 shows all" in asked("--compare", "schedule=1f1b", "schedule=gpipe", "-n", "1")[0]


def test_groups_without_a_common_question_are_refused(tmp_path, monkeypatch, capsys):
    """Neither the schedule nor the number of chunks parts the groups, and yet no question is in both."""
    monkeypatch.chdir(tmp_path)
    for group, schedule, chunks in (("a", "1f1b", 4), ("a", "gpipe", 8), ("b", "1f1b", 8), ("b", "gpipe", 4)):
        store_run(tmp_path / group, f"schedule={schedule}", f"chunks={chunks}")
    assert command.main(["a", "--compare", "a", "b"]) == 2
    assert "no question of a agrees with one of b in everything but" in capsys.readouterr().err


def test_two_runs_by_their_ids(asked, folder):
    """By the start and by the end of an id."""
    first, *_ = sorted(path.name for path in (folder / "outputs" / "runs").glob("1f1b-m4-*"))
    other, *_ = sorted(path.name for path in (folder / "outputs" / "runs").glob("gpipe-m4-*"))
    out, _ = asked("--compare", first[:-2], other[-8:])
    assert f"against {other[-8:]}: the spread of 1 launch" in " ".join(out.split())


def test_two_folders_are_compared_and_steps_with_different_batches_per_sample(tmp_path, monkeypatch, capsys):
    """Before and after; a step of twice as many samples takes 1.5 times as long: a sample takes 25 % less time."""
    monkeypatch.chdir(tmp_path)
    for repeat in range(3):
        for name, commit, factor in (("before", "aaa", 1.0), ("after", "bbb", 0.8)):
            run = ("chunks=4", f"repeat={repeat}")
            store_run(tmp_path / name, *run, step_ms=factor * (100 + repeat), env={"commit": commit})
        for batch, time in ((256, 50.0), (512, 75.0)):
            store_run(tmp_path / "outputs", f"batch_size={batch}", f"repeat={repeat}", step_ms=time + repeat)
    assert command.main(["--compare", "batch_size=512", "batch_size=256"]) == 0
    text = " ".join(capsys.readouterr().out.split())
    assert "time per sample: batch_size=512 is 25.5 % faster than batch_size=256" in text
    for chunks in (4, 8):
        store_run(tmp_path / "nominal", "device=emulated", f"chunks={chunks}", step_ms=20.0 * chunks)
    assert command.main(["nominal", "--compare", "chunks=4", "chunks=8"]) == 0
    out, err = capsys.readouterr()
    assert "warning: the nominal times are per stage" in err or "warning: the nominal times are per microbatch" in err
    assert not re.search("samples_per_s|time per", out)
    for words in (["model=gpt", "model.dim=32", "checkpointing=always"], ["model=mlp", "model.dim=64"]):
        store_run(tmp_path / "models", *words, step_ms=80.0)
    assert command.main(["models", "--compare", "model=mlp", "model=gpt"]) == 0  # without checkpointing.segments
    told = capsys.readouterr().out.partition("differs")[2].partition("figure")[0].splitlines()
    keys = {line.split()[0] for line in told[1:] if line}
    assert keys == {"model", "model.dim", "batch_size", "checkpointing"}
    assert command.main(["before", "--compare", "after", "before"]) == 0
    out, err = capsys.readouterr()
    text = " ".join(out.split())
    assert "differs A B commit bbb aaa" in text
    assert "time per step: after is 20.0 % faster than before" in text
    assert "warning: A and B ran on different commit: a difference may come from that" in err


def test_what_did_not_finish_or_was_disturbed_is_said(asked):
    _, err = asked("--compare", "schedule=naive", "schedule=gpipe,zb_h1 chunks=4 repeat=0")
    assert "B: 1 run that did not finish left out" in err
    assert "A: the timing of 1 of 1 launch was disturbed (spread 450 %)" in err
    out, err = asked("--compare", "schedule=naive,1f1b chunks=4,8", "schedule=gpipe chunks=8")
    assert "A: 3 launches, 2 questions without a partner" in out
    assert "disturbed" not in err  # naive has none


def test_a_comparison_as_csv(asked):
    out, _ = asked("--compare", "schedule=1f1b", "schedule=gpipe", "--csv")
    first, *others = csv.DictReader(io.StringIO(out))
    assert len(others) == 3 * 7 - 1
    expected = {"chunks": "4", "figure": "step_ms", "verdict": "faster", "a_launches": "3", "more": "0"}
    assert first.items() >= expected.items()
    assert float(first["low"]) < float(first["ratio"]) < float(first["high"]) < 1


@pytest.mark.parametrize(
    ("words", "code", "reason"),
    [
        (["schedule=1f1b", "chunks"], 2, "Without quotes the shell takes > or <"),
        (["nowhere/outputs"], 2, "nowhere/outputs is neither a folder nor a filter"),
        (["output_dir=nowhere"], 2, "nowhere is neither a folder nor a filter"),
        (["output_dir=outputs", "schedule=zb_h2", "chunks=4"], 1, "each alone: schedule=zb_h2 (1), chunks=4 (8)"),
        (["chunks>64"], 1, "none of the 21 runs in outputs has chunks>64; chunks is 4, 8, 16"),
        (["--compare", "nothing", "schedule=gpipe"], 2, "nothing is no run in outputs, no folder and no filter"),
        (["--compare", "schedule=1f1b", "schedule=zzz"], 2, "none of the 21 runs in outputs has schedule=zzz;"),
        (["--compare", "schedule=1f1b", "chunks=4 status=finished"], 2, "share runs, as 1f1b-m4-k2-"),
        (["--compare", "schedule=1f1b", "status=running"], 2, "status=running: none of 1 runs finished"),
        (["--compare", "schedule=1f1b,chunks=4,16", "schedule=naive,gpipe chunks=8"], 0, ""),
    ],
)
def test_bad_input_is_one_message(asked, words, code, reason):
    out, err = asked(*words, code=code)
    if code:
        assert out == ""
        assert len([line for line in err.splitlines() if line.startswith("error: ")]) == 1
        assert reason in err


def test_an_empty_folder_and_one_of_damaged_runs_are_one_message(tmp_path, monkeypatch, capsys):
    def error() -> str:
        assert command.main([]) == 2
        [line] = capsys.readouterr().err.splitlines()
        return line

    monkeypatch.chdir(tmp_path)
    assert "there is no folder outputs here" in error()
    (tmp_path / "outputs").mkdir()
    assert "outputs holds no runs: make one with python -m microp.run" in error()
    damaged = [f"outputs/runs/gpipe-m4-k2-{number}/attempt-1" for number in (1, 2)]
    for attempt in damaged:
        (tmp_path / attempt).mkdir(parents=True)
        (tmp_path / attempt / "status.json").write_text("{")
    assert (said := error()).startswith("error: outputs holds no run that can be read: ")
    assert all(f"{attempt}/" in said for attempt in damaged)
