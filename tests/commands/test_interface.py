"""The Python interface as a notebook or a script uses it: `microp.measure`, `microp.price`, `microp.load_runs`."""

import re
import shutil
import sys
from itertools import pairwise, product
from pathlib import Path

import pandas as pd
import pytest
from user import SMALL, read, start

import microp
from microp.config import config_checks
from microp.model import Stage
from microp.records import write_json
from microp.results import Store
from microp.schedule import Op

SCRIPT = f"""
open("counter", "a").write("once ")
import microp
print(microp.measure("schedule=1f1b", "chunks=2", *{[*SMALL, "tracking=disabled"]}).summary["chunks"])
print(microp.load_runs("outputs")["status"].tolist())
"""


@pytest.fixture(scope="module")
def outputs(tmp_path_factory):
    return tmp_path_factory.mktemp("measured") / "outputs"


@pytest.fixture(scope="module")
def measured(outputs):
    """Two runs, one after the other in this process."""
    words = ["schedule=1f1b", *SMALL, "tracking=disabled", f"output_dir={outputs}"]
    return [microp.measure(f"chunks={chunks}", *words) for chunks in (2, 4)]


def test_a_run_has_its_summary_and_its_folder(measured, outputs):
    for run, chunks in zip(measured, (2, 4), strict=True):
        assert isinstance(run, microp.Run)
        assert run.summary == read(run.folder / "summary.json")
        assert (run.summary["schedule"], run.summary["chunks"], run.summary["status"]) == ("1f1b", chunks, "finished")
        assert run.folder == outputs / "runs" / run.summary["run_id"] / "attempt-1"
        assert repr(run).startswith(f"<run {run.summary['run_id']}: step ")
        assert read(run.folder / "env.json")["overrides"][0] == f"chunks={chunks}"


def test_steps_are_one_row_per_step_and_rank_and_spans_one_per_action(measured):
    """In milliseconds from the first start."""
    steps, spans = measured[1].steps, measured[1].spans
    assert steps["phase"].tolist() == ["warmup", "measured", "measured", "measured", "memory"] * 2
    assert steps["step"].tolist() == [0, 1, 2, 3, 4] * 2
    assert (steps["step_ms"] > steps["compute_ms"]).all()
    assert steps.groupby("rank")["wait_ms"].median().index.tolist() == [0, 1]
    own = steps[steps["phase"] == "measured"].groupby("step")["step_ms"].max()
    assert own.median() == pytest.approx(measured[1].summary["step_ms"]["median"])
    moments = ["wait_start_ms", "ready_ms", "start_ms", "end_ms"]
    assert spans.columns.tolist() == ["rank", "op", "stage", "microbatch", *moments]
    assert (len(spans), spans["start_ms"].min()) == (2 * 2 * 4, 0)
    assert all((spans[earlier] <= spans[later]).all() for earlier, later in pairwise(moments))
    assert spans["end_ms"].max() < steps["step_ms"].max()


def test_a_recorded_run_is_opened_by_its_folder_or_its_newest_attempt_and_what_is_none_is_refused(measured, tmp_path):
    assert microp.Run(str(measured[0].folder)).summary == measured[0].summary
    assert microp.Run(measured[0].folder.parent).folder == measured[0].folder
    broken = shutil.copytree(measured[0].folder, tmp_path / "run" / "attempt-1")
    (broken / "summary.json").write_text("{")
    for function, folder, message in (
        (microp.Run, tmp_path, "is no run: give outputs/runs/<run>, or one of its attempts"),
        (microp.Run, broken, "/summary.json cannot be read"),
        (microp.load_runs, tmp_path / "nothing", "is not a folder: give outputs, or the output_dir of the runs"),
    ):
        with pytest.raises(microp.ConfigError, match=f"{folder} ?{message}"):
            function(folder)
    (broken / "summary.json").unlink()
    write_json(broken / "status.json", {"status": "failed", "message": "m", "started": 1.0})
    with pytest.raises(microp.ConfigError, match="attempt-1 is failed and has no summary: run its command again"):
        microp.Run(broken)


def test_a_run_and_a_price_are_drawn_in_a_notebook_and_a_disturbed_run_says_so(measured, monkeypatch, tmp_path):
    run = microp.Run(measured[1].folder)
    monkeypatch.setitem(run.summary, "shared_gpu", True)
    assert repr(run).endswith(", disturbed>")
    for shown in (run, microp.price("chunks=2", "model.dim=64")):
        text, drawing = shown._repr_html_().split("<br>")
        assert text == repr(shown).replace("<", "&lt;").replace(">", "&gt;")
        assert (drawing[:4], drawing.rstrip()[-6:]) == ("<svg", "</svg>")
    assert run.draw(tmp_path / "step").endswith(f"\ndisturbed: {run.disturbed_by}")
    assert "measured (disturbed): " in (tmp_path / "step.svg").read_text()


def test_keys_are_the_words_of_the_command_line():
    words = microp.price("schedule=interleaved", "chunks=8", "costs.forward=[1,2,3,4]", "costs.backward=2", "seed=3")
    costs = {"forward": (1, 2, 3, 4), "backward": 2}
    assert microp.price("seed=3", schedule="interleaved", chunks=8, costs=costs).figures == words.figures
    with pytest.raises(microp.ConfigError, match="chunks=0 is below 1"):
        microp.measure(chunks=0)


def test_a_sweep_is_a_frame_of_its_points_in_order_and_a_folder_that_the_report_draws(tmp_path, capsys):
    """A finished run is taken, unless `again`."""
    outputs = str(tmp_path / "outputs")
    keys = {"tracking": "disabled", "comms": "threads", "output_dir": outputs}
    points = {"schedule": ["1f1b", "gpipe"], "chunks": [4, 2]}
    runs = microp.sweep(*SMALL, **keys, **points)
    assert list(zip(runs["schedule"], runs["chunks"], strict=True)) == [*product(*points.values())]
    assert list(runs)[:3] == ["schedule", "chunks", "status"]
    with pd.option_context("display.width", 80, "display.max_columns", 4):  # as in a terminal
        assert str(runs).split()[:5] == ["schedule", "chunks", "...", "bubble.measured", "step_ms.median"]
    assert runs["status"].tolist() == ["finished"] * 4
    assert runs["disturbed"].dtype == bool
    assert (runs["disturbed_by"].str.len() > 0).tolist() == runs["disturbed"].tolist()
    few = microp.sweep(*SMALL, **keys, schedule="1f1b", chunks=[2, 2])
    assert few["folder"].tolist() == [runs["folder"][1]]
    assert "1 of 1 points are finished already; again=true runs them again" in capsys.readouterr().err
    store = Store(Path(outputs))
    assert [[point.run_id for point in plan.points] for plan in store.plans] == [[*runs["run_id"]], [*few["run_id"]]]
    assert not store.unfinished(store.plans[0].points)
    assert pd.read_csv(store.plans[0].folder / "table.csv")["status"].tolist() == ["finished"] * 4
    anew = microp.sweep(*SMALL, **keys, schedule="1f1b", chunks=2, again=True)
    assert [Path(folder).name for folder in anew["folder"]] == ["attempt-2"]
    assert anew["samples_per_s"].notna().all()
    with pytest.warns(UserWarning, match="the nominal times are per microbatch, whatever its rows, so more chunks"):
        nominal = microp.sweep(*SMALL, **keys, device="emulated", chunks=[2, 4])
    assert nominal["step_ms.median"].notna().all()
    assert nominal["samples_per_s"].isna().all()  # also of each alone
    assert microp.Run(nominal["folder"][0]).summary["samples_per_s"] is None
    every = microp.load_runs(outputs)
    assert len(every) == 6  # a run that was measured again is one row
    assert {"nominal", "nominal.step", "loss", "loss.last"} & {*every} == {"nominal.step", "loss.last"}


def test_a_wrong_configuration_or_sweep_has_all_its_problems_before_anything_starts(tmp_path):
    outputs = tmp_path / "outputs"
    with pytest.raises(microp.ConfigError) as refused:
        microp.measure("ranks=20", "steps=0", "schedule.drain=x", f"output_dir={outputs}")
    for beginning in ("ranks=20 is more than", "steps=0 is below 1", "schedule.drain"):
        assert sum(problem.startswith(beginning) for problem in refused.value.problems) == 1
    assert str(refused.value) == "\n".join(refused.value.problems)
    with pytest.raises(ValueError, match=r"did you mean gpipe\?") as refused:
        microp.sweep(schedule=["gpipe", "gpip"], chunks=[0, 4], output_dir=str(outputs))
    assert "chunks=0 is below 1" in str(refused.value)
    assert not outputs.exists()


WRONG = {
    ("schedule=gpip",): "schedule/gpip' (did you mean gpipe?)",
    ("colour=red",): "colour",
    ("seconds=5",): "Key 'seconds' not in",  # it is one of microp.profile's
    ("chunks=1,2",): "chunks",
    ("-m", "chunks=1,2"): "-m",
    ("partition.share=.8",): "partition.share=0.8 is not used by partition=uniform: it has no keys",
}


@pytest.mark.parametrize("words", WRONG, ids=str)
def test_what_cannot_be_composed_is_one_problem_in_one_line(words):
    for function in (microp.measure, microp.price):
        with pytest.raises(microp.ConfigError) as refused:
            function(*words)
        [problem] = refused.value.problems
        assert WRONG[words] in problem
        assert "did you mean seconds?" not in problem
        assert problem.isprintable()


def test_a_rank_that_fails_is_a_run_error_with_its_message(monkeypatch, tmp_path):
    """The layers of the last stage raise in the second step."""
    forward = Stage.forward

    def failing(stage, microbatch, x):
        if x is not None and microbatch == 1 and stage.batch.step == 1:
            raise ValueError("the layer is broken")
        return forward(stage, microbatch, x)

    monkeypatch.setattr(Stage, "forward", failing)
    words = [*SMALL, "chunks=2", "comms=threads", "tracking=disabled", f"output_dir={tmp_path}"]
    with pytest.raises(microp.RunError, match="the layer is broken") as failed:
        microp.measure(*words)
    [attempt] = tmp_path.glob("runs/*/attempt-1")
    assert re.search(rf"rank 1\b.*step 1\b.*\(see {attempt}\)$", str(failed.value))
    assert microp.load_runs(tmp_path)["status"].tolist() == ["failed"]


def test_a_process_that_fails_is_a_run_error_and_the_next_run_works(tmp_path, monkeypatch):
    """Weights of 16 TB fit into no memory; here they are not refused before a process starts."""
    monkeypatch.setattr(config_checks.system, "memory_bytes", lambda: 2**60)
    words = [*SMALL, "chunks=2", "tracking=disabled", f"output_dir={tmp_path}"]
    with pytest.raises(microp.RunError, match="can't allocate memory"):
        microp.measure(*words, "model.dim=1000000")
    assert microp.measure(*words).summary["status"] == "finished"


def test_a_script_needs_no_main_guard(tmp_path):
    """The ranks of `microp.measure` do not run the top level of the script that calls it."""
    (tmp_path / "script.py").write_text(SCRIPT)
    done = start([sys.executable, "script.py"], tmp_path)
    assert (done.returncode, done.stdout.splitlines()) == (0, ["2", "['finished']"]), done.stderr
    assert "Traceback" not in done.stderr
    assert (tmp_path / "counter").read_text() == "once "


def test_a_price_is_simulated_and_drawn(tmp_path):
    """ZB-H1 on 4 ranks, with F = B = W = 1: 3 M + K - 1 = 27 for M = 8."""
    price = microp.price("schedule=zb_h1", "ranks=4", "chunks=8", "model.dim=64")
    assert (price.makespan, price.bubble) == (27, pytest.approx(3 / 27))
    assert (len(price.spans), price.spans["end"].max(), {*price.spans["op"]}) == (4 * 8 * 3, 27, {*Op} - {Op.B})
    assert repr(price) == "<price of zb_h1: makespan 27, bubble 0.1111>"
    lines = price.draw(tmp_path / "timeline").splitlines()
    assert [line.split("|")[0] for line in lines if "|" in line] == [f"rank {rank} " for rank in range(4)]
    assert lines[0] == "simulated 27 units of the costs, bubble 0.111"
    assert {path.name for path in tmp_path.iterdir()} == {"timeline.svg", "timeline.pdf", "timeline.png"}


def test_a_folder_of_one_s_own_options(tmp_path, monkeypatch):
    """As after `-cd`; the functions are found in the current folder, as they are by a command."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "own_order.py").write_text(
        "from microp.schedule.builders import gpipe\ndef f(ranks, chunks): return gpipe(ranks, chunks, 'fifo')\n"
    )
    (tmp_path / "options" / "schedule").mkdir(parents=True)
    (tmp_path / "options" / "schedule" / "ours.yaml").write_text("name: ours\nbuilder: own_order.f\n")
    monkeypatch.setattr(sys, "path", [*sys.path])
    own, same = microp.price("schedule=ours", folder="options"), microp.price("schedule=gpipe")
    assert own.makespan == same.makespan
    assert own.figures["closed_form"]["makespan"] is None  # though its function says `gpipe`
    words = [*SMALL, "chunks=2", "tracking=disabled", "comms=threads", "schedule=ours"]
    assert microp.measure(*words, folder=tmp_path / "options").summary["schedule"] == "ours"
    with pytest.raises(microp.ConfigError, match="schedule/ours"):
        microp.price("schedule=ours")


def test_importing_microp_imports_nothing_else_and_pricing_no_torch_before_it_measures_memory(tmp_path):
    """So that it is quick: neither torch nor hydra, pandas or numpy, nor any other module of microp."""
    code = "import sys; before = set(sys.modules); import microp; print(*set(sys.modules) - before)"
    code += "; microp.price('ranks=32', 'chunks=4'); print('torch' in sys.modules)"
    done = start([sys.executable, "-c", code], tmp_path)
    assert done.returncode == 0, done.stderr
    names, torch = done.stdout.splitlines()
    assert {name for name in names.split() if name.split(".")[0] not in sys.stdlib_module_names} == {"microp"}
    assert torch == "False"
    assert not Path(tmp_path / "outputs").exists()
