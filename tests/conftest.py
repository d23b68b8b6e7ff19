"""What all tests share."""

import fcntl
import gc
import os
import shutil
import signal
from pathlib import Path

import matplotlib
import pytest
import torch

from microp import settings
from microp.job import Job
from microp.schedule import uniform
from microp.schedule.builders import gpipe
from microp.settings import Checkpointing, DeviceSettings, EngineSettings, GptSettings, MlpSettings, SyncSettings

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


def small_job(mode: str = "never", cut=uniform, **changes) -> Job:
    """A small job, by a mode of checkpointing and a cut: 9 rows, so that most chunk counts do not divide them."""
    given = {"schedule": gpipe(2, 4), "model": mlp(), **changes}
    partition = given.pop("partition", None) or cut(given["model"].layers, given["schedule"].depth)
    text = settings.TextSettings("text", str(Path(torch.__file__).parent / "serialization.py"))
    small = {"run_id": "test", "checkpointing": CHECKPOINTING[mode], "data": text, "device": DeviceSettings("cpu", 1)}
    small |= {"backend": "shm", "timeout_s": 20, "batch_size": 9, "steps": 3, "warmup_steps": 1, "learning_rate": 1e-2}
    small |= {"engine": EngineSettings("microp", False), "sync": SyncSettings("flat", "library"), "seed": 7}
    return Job(**{**small, "partition": partition, **given})


# What a shell's background and nohup ignore, tests and what they start do not.
signal.signal(signal.SIGINT, signal.default_int_handler)
for number in (signal.SIGHUP, signal.SIGQUIT):
    signal.signal(number, signal.SIG_DFL)
for name in [name for name in os.environ if name.startswith("WANDB_")]:
    del os.environ[name]  # they are options of microp
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)  # interpreters that tests start import the same modules
for name in ("COLUMNS", "NO_COLOR", "FORCE_COLOR", "CLICOLOR_FORCE", "TTY_COMPATIBLE"):
    os.environ.pop(name, None)  # what is printed has the width and the colours of a pipe


def pytest_addoption(parser):
    parser.addoption("--whole", action="store_true", help="run all combinations of a grid, as the soak test does")
    parser.addoption("--times", type=int, default=0, help="run the soak test, with each fault as often")


def pytest_ignore_collect(collection_path, config):
    """Leave the soak test out, which takes hours, unless `--times` asks for it."""
    return (collection_path.name == "test_soak.py" and not config.option.times) or None


def pytest_collection_modifyitems(items):
    """Tests of whole commands, which wait much, begin first: at the end they would run alone."""
    items.sort(key=lambda item: item.path.parent.name not in ("points", "worker"))


@pytest.fixture(scope="session")
def whole(request):
    """Whether all combinations are wanted, as in the soak test, where models, modes or schedules else take turns."""
    return request.config.option.whole


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
    from recorded import small_sweep  # and with it the consoles, whose width is that of COLUMNS now

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
