"""What all tests share."""

from __future__ import annotations

import fcntl
import gc
import importlib
import os
import shutil
import signal
import sys
from dataclasses import replace
from multiprocessing import resource_tracker
from pathlib import Path

import browser
import matplotlib
import pytest
import torch
from recorded import small_sweep
from user import warm
from warm import forks_instead_of_interpreters, make_forks_cheap

from microp.job import Job
from microp.schedule import uniform
from microp.schedule.builders import gpipe
from microp.settings import (
    Checkpointing,
    DeviceSettings,
    EngineSettings,
    GptSettings,
    MlpSettings,
    SyncSettings,
    TextSettings,
)

CHECKPOINTING = {
    "never": Checkpointing("never", 0, False),
    "except_last": Checkpointing("except_last", 1, True),
    "always": Checkpointing("always", 1, False),
    "segments": Checkpointing("segments", 2, False),
}


def mlp(dtype: str = "float32") -> MlpSettings:
    return MlpSettings("mlp", 6, 32, dtype)


def gpt(dtype: str = "float32", dropout: float = 0.1) -> GptSettings:
    return GptSettings("gpt", 5, 16, dtype, heads=2, context=8, dropout=dropout)


def small_job(**changes) -> Job:
    """A small job: 9 rows, so that most chunk counts do not divide them."""
    schedule, model = changes.pop("schedule", gpipe(2, 4)), changes.pop("model", mlp())
    job = Job(
        run_id="test",
        schedule=schedule,
        partition=changes.pop("partition", uniform(model.layers, schedule.stages)),
        model=model,
        checkpointing=CHECKPOINTING["never"],
        data=TextSettings("text", str(Path(torch.__file__).parent / "serialization.py")),
        device=DeviceSettings("cpu", 1),
        backend="shm",
        timeout_s=20,
        batch_size=9,
        steps=3,
        warmup_steps=1,
        learning_rate=1e-2,
        seed=7,
        engine=EngineSettings("microp", False),
        sync=SyncSettings("flat", "library"),
    )
    return replace(job, **changes)


# What a shell's background and nohup ignore, tests and what they start do not.
signal.signal(signal.SIGINT, signal.default_int_handler)
for number in (signal.SIGHUP, signal.SIGQUIT):
    signal.signal(number, signal.SIG_DFL)
for name in [name for name in os.environ if name.startswith("WANDB_")]:
    del os.environ[name]  # they are options of microp
sys.dont_write_bytecode = False  # hundreds of commands import the same modules
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
for name in ("COLUMNS", "NO_COLOR", "FORCE_COLOR", "CLICOLOR_FORCE", "TTY_COMPATIBLE"):
    os.environ.pop(name, None)  # what is printed has the width and the colours of a pipe


LONGEST = (  # below tests/, the longest first
    *("worker/test_faults", "engine/test_equality", "replicas/test_replicas", "app/test_pricing", "app/test_refusals"),
    *("slurm/test_cluster", "app/test_run", "worker/test_hosts", "worker/test_launch", "app/test_bad_input"),
    *("analysis/test_readable", "app/test_sweeps", "engine/test_compiled", "analysis/test_partial_sweeps"),
    *("app/test_interface", "simulator/test_calibration", "app/test_knobs", "schedule/test_validation"),
    *("trace/test_figure_boxes", "app/test_wandb_grid", "analysis/test_own_schedule", "app/test_memory_advice"),
    *("app/test_resume", "app/test_wheel", "app/test_help", "app/test_snapshots", "analysis/test_report"),
    *("app/test_slurm_sweep", "test_floors", "worker/test_snapshot", "labs/test_labs", "store/test_wandb_mirror"),
    *("commands/test_null_stages", "engine/test_bf16", "test_readme", "store/test_versions"),
)


def pytest_addoption(parser):
    parser.addoption("--whole", action="store_true", help="run all combinations of a grid, as the soak test does")


@pytest.fixture(scope="session")
def whole(request):
    """Whether all combinations are wanted, as in the soak test, where models, modes or schedules else take turns."""
    return request.config.option.whole


def pytest_configure(config):
    """Of several processes that run tests, the one that starts them makes a warm process for all."""
    if getattr(config.option, "numprocesses", None) and not hasattr(config, "workerinput"):
        warm.share()


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(collector):
    """Of several processes that run tests, let each begin to collect at another folder.

    In a new checkout, half of the time goes into rewriting assertions. What one process has rewritten, the others read.
    """
    report = yield
    own = getattr(collector.config, "workerinput", None)
    if own and collector.path == Path(__file__).parent:
        first = len(report.result) * int(own["workerid"].removeprefix("gw")) // own["workercount"]
        report.result = report.result[first:] + report.result[:first]
    return report


def pytest_collection_modifyitems(items):
    """Begin with the longest files, so that all processes, of which each runs whole files, end at the same time."""
    folder = Path(__file__).parent
    names = {str(item.path.relative_to(folder).with_suffix("")) for item in items}
    order = {name: number for number, name in enumerate(dict.fromkeys((*LONGEST, *sorted(names, reverse=True))))}
    items.sort(key=lambda item: order[str(item.path.relative_to(folder).with_suffix(""))])


def pytest_collection_finish():
    """Prepare for ranks, once all is imported and before torch is used.

    Ranks that are threads collect garbage before their first step: what was imported need not be scanned then. The
    server from which other ranks are forked is a fork itself; the tests of the server start interpreters.
    """
    has_ranks = sys.platform == "linux" and "microp.worker" in sys.modules
    if has_ranks:
        importlib.import_module("torch._dynamo")  # the optimizer needs it, here and in ranks
        importlib.import_module("microp.worker.library")  # the text on which most ranks train
        with torch.autograd.profiler.record_function("the first step imports what this does"):
            pass
    gc.collect()
    gc.freeze()
    if has_ranks:
        resource_tracker.ensure_running()
        make_forks_cheap()
        with forks_instead_of_interpreters():
            importlib.import_module("microp.worker.forkserver").start_forkserver(1)


@pytest.fixture(scope="session", autouse=True)
def _own_cache(tmp_path_factory):
    """What commands keep in the user's cache folder is this session's; matplotlib's fonts stay where they are."""
    os.environ["MPLCONFIGDIR"] = matplotlib.get_cachedir()
    os.environ["XDG_CACHE_HOME"] = str(tmp_path_factory.mktemp("cache"))


@pytest.fixture(scope="module", autouse=True)
def _no_garbage_of_others():
    """What earlier files have left is not scanned by each of the ranks that are threads, before their first step."""
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True)
def _same_every_time():
    """Sums in the order in which ranks sum, and the same random numbers in every run of the tests."""
    torch.manual_seed(0)
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="session")
def outputs(tmp_path_factory):
    """The folder that a small sweep of two schedules left; only reports may be added to it.

    Of the processes that run tests, the first one that needs the sweep runs it; each has a copy of its own.
    """
    own, base = tmp_path_factory.mktemp("sweep"), tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" not in os.environ:
        return small_sweep(own)
    shared = base.parent / "small_sweep"
    with (base.parent / "small_sweep.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (shared / "made").exists():
            shutil.rmtree(shared, ignore_errors=True)  # of a process that failed
            shared.mkdir()
            small_sweep(shared)
            (shared / "made").touch()
    return Path(shutil.copytree(shared / "outputs", own / "outputs"))


def pytest_unconfigure(config):
    """Say in the last lines that the browser's tests were skipped, and what they need."""
    reporter = config.pluginmanager.get_plugin("terminalreporter")
    skipped = [str(report.longrepr[2]) for report in reporter.stats.get("skipped", ())] if reporter else []
    for reason in (browser.NO_PLAYWRIGHT, browser.NO_CHROMIUM):
        number = sum(reason in each for each in skipped)
        if number:
            reporter.write_line(f"{number} tests of the report's page in a browser were skipped: {reason}")
