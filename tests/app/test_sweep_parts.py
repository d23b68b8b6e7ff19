"""The parts of stored sweeps: a user's own work as the repository's do, and a broken file is refused in one line."""

from __future__ import annotations

import json

import pytest
from user import microp

from microp.app import ConfigError
from microp.app.sweep_parts import read_parts

SWEEP = """
defaults: [config, mine: small, _self_]
hydra:
  mode: MULTIRUN
  sweeper: {params: {mine: "small,large"}}
"""
PARTS = """
_base: &base {batch_size: 8, steps: 1, warmup_steps: 0, model: {layers: 4, dim: 16}}
# Few microbatches.
small: {<<: *base, chunks: 2}
# Many, one after the other.
large: {<<: *base, chunks: "${calc:'2 * 4'}", defaults: [override /schedule: naive]}
"""


@pytest.mark.parametrize("option", ["-cd", "--config-dir"])
def test_the_parts_of_a_user_s_own_sweep_are_options(tmp_path, option):
    (tmp_path / "own").mkdir()
    (tmp_path / "own" / "mine.yaml").write_text(SWEEP)
    (tmp_path / "own" / "mine.parts.yaml").write_text(PARTS)
    done = microp(option, "own", "-cn", "mine", folder=tmp_path)
    assert done.returncode == 0, done.stderr
    [plan] = (tmp_path / "outputs" / "sweeps").glob("*/plan.json")
    names = [point["run_id"] for point in json.loads(plan.read_text())["points"]]
    assert [name[: name.rindex("-")] for name in names] == ["gpipe-m2-k2", "naive-m8-k2"]
    unknown = microp(option, "own", "-cn", "mine", "mine=_base", folder=tmp_path)
    assert unknown.returncode == 2
    assert unknown.stderr == "error: mine=_base is not an option of mine: use one of large, small\n"


BROKEN = {
    "- a\n- b": "it is not a mapping from the names of parts to their keys",
    "just text": "'just text' is not the name of a part",
    "a: {ranks: 4": "it is not YAML: expected ',' or '}', but got '<stream end>' in line",
    "a: {ranks: 4, ranks: 5}": "it is not YAML: found duplicate key ranks in line 1",
    "a: {<<: *base}": "it is not YAML: found undefined alias 'base' in line 1",
    "a: !!python/object/apply:os.system [id]": "it is not YAML: could not determine a constructor",
    "a: {rank: 4}": "part a: rank is not a key of a run: did you mean ranks?",
    "_a: {rank: 4}": "part _a: rank is not a key of a run",
    "a: {model.dim: 4}": "part a: model.dim is not a key of a run",
    "a: [4]": "part a is not a mapping from keys to values",
    "a: 4": "part a is not a mapping from keys to values",
    "a/b: {ranks: 4}": "'a/b' is not the name of a part",
    "2: {ranks: 4}": "the name of part 2 is not a string: put it in quotes",
    "a: {defaults: {device: emulated}}": "part a: defaults is not a list",
    "a: &a {model: *a}": "it contains itself",
    "a: {ranks: '${'}": "ranks",
    "a: \0": "it is not text",
}


@pytest.mark.parametrize("text", BROKEN, ids=lambda text: text.replace("\0", "0"))
def test_a_broken_file_is_refused_in_one_line(tmp_path, text):
    file = tmp_path / "mine.parts.yaml"
    file.write_text(text + "\n")
    with pytest.raises(ConfigError) as error:
        read_parts(file)
    [problem] = error.value.problems
    assert problem.startswith(f"{file}: ")
    assert BROKEN[text] in problem
    assert problem.isprintable()


def test_nothing_and_parts_without_keys_are_no_mistakes(tmp_path):
    file = tmp_path / "mine.parts.yaml"
    file.write_text("# none yet\n")
    assert read_parts(file) == {}
    file.write_text("plain:\nother: {ranks: 3}\n")
    assert read_parts(file) == {"plain": {}, "other": {"ranks": 3}}


def test_a_command_says_what_is_broken_and_ends_with_2(tmp_path):
    (tmp_path / "mine.yaml").write_text(SWEEP)
    (tmp_path / "mine.parts.yaml").write_text("small: {rank: 4}\n")
    (tmp_path / "evil.yaml").write_text("defaults: [config, _self_]\nbatch_size: ${calc:'open(\"x\")'}\n")
    done = microp("-cd", ".", "-cn", "mine", folder=tmp_path)
    assert done.returncode == 2
    assert done.stderr == "error: mine.parts.yaml: part small: rank is not a key of a run: did you mean ranks?\n"
    (tmp_path / "mine.parts.yaml").unlink()
    for mode in ("RUN", "MULTIRUN"):
        done = microp("-cd", ".", "-cn", "evil", f"hydra.mode={mode}", folder=tmp_path)
        assert done.returncode == 2
        assert done.stderr.startswith(
            "error: batch_size: cannot compute 'open(\"x\")': a call is not allowed; allowed "
        )
        assert done.stderr.count("\n") == 1
