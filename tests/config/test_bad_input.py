"""Wrong commands and files, one for every rule, are refused with exit code 2; random ones too, or made into a job.

`bad_input.txt` is the table: a command, as after `microp` (`simulate ...` after `python -m microp.simulate`), and after
the arrow words of what it prints. Every twentieth is typed, with `--whole` all. Of the others the words of a run or a
price are read in Python, which takes a quarter of the time; a command that this does not refuse is typed as well.
"""

import shlex
from math import isfinite
from pathlib import Path

import bad_files
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from typed import nothing_starts, type_in

from microp.config import ConfigError, compose_config, make_job, make_pricing_job, read_config
from microp.config.schema import all_keys
from microp.simulator import nominal_costs, simulate

TABLE = Path(__file__).with_name("bad_input.txt").read_text().splitlines()
ROWS = [line.split(" → ") for line in TABLE if line and not line.startswith("#")]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A folder of files that no command can use, in which commands are typed."""
    with nothing_starts():
        yield bad_files.make(tmp_path_factory.mktemp("bad"))


def files(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir() if path.name != "__pycache__")


def refused(command: str) -> str:
    """What the words of a run or a price are refused with in Python; nothing if it takes more than these words."""
    program, *words = ["config"] * (not command.startswith("simulate")) + shlex.split(command)
    if all("=" in word[1:] for word in words):
        try:
            made(program, words)
        except ConfigError as error:
            return "" if "Could not find" in str(error) else str(error)  # an option of one's own
    return ""


def made(program: str, words: list[str]):
    config = read_config(compose_config(*words, name=program))
    return make_pricing_job(config) if program == "simulate" else make_job(config)


@pytest.mark.parametrize(("command", "words"), ROWS, ids=[command for command, _ in ROWS])
def test_a_wrong_command_is_refused_and_what_is_wrong_is_named(folder, command, words, recwarn, whole, monkeypatch):
    before = files(folder)
    monkeypatch.chdir(folder)
    is_typed = whole or ROWS.index([command, words]) % 20 == 0
    if is_typed or not (said := refused(command)):
        done = type_in(folder, command, *([] if "-cd" in command else ["-cd", "."]))
        assert (done.returncode, done.stdout) == (2, ""), done
        assert [line for line in done.stderr.splitlines() if not line.startswith(("error: ", "  "))] == []
        said = done.stderr
    assert [str(each.message) for each in recwarn if each.category is UserWarning] == []  # of another library
    assert [word for word in words.split() if word not in said] == [], said
    assert files(folder) == before


OPTIONS = (
    "",
    "schedule=1f1b model=gpt checkpointing=segments",
    "schedule=interleaved partition=skewed replicas=2 sync=torch_ddp",
    "schedule=zb_v device=emulated checkpointing=except_last",
    "schedule=zb_h1 device=emulated replicas=2 sync=ddp partition=sizes",
    "schedule=breadth_first engine=torch data=synthetic",
    "schedule=v_min comms=threads engine=compare",
    "simulate schedule=zb_interleaved device=emulated",
    "simulate schedule=eager_1f1b costs.forward=1 costs.backward=2 checkpointing=always",
)
NUMBERS = ("ranks", "chunks", "replicas", "batch_size", "steps", "warmup_steps", "model.layers", "seed", "repeat")
ODD = ["", "null", "nan", "-inf", "1e30", "-1", "0.5", "true", "abc", "[]", "[1,2]", "{a: 1}", "'a b'", "../x", "1e400"]
STRANGE = st.sampled_from([*ODD, "9" * 5000, "x" * 2000]) | st.text(st.characters(codec="utf-8"), max_size=8)
SMALL, KEYS = st.tuples(st.sampled_from(NUMBERS), st.integers(-1, 9).map(str)), st.sampled_from(all_keys())
WORDS = st.lists(SMALL | st.tuples(KEYS, STRANGE), max_size=4).map(lambda pairs: ["=".join(pair) for pair in pairs])
QUICK = 20_000  # ranks times chunks that are simulated


@settings(max_examples=20, deadline=None, suppress_health_check=list(HealthCheck), derandomize=True)
@given(st.sampled_from(OPTIONS), WORDS)
def test_a_random_configuration_is_refused_or_made_into_a_job(options, words):
    program, *options = options.split() if options.startswith("simulate") else ["config", *options.split()]
    try:
        job = made(program, [*options, *words])
    except ConfigError:
        return
    schedule = job.schedule
    if len(schedule.ranks) * schedule.chunks <= QUICK:
        costs = job.costs if hasattr(job, "costs") else nominal_costs(job.device, job.workload)
        assert all(isfinite(span.end) for span in simulate(schedule, costs))
