"""More of what a user types: replicas, the commands that are printed, the self-check."""

import re
import shlex

import pytest
from user import SMALL, ran, read

import microp as microp_package
from analysis import timeline
from microp import check as command
from microp.commands import self_checks
from microp.worker import monolith


def test_several_runs_on_one_time_axis(tmp_path, monkeypatch, capsys):
    """That of GPipe was disturbed. Those whose nominal times do not compare say so."""
    monkeypatch.setattr(timeline, "disturbances", lambda summary, env: [summary] * (summary["schedule"] == "gpipe"))
    words = [*SMALL, "chunks=2", "tracking=disabled", "comms=threads", f"output_dir={tmp_path}"]
    runs = [microp_package.measure(*words, schedule=name) for name in ("gpipe", "1f1b")]
    assert timeline.main([*(str(run.folder.parent) for run in runs), "--report", str(tmp_path / "report")]) == 0
    text = capsys.readouterr().out
    gpipe = f"gpipe-m2-k2 (disturbed, median step {runs[0].summary['step_ms']['median']:.4g} ms)"
    head = " ".join(text.split())
    assert re.search(re.escape(gpipe) + r" [\d.]+ ms, bubble 0\.\d+ · 1f1b-m2-k2 [\d.]+ ms \([+-]", head)
    assert [len(re.findall(row, text, re.MULTILINE)) for row in (r"^rank \d \|", "^ +└0")] == [4, 1]
    assert f"{gpipe}:\nms      compute" in text
    [trace] = (tmp_path / "report").glob("timelines-*.trace.json")
    named = [event["args"]["name"] for event in read(trace)["traceEvents"] if event["name"] == "process_name"]
    assert named == [f"{gpipe}, ms", "1f1b-m2-k2, ms"]
    nominal = [microp_package.measure(*words, device="emulated", chunks=chunks).folder for chunks in (2, 4)]
    assert timeline.main([*map(str, nominal), "--report", str(tmp_path / "report")]) == 0
    text = " ".join(capsys.readouterr().out.split())
    assert "2 runs on one time axis, the last measured step of each; the nominal times are per microbatch" in text
    assert " %)" not in text


def test_check(tmp_path):
    done = ran(folder=tmp_path, program="microp.check")
    assert done.stdout.count("pass") == 3


TINY = ["model.layers=4", "model.dim=32", "batch_size=8"]
TIMES = ["device=emulated", "device.per=[layer,row]", "device.forward_ms=0.1", "device.weight_ms=0.1"]
KNOBS = ["device.latency_ms=1", "device.recompute_ms=0.1", "device.reduce_ms=1", "device.full_ms=0.3", "sync=flat"]
COSTS = ["costs.backward=3", "costs.forward=3"]
PRINTED = {  # a command -> its words
    "plan": [*TINY, *TIMES, *KNOBS, "ranks=2", "chunks=2,4", "replicas=1,2", "checkpointing=never,always"],
    "plan ": ["model=gpt", "model.vocabulary=300", "model.dim=32", "model.layers=2", "ranks=2", "chunks=2"],
    "order": [*TINY, *TIMES, "ranks=2", "chunks=3", "schedule=zb_h1", "device.full_ms=0.3", "search.seconds=0.1"],
    "order ": [*COSTS, "ranks=18", "chunks=3", "batch_size=2", "schedule=zb_h1", "search.seconds=0.1"],
    "simulate": [*TINY, "partition=balanced"],
    "run": [*TINY, "steps=1", "warmup_steps=0", "partition=balanced", "model.layers=5"],
}


def commands(text: str) -> list[list[str]]:
    """Return the commands in a text, each as its words; a remedy may stand inside a sentence."""
    found = re.findall(r"(?:^|\s)((?:python -m )?microp(?:\.\w+)? [^:]*?)(?= makes one| measures|\n|$)", text, re.M)
    return [shlex.split(each.removeprefix("python -m ")) for each in found]


@pytest.mark.parametrize("command", PRINTED)
def test_a_printed_command_is_not_refused(command, tmp_path):
    done = ran(*PRINTED[command], folder=tmp_path, program=f"microp.{command.strip()}")
    text = " ".join(done.stderr.split())
    found = commands(done.stdout) + commands(text)
    assert found or command == "simulate"
    for program, *words in found:
        module = {"microp": "microp.run"}.get(program, program)
        only_checked = ["dry_run=true"] if module == "microp.run" else ["--cfg", "job"]
        ran(*words, *only_checked, folder=tmp_path, program=module)


def test_a_failed_check_is_exit_code_1(monkeypatch, capsys):
    monkeypatch.setattr(self_checks, "CHECKS", {"good": lambda _: (True, "1"), "bad": lambda _: (False, "0.5")})
    assert command.main([]) == 1
    out = capsys.readouterr().out
    assert "pass  good" in out
    assert "FAIL  bad" in out
    assert "0.5" in out


def test_a_wrong_gradient_and_memory_that_does_not_fall_fail(monkeypatch, tmp_path):
    """One gradient of the monolith is changed by its smallest amount: the check sees it."""
    steps = monolith.steps

    def wrong(plan, count):
        for step in steps(plan, count):
            step.gradients[0][0].view(-1)[0] += 1e-6
            yield step

    monkeypatch.setattr(monolith, "steps", wrong)
    with monkeypatch.context() as few:
        few.setattr(self_checks, "POLICIES", ("always",))
        passed, figure = self_checks.check_gradients(tmp_path)
    assert not passed
    assert "largest difference" in figure
    monkeypatch.setattr(self_checks, "launch_ranks", lambda *_: {})
    for second in (2.0, 1.0):
        (folder := tmp_path / str(second)).mkdir()
        rows = iter([[{"peak_memory_mib": peak}] for peak in (1.0, 1.0, second, second)])
        monkeypatch.setattr(self_checks, "read_rows", lambda *_, rows=rows: next(rows))
        assert not self_checks.check_memory(folder)[0]
