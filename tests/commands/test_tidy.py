"""Runs are deleted with all that belongs to them, and nothing else goes."""

from pathlib import Path

import pytest
from stored import amend, store_run

from microp import runs as command
from microp.records import hold, this_process
from microp.results import load_runs


def with_wandb(attempt: Path, uid: str, **status) -> list[Path]:
    """Give an attempt an id, and the folders of its W&B runs; they are returned."""
    amend(attempt / "status.json", uid=uid, **status)
    names = [f"r0-{uid}", f"r1-{uid}", f"summary-{uid}"]
    folders = [attempt.parents[2] / "wandb" / f"offline-run-20261122_120000-{name}" for name in names]
    for folder in folders:
        (folder / "files").mkdir(parents=True)
        (folder / "files" / "a").write_text("0123")
    return folders


@pytest.fixture
def outputs(tmp_path, monkeypatch):
    """A run that failed twice, one that finished after a failure, and one that runs here and perhaps elsewhere."""
    monkeypatch.chdir(tmp_path)
    outputs = tmp_path / "outputs"
    uids = iter("abcdef")
    for schedule, states in (("gpipe", ["failed"] * 2), ("1f1b", ["failed", "finished"]), ("zb_h1", ["running"] * 2)):
        for state in states:
            run = store_run(outputs, f"schedule={schedule}", "chunks=4", status=state)
            attempt = max((outputs / "runs" / run).iterdir())
            runs_here = this_process() if attempt.name == "attempt-1" else {"host": "elsewhere"}
            with_wandb(attempt, next(uids), **(runs_here if state == "running" else {}))
    (outputs / "wandb" / "latest-run").symlink_to("offline-run-20261122_120000-summary-b")
    return outputs


def tree(outputs: Path) -> set[str]:
    """What there is, as `gpipe/attempt-1` and `wandb/r0-a`."""
    attempts = {f"{path.parent.name.split('-m4')[0]}/{path.name}" for path in outputs.glob("runs/*/attempt-*")}
    return attempts | {f"wandb/{path.name.split('_120000-')[-1]}" for path in outputs.glob("wandb/*")}


def belong(*uids: str) -> set[str]:
    return {f"wandb/{name}-{uid}" for uid in uids for name in ("r0", "r1", "summary")}


ALL = {f"{schedule}/attempt-{n}" for schedule in ("gpipe", "1f1b", "zb_h1") for n in (1, 2)}


def test_failed_runs_go_with_all_their_attempts(outputs, capsys):
    """One that finished after a failure is no failed run."""
    assert tree(outputs) == ALL | belong(*"abcdef") | {"wandb/latest-run"}
    assert command.main(["status=failed", "--delete", "--yes"]) == 0
    said = capsys.readouterr()
    assert "gpipe-m4-k2-" in said.out
    assert "1f1b-m4-k2-" not in said.out
    assert "deleted 2 attempts" in said.err
    assert tree(outputs) == ALL - {"gpipe/attempt-1", "gpipe/attempt-2"} | belong(*"cdef")
    assert not list(outputs.glob("runs/gpipe-*"))
    assert load_runs(outputs)["status"].value_counts().to_dict() == {"finished": 1, "running": 1}


def test_what_runs_or_what_another_process_begins_is_kept(outputs, capsys):
    [run] = outputs.glob("runs/gpipe-*")
    with hold(run):
        assert command.main(["schedule=gpipe", "--delete", "--yes"]) == 1
    assert tree(outputs) == ALL | belong(*"abcdef") | {"wandb/latest-run"}
    assert command.main(["chunks=4", "--delete", "--yes"]) == 1
    assert tree(outputs) == {"zb_h1/attempt-1", "zb_h1/attempt-2"} | belong(*"ef")
    assert capsys.readouterr().err.count("kept, because its run runs or may run: ") == 4


def test_with_all_only_the_attempts_that_are_listed_go_and_an_id_from_a_record_is_no_pattern(outputs):
    """An attempt whose id is damaged takes no other W&B run with it."""
    [run] = outputs.glob("runs/gpipe-*")
    amend(run / "attempt-1" / "status.json", uid="*")
    assert command.main(["status=failed", "--delete", "--yes", "--all"]) == 0
    left = {"1f1b/attempt-2", "zb_h1/attempt-1", "zb_h1/attempt-2"} | belong(*"def")
    assert tree(outputs) - {"wandb/latest-run"} == left | belong("a")


def test_it_asks_and_without_a_terminal_it_does_nothing(outputs, monkeypatch, capsys):
    monkeypatch.setattr("sys.stdin.isatty", lambda: False, raising=False)
    assert command.main(["status=failed", "--delete"]) == 2
    assert "add --yes to delete 2 attempts, with W&B's files" in capsys.readouterr().err
    monkeypatch.setattr("sys.stdin.isatty", lambda: True, raising=False)
    asked = []
    for answer, code in (("n", 1), ("", 1), ("Yes", 0)):
        assert tree(outputs) == ALL | belong(*"abcdef") | {"wandb/latest-run"}
        monkeypatch.setattr("builtins.input", lambda question, answer=answer: asked.append(question) or answer)
        assert command.main(["status=failed", "--delete"]) == code
    assert asked[0].startswith("delete 2 attempts, with W&B's files of them")
    assert not list(outputs.glob("runs/gpipe-*"))


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (["outputs", "--delete"], "--delete needs a filter"),
        (["status=failed", "--delete", "-n", "3"], "takes all runs that meet the filters"),
        (["-n", "-1"], "--limit"),
        (["--compare", "a"], "--compare"),
        (["--compare", "a", "b", "--all"], "--all"),
    ],
)
def test_bad_options_are_one_message(words, reason, outputs, capsys):
    with pytest.raises(SystemExit, match="2"):
        command.main(words)
    said = capsys.readouterr().err
    assert reason in said
    assert said.count("\n") == 1
    assert len(tree(outputs)) == 25
