"""The memory of layers is measured once and kept; a run that needs more than its ranks have is refused with advice."""

import re
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from configs import config, problems
from conftest import gpt, mlp
from own_model import mixed, settings_of
from user import ran, start

from microp import device
from microp.config import job_of, prediction
from microp.device import probe_layers
from microp.settings import AS_WRITTEN, NEVER, Computing
from microp.simulator import stage_bytes

QUESTION = 5.0, True, AS_WRITTEN  # rows, whether the backward is divided, and how layers compute
layer_memory = prediction.layer_memory


@pytest.fixture
def probed(monkeypatch, tmp_path):
    """The models that were measured in this test, which begins with an empty cache folder."""
    models = []

    def probing(model, *rest):
        models.append(model)
        return probe_layers(model, *rest)

    monkeypatch.setattr(device, "probe_layers", probing)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    prediction._known.clear()
    yield models
    prediction._known.clear()


def kept(folder: Path) -> list[Path]:
    return sorted(folder.glob("cache/microp/layer-memory/*.json"))


@pytest.mark.parametrize("model", [mlp(), gpt()])
def test_a_later_command_finds_what_was_measured_unless_it_is_damaged(model, probed, monkeypatch, tmp_path):
    measured = layer_memory(model, *QUESTION)
    [path] = kept(tmp_path)
    for whole in (path.read_text(), path.read_text()[:-20]):
        path.write_text(whole)
        for _ in range(2):
            prediction._known.clear()
            assert layer_memory(model, *QUESTION) == measured == tuple(probe_layers(model, *QUESTION))
    assert len(probed) == 2
    for rows, split, computing in ((6.0, True, AS_WRITTEN), (5.0, False, AS_WRITTEN), (5.0, True, Computing("bf16"))):
        layer_memory(model, rows, split, computing)
    monkeypatch.setattr(prediction, "_code", lambda: "other code")
    prediction._known.clear()
    layer_memory(model, *QUESTION)
    assert (len(probed), len(kept(tmp_path))) == (6, 5)


def test_a_users_own_model_and_a_folder_that_cannot_be_written(probed, monkeypatch, tmp_path):
    layer_memory(settings_of(mixed), *QUESTION)
    assert kept(tmp_path) == []
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    assert len(layer_memory(mlp(), *QUESTION)) == mlp().layers
    assert len(probed) == 2


def test_a_price_needs_no_torch_once_the_memory_is_known(probed, tmp_path):
    words, cache = ["model.dim=64", "model.layers=4", "batch_size=20", "output=json"], str(tmp_path / "cache")
    first = ran(*words, folder=tmp_path, program="microp.simulate", XDG_CACHE_HOME=cache)
    code = (
        "import contextlib, sys; from microp.simulate import main\n"
        "with contextlib.suppress(SystemExit): main()\n"
        "assert not {'torch', 'pandas'} & set(sys.modules), 'loaded'"
    )
    second = start([sys.executable, "-c", code, *words], tmp_path, XDG_CACHE_HOME=cache)
    assert (second.returncode, second.stdout, second.stderr) == (0, first.stdout, "")
    assert len(probed) == 1


@pytest.mark.parametrize("rows", [1, 4 / 3, 11.5])
@pytest.mark.parametrize("model", [mlp(), replace(mlp(), dim=8), gpt()], ids=str)
def test_no_size_is_negative_at_the_rows_asked_for(model, rows):
    """Which small products are held depends on the rows, so that two measurements do not lie on one line."""
    layers = probe_layers(model, rows, True)
    assert min(min(layer.at(rows)) for layer in layers) >= 0
    assert all(stage_bytes([layer], rows, NEVER).in_weight >= 0 for layer in layers)


def test_a_rank_that_needs_more_than_it_has_is_refused_with_what_would_fit():
    """Each change that it names is taken, and fits."""
    words = ["device.memory_gib=0.036", "ranks=4", "chunks=8", "batch_size=4096", "model.dim=512"]
    [problem] = problems(config(*words))
    assert re.match(r"rank [03] needs [\d.]+ MiB \(.*activations [\d.]+ MiB \([78] in flight x [\d.]+ MiB\)", problem)
    word, least = re.search(r"more than device.memory_gib=0.036: use (\S+) \(([\d.]+) MiB, step", problem).groups()
    assert float(least) / 1024 <= 0.036
    assert problems(config(*words, word)) == []
    skewed = ["partition=skewed", "partition.share=0.5", "device.memory_gib=0.08"]
    [problem] = problems(config(*words, *skewed))
    change = r"(\S+=[^()]+?)( in place of partition=skewed and its keys)? \([\d.]+ MiB"
    changes = re.findall(change, problem.partition("use ")[2])
    assert any(replaced for _, replaced in changes)
    for change, replaced in changes:
        assert problems(config(*words, *skewed[2 * bool(replaced) :], *change.removeprefix("or ").split())) == []
    lists = ["device=emulated", "device.forward_ms=[1,2,3,4]", "ranks=4", "device.memory_gib=0.0008", "model.dim=256"]
    [problem] = problems(config(*lists))  # also where orders have other numbers of stages
    assert problem.startswith("rank 0 needs ")
    assert problem.endswith("use a smaller model")  # a plan has no times for them
    assert job_of("device.memory_gib=1").run_id == job_of().run_id
    [problem] = problems(config("partition=balanced", "device.memory_gib=0.001"))  # where no partition fits, too
    assert "use a smaller model or several changes together: " in problem  # a layer alone is too large
    words = ["device.memory_gib=0.015", "model.dim=512", "batch_size=2048"]  # here they are
    [problem] = problems(config(*words))
    assert problems(config(*words, re.search(r"use (ranks=\d+) \([\d.]+ MiB\) or a smaller", problem)[1])) == []
    command = problem.partition("several changes together: python -m microp.plan ")[2].split()
    assert command == ["ranks=2", "memory_gib=0.015", "model.dim=512", "batch_size=2048"]


def test_the_same_sizes_are_the_same_question():
    """However they were found."""
    chosen = job_of("partition=balanced", "device=emulated", "device.per=[layer]", "device.speed=[1,0.5]")
    assert chosen.partition.sizes == (11, 5)
    typed = ["partition=sizes", "partition.sizes=[11,5]", "device=emulated", "device.per=[layer]"]
    assert chosen.run_id == job_of(*typed, "device.speed=[1,0.5]").run_id
    assert chosen.run_id != job_of(*typed).run_id
