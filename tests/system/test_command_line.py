"""How a command ends, and what it prints; where microp's files are, its version, and what `-cn` finds."""

import os
import shlex
import subprocess
import sys

import pytest
from hydra.core.override_parser.overrides_parser import OverridesParser
from user import ROOT, SMALL, microp, ran, start

import microp as package
from microp.system import override

CODE = """
import sys
from microp.system import run_command
def command():
    for number in range(3):
        print("line", number, "x" * 100_000)
        print("note", number, file=sys.stderr, flush=True)
    open("done", "w").close()
    ENDS
run_command(command)
"""
NOTES = ["note 0", "note 1", "note 2"]


KILL = "import os, signal; os.kill(os.getpid(), signal."


@pytest.mark.parametrize(
    ("ends", "code"),
    [("return 3", 3), ("raise KeyboardInterrupt", 130), (f"{KILL}SIGTERM)", 130), (f"{KILL}SIGHUP)", 130)],
)
def test_the_exit_code_of_a_command(ends, code, tmp_path):
    done = start([sys.executable, "-c", CODE.replace("ENDS", ends)], tmp_path)
    assert (done.returncode, done.stderr.splitlines(), len(done.stdout.splitlines())) == (code, NOTES, 3)


def test_a_character_that_the_terminal_lacks_is_a_question_mark():
    code = "from microp.system import run_command; run_command(lambda: print('1 \u2192 2'))"
    latin = {**os.environ, "PYTHONIOENCODING": "latin-1"}
    assert subprocess.run([sys.executable, "-c", code], env=latin, stdout=subprocess.PIPE).stdout == b"1 ? 2\n"


def test_every_command_is_run_so():
    files = [path for folder in ("microp", "analysis") for path in (ROOT / folder).rglob("*.py")]
    mains = {path: text for path in files if '\nif __name__ == "__main__":\n' in (text := path.read_text())}
    assert len(mains) > 20
    runs = ("run_command(", "    run(__file__)")  # the latter is `analysis.command.run`, which calls the former
    without = [path for path, text in mains.items() if not any(word in text for word in runs)]
    assert without == []


TEXTS = ["outputs", "a b", "it's", "a,b", "a=b (1)", "${x}", "back\\", "back\\'s", "\\\\'", "é", "[a]", "{a: b}", '"q"']


def test_a_value_comes_back_through_the_shell_and_hydra():
    for value in (*TEXTS, "~/x", " a", "1.5", True, None, 3):
        [word] = shlex.split(shlex.join([override("key", value)]))
        parsed = OverridesParser.create().parse_override(word)
        assert (parsed.is_sweep_override(), str(parsed.value())) == (False, str(value))


def test_the_printed_commands_run_as_printed(tmp_path):
    output = "it's, ours (1)"
    words = [*SMALL, "chunks=2", "comms=threads", override("output_dir", output)]
    done = ran("-m", "seed=1,2", *words, folder=tmp_path, WANDB_MODE="offline")
    profiled = " ".join(done.stderr.split("\n")).partition("predicted: ")[2].partition(" makes one")[0]
    command = shlex.split(profiled)
    assert override("output_dir", output) in command
    printed = dict(
        line.split(maxsplit=1) for line in done.stdout.splitlines() if line[:5] in ("look ", "sync ", "draw ")
    )
    assert set(printed) == {"look", "sync", "draw"}
    for what, line in printed.items():
        seen = start(["sh", "-c", f'for word in {line}; do echo "$word"; done'], tmp_path).stdout.splitlines()
        folder = tmp_path / seen[-1]
        assert folder.exists(), (what, line)
    order = ["ranks=2", "chunks=2", "search.seconds=1", "costs.forward=1", "costs.backward=2"]
    made = microp(*order, override("search.file", "my order, 1.txt"), folder=tmp_path, program="microp.order")
    [run] = [line for line in made.stdout.splitlines() if line.startswith("price ")]
    _, _, _, program, *words = shlex.split(run)  # with costs given by hand it can only be priced
    ran(*words, folder=tmp_path, program=program)


ANSWER = "from microp import run\ntry: run.main()\nexcept SystemExit as end: import sys; print(end.code, *sys.modules)"


def test_version_is_told_without_torch(tmp_path):
    done = subprocess.run([sys.executable, "-c", ANSWER, "--version"], cwd=ROOT, capture_output=True, text=True)
    line, end = done.stdout.splitlines()
    assert line.startswith(f"microp {package.__version__} (torch 2.")
    assert end.startswith("0 ")
    assert "torch" not in end.split()
    priced = microp("--version", folder=tmp_path, program="microp.simulate")
    assert (priced.returncode, priced.stdout) == (0, f"{line}\n")


def test_tab_completes_and_loads_no_torch():
    typed = {**os.environ, "COMP_LINE": "microp partition=bal"}
    code = "import atexit, sys; atexit.register(lambda: print(*sys.modules)); from microp import run; run.main()"
    words = [sys.executable, "-c", code, "-sc", "query=bash"]
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, env=typed)
    assert "balanced" in done.stdout, done.stderr
    assert "torch" not in done.stdout.splitlines()[-1].split()


def test_a_sweep_of_one_s_own_may_stand_on_a_stored_one(tmp_path):
    (tmp_path / "first.yaml").write_text("defaults: [hop_latency_quick, _self_]\nsteps: 77\n")
    done = ran("-cd", ".", "-cn", "first", "-c", "job", folder=tmp_path)
    assert "steps: 77\n" in done.stdout
    assert "name: emulated\n" in done.stdout
