"""What the README shows works as it stands there."""

import ast
import re
from itertools import pairwise
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from user import SMALL, add_model, add_schedule, microp, ran, read, readme_block

from microp import Run, price
from microp.schedule.builders import gpipe
from microp.simulator import for_stages, simulate
from microp.trace import plain, timeline

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text()
SCHEDULES = (ROOT / "microp" / "schedule" / "README.md").read_text()


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A user's own folder, with the function and the YAML file."""
    return add_model(add_schedule(tmp_path_factory.mktemp("own")))


def test_the_python_example_runs(tmp_path, monkeypatch, capsys):
    """In a small model's few steps; test_interface.py has scripts in interpreters of their own."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("WANDB_MODE", "disabled")
    names: dict[str, Any] = {}
    with pd.option_context("display.width", 400, "display.max_columns", None):  # long times would leave out columns
        small = re.sub(
            r"\bchunks=(8|\[)", r"steps=3, batch_size=64, chunks=\1", readme_block("python", "microp.measure")
        )
        exec(small, names)
    said = capsys.readouterr().out
    for text in ("wait_start_ms", "action times\nrank 0 |", "measured step\nrank 0 |"):
        assert text in said
    assert len(names["runs"]) == 5


def test_a_schedule_is_one_function_and_one_yaml_file(folder):
    [command] = re.findall(r"`python -m microp.run (-cd . schedule=mine schedule.group=3)`", README)
    ran(*command.split(), *SMALL, "chunks=5", "comms=threads", folder=folder)
    [attempt] = (folder / "outputs" / "runs").glob("mine-m5-k2-*/attempt-1")
    assert read(attempt / "summary.json")["in_flight_peak"] == [3, 3]


def test_a_schedule_of_two_stages_per_rank_that_divides_its_backward(folder):
    (folder / "other.py").write_text(readme_block("python", "v_gpipe"))
    (folder / "schedule" / "other.yaml").write_text("name: other\nbuilder: other.v_gpipe\n")
    ran("-cd", ".", "schedule=other", *SMALL, "chunks=3", "comms=threads", folder=folder)
    [attempt] = (folder / "outputs" / "runs").glob("other-m3-k2-*/attempt-1")
    assert read(attempt / "summary.json")["in_flight_peak"] == [3, 3]
    assert "3I0" in (attempt / "schedule.txt").read_text()


def test_it_is_priced_and_its_keys_are_typed(folder):
    done = ran("-cd", ".", "schedule=mine", "output=json", folder=folder, program="microp.simulate")
    assert '"in_flight_peak": [2, 2]' in done.stdout
    wrong = microp("-cd", ".", "schedule=mine", "schedule.group=two", folder=folder)
    assert (wrong.returncode, "schedule.group: " in wrong.stderr) == (2, True)


def test_a_model_is_one_function_and_one_yaml_file(folder):
    [command] = re.findall(r"`python -m microp.run (-cd . model=words model.blocks=6 schedule=zb_h1)`", README)
    small = ["batch_size=8", "steps=3", "warmup_steps=1", "data.path=words.py", "snapshot.final=true"]
    ran(*command.split(), *small, folder=folder)
    [attempt] = (folder / "outputs" / "runs").glob("zb_h1-m4-k2-*/attempt-1")
    summary = read(attempt / "summary.json")
    assert (summary["partition"], summary["model"]) == ([4, 4], "words")
    assert all(peak > 0 for peak in read(attempt / "predicted.json")["peak_memory_mib"])
    assert "model:\n  name: words\n  builder: words.transformer\n" in (attempt / "config.yaml").read_text()
    (folder / "words.py").write_text((folder / "words.py").read_text() + "\n# another version\n")
    other = ran(*command.split(), *small, "dry_run=true", folder=folder)
    assert attempt.parent.name not in other.stdout


def test_a_model_brings_its_data_and_goes_on_where_it_was(folder):
    (folder / "images.py").write_text(readme_block("python", "Stripes"))
    (folder / "model" / "images.yaml").write_text(readme_block("yaml", "images.convolutions"))
    words = ("-cd", ".", "model=images", "batch_size=12", "chunks=2", "replicas=2", "ranks=1", "warmup_steps=0")
    words = (*words, "comms=threads", "tracking=disabled")
    losses, attempt = {}, None
    for steps, more in ((6, ()), (3, ("snapshot.every=3",)), (6, ("snapshot.path={}", "seed=0"))):
        runs = folder / "outputs" / f"{steps}{len(more)}"
        given = [word.format(attempt) for word in more]  # the one before
        ran(*words, f"steps={steps}", *given, f"output_dir={runs}", folder=folder)
        [attempt] = runs.glob("runs/*/attempt-1")
        rows = Run(attempt).steps
        losses[steps, len(more)] = dict(rows[rows.loss.notna() & (rows.phase == "measured")].groupby("step").loss.sum())
    assert list(losses[6, 2]) == [3, 4, 5]
    assert losses[3, 1] | losses[6, 2] == losses[6, 0]


def test_the_schedules_it_lists_are_the_options():
    options = {path.stem for path in (Path(__file__).parent.parent / "conf" / "schedule").glob("*.yaml")}
    [table] = [text for text in SCHEDULES.split("\n\n") if text.startswith("| schedule | order of a rank")]
    first = "".join(line.split("|")[1] for line in table.splitlines() if "|" in line)
    assert set(re.findall(r"`([a-z0-9_]+)`", first)) == options


def test_the_bubbles_it_lists_are_those_of_the_simulator():
    """Of 4 ranks and 8 microbatches, where the idle time is what the formula says, if it is a plain one."""
    [table] = [text for text in SCHEDULES.split("\n\n") if text.startswith("| schedule | order of a rank")]
    more = {"schedule.overlap=true": ["schedule.extra_warmup=1"], "gis": ["schedule.group=2"]}
    for line in table.splitlines()[2:-1]:
        row, _, idle, listed, *_ = (cell.strip() for cell in line.strip("|").split("|"))
        name, *keys = re.findall("`([^`]+)`", row.replace("=v", "=2"))
        words = [f"schedule={name}", *keys, *more.get([name, *keys][-1], [])]
        ones = [f"costs.{cost}=1" for cost in ("forward", "backward", "weight")]
        bubble = price(*words, *ones, "ranks=4", "chunks=8").figures["bubble"]["gpipe"]
        assert f"{bubble:.3f}" == f"0{listed}", row
        if re.fullmatch(r"[\d\sKMsv()/+-]+", idle):
            formula = re.sub(r"(?<=[\dM)sv])\s*(?=[(KMv])", "*", idle)
            number = eval(formula, {"K": 4, "M": 8, "s": 2, "v": 2})
            assert bubble == pytest.approx(number / (3 * 8 + number)), row


def test_its_first_picture_is_what_is_drawn():
    """Titles, marks and legend are the tool's; the times are those of one run."""
    shown = README.split("```")[1].strip().splitlines()
    spans = simulate(gpipe(2, 8), for_stages(2, forward=2e6, backward=3e6))
    drawn = plain(timeline({"replayed": spans, "measured": spans}, columns=110)).splitlines()
    assert len(shown) == len(drawn)
    for ours, theirs in zip(shown, drawn, strict=True):
        if "|" in theirs:
            assert re.sub("[-=·]+", "", ours) == re.sub("[-=·]+", "", theirs)
        elif "└" not in theirs:
            assert re.sub(r"[\d.+-]+", "", ours) == re.sub(r"[\d.+-]+", "", theirs)
    assert max(map(len, shown)) <= 110


def test_the_way_from_the_command_to_the_loop_is_as_listed():
    """Each function calls the next one, itself or by functions of its file, or was given it to call."""
    way = re.findall(r"^\d\. `([\w.]+)` in `(microp/[\w/]+\.py)` ", README, flags=re.MULTILINE)
    assert (way[0], way[-1][0]) == (("main", "microp/run.py"), "Engine.step")
    assert len(way) <= 8
    given: set[str] = set()
    for (name, path), (following, _) in pairwise(way):
        functions = functions_of(ROOT / path)
        used = names_in(functions[name])
        for helper in used & functions.keys():
            used |= names_in(functions[helper])
        assert following.rpartition(".")[2] in used | given, f"{name} in {path} does not call {following}"
        given = used


def functions_of(path: Path) -> dict[str, ast.AST]:
    """The functions of a file by name, those of a class as `Class.function`."""
    found: dict[str, ast.AST] = {}
    for node in ast.parse(path.read_text()).body:
        if isinstance(node, ast.FunctionDef):
            found[node.name] = node
        elif isinstance(node, ast.ClassDef):
            found |= {f"{node.name}.{each.name}": each for each in node.body if isinstance(each, ast.FunctionDef)}
    return found


def names_in(function: ast.AST) -> set[str]:
    """The names and attributes that a function uses."""
    return {node.id for node in ast.walk(function) if isinstance(node, ast.Name)} | {
        node.attr for node in ast.walk(function) if isinstance(node, ast.Attribute)
    }
