"""`--help` and `hydra.verbose`: every key is explained, from the one place where it is defined."""

import os
import re
import subprocess
import sys

import pytest
from user import ROOT, SMALL, environment_of, microp, ran

from microp.config.schema import GROUPS, is_fixed
from microp.labs import LABS
from microp.system import about_sweep, sweep_names

TOP = re.findall(r"^(\w+):", (ROOT / "conf" / "base.yaml").read_text(), re.M)
KEYS = {key for key in TOP if key != "defaults"} | {
    f"{path.parent.name}.{key}"
    for path in (ROOT / "conf").glob("*/*.yaml")
    for key in re.findall(r"^(\w+):", path.read_text(), re.M)
    if key != "defaults" and path.parent.name in GROUPS and not is_fixed(path.parent.name, key)
}


PAGES = {  # command -> keys that others do not have, which come first
    "run": [],
    "plan": ["memory_gib", "chunks", "schedule.stages_per_rank"],
    "profile": ["seconds"],
    "simulate": ["output", "costs.forward"],
    "order": ["output", "search.file", "costs.latency"],
}
NOMINAL = [f"device.{key}" for key in ("forward_ms", "per", "tflops", "link_gb_per_s", "speed")]  # none is measured
TRAINING = [f"optimizer.{key}" for key in ("decay", "warmup_steps", "betas", "weight_decay")]
NOT_ON = {  # command -> keys that do not count for it; a plan searches some of them
    "plan": [
        *("steps", "tracking.project", "data.path", "seed", "partition.share", "compile", "device.speed"),
        *("comms.timeout_s", "sync.bucket_mb", "sync.all_reduce", *TRAINING),
    ],
    "profile": [
        *("steps", "ranks", "schedule.drain", "checkpointing.segments", "sync.bucket_mb", "device.memory_gib"),
        *(*NOMINAL, *TRAINING),
    ],
    "order": [
        *("steps", "engine.batch_weights", "snapshot.every", "sync.bucket_mb", "replicas", "comms"),
        *("costs.reduction", "device.reduce_ms", "device.optimizer_ms", "device.memory_gib", *TRAINING),
    ],
}


@pytest.mark.parametrize("program", PAGES)
def test_the_page_fits_its_width_and_explains_every_key(program, tmp_path):
    done = ran("--help", folder=tmp_path, program=f"microp.{program}", COLUMNS="80")
    assert max(map(len, done.stdout.splitlines())) < 80
    groups = ("model",) if program == "profile" else ("model", "device")
    counting = KEYS if program not in NOT_ON else {key for key in KEYS if key.split(".")[0] in groups}
    counting -= {*NOT_ON.get(program, ())}
    places = [re.search(rf"^ *{re.escape(key)}=.*\n? +\w", done.stdout, re.M) for key in (*PAGES[program], *counting)]
    assert all(places)
    starts = [place.start() for place in places[: len(PAGES[program]) + 1] if place]
    assert starts == sorted(starts)
    for key in NOT_ON.get(program, []):
        assert not re.search(rf"^ *{re.escape(key)}=", done.stdout, re.M), key
    for name in sweep_names() if program == "run" else ():
        assert re.search(rf"^{name}\b", done.stdout, re.M), name
    if program not in ("plan", "profile"):
        assert "checkpointing.segments=2\n" in done.stdout  # the other options do not use it


def test_a_reader_that_has_seen_enough_ends_it_silently(tmp_path):
    """As `microp --help | head -1` does; the page is longer than a pipe holds back."""
    there, here = os.pipe()
    os.close(there)
    command, own = [sys.executable, "-m", "microp.run", "--help"], environment_of(tmp_path, {})
    done = subprocess.run(command, env=own, cwd=tmp_path, stdout=here, stderr=subprocess.PIPE, text=True)
    os.close(here)
    assert (done.returncode, done.stderr) == (0, "")


def test_the_readme_s_table_of_sweeps_is_what_their_files_say():
    rows = re.findall(
        r"^\| `(\w+)` \| ([^|]+) \| (\d+) \((?:quick: )?(\d+)\) \| (\S+) \((\S+)\) \|$",
        (ROOT / "sweeps" / "README.md").read_text(),
        re.M,
    )
    assert {row[0] for row in rows} == {name for name in sweep_names() if not name.endswith("_quick")} - {"first"}
    for name, question, points, quick_points, minutes, quick_minutes in rows:
        for each, number, time in ((name, points, minutes), (f"{name}_quick", quick_points, quick_minutes)):
            size = about_sweep(each)[1]
            assert size in (f"{number} points, {time} {unit} on two cores" for unit in ("minute", "minutes"))
        assert about_sweep(name)[0] == question


COMMANDS = ("check", "dashboard", "labs", "import_trace", "runs", "tracking", *(f"labs.{name}" for name in LABS))
COMMANDS = (*(f"microp.{name}" for name in COMMANDS), "analysis", "analysis.sweep", "analysis.timeline")


@pytest.mark.parametrize("program", COMMANDS)
def test_help_fits_80_columns_and_a_wrong_option_is_one_line(program, tmp_path):
    done = ran("--help", folder=tmp_path, program=program, COLUMNS="80")
    assert done.stdout.startswith(f"usage: python -m {program}")
    assert 40 < max(map(len, done.stdout.splitlines())) <= 80
    done = microp("--nonsense", folder=tmp_path, program=program)
    assert (done.returncode, done.stderr.count("\n"), done.stderr[:7], done.stdout) == (2, 1, "error: ", "")


def test_verbose_logs_the_steps_of_microp_and_of_hydra(tmp_path):
    words = [*SMALL, "chunks=2", "comms=threads", "tracking=disabled"]
    quiet, loud = (microp(*words, f"hydra.verbose={value}", folder=tmp_path).stderr for value in ("false", "true"))
    for text in ("microp.points.hydra_app  1 point is composed", "2 ranks start", "the ranks have ended", "ms  hydra"):
        assert (text in quiet, text in loud) == (False, True)
