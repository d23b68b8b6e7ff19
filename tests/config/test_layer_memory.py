"""The memory of layers is measured once, kept for later commands, and measured again where it may have changed."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from conftest import gpt, mlp
from own_model import mixed, settings_of
from user import environment_of

import microp.device
from microp.config import prediction as subject
from microp.device import probe_layers
from microp.settings import AS_WRITTEN, NEVER, Computing, GptSettings
from microp.simulator import stage_bytes

QUESTION = 5.0, True, AS_WRITTEN  # rows, whether the backward is divided, and how layers compute


@pytest.fixture
def probed(monkeypatch, tmp_path):
    """The models that were measured in this test, which begins with an empty cache folder."""
    models = []

    def probing(model, *rest):
        models.append(model)
        return probe_layers(model, *rest)

    monkeypatch.setattr(microp.device, "probe_layers", probing)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    forget()
    yield models
    forget()


def forget() -> None:
    """What a new command does not know."""
    subject._known.clear()
    subject._code.cache_clear()


def kept(folder: Path) -> list[Path]:
    return sorted(folder.glob("cache/microp/layer-memory/*.json"))


@pytest.mark.parametrize("model", [mlp(), gpt()])
def test_a_later_command_finds_what_was_measured(model, probed, tmp_path):
    measured = subject.layer_memory(model, *QUESTION)
    forget()
    assert subject.layer_memory(model, *QUESTION) == measured == tuple(probe_layers(model, *QUESTION))
    assert len(measured) == model.layers
    assert len(probed) == len(kept(tmp_path)) == 1
    subject.layer_memory(model, 6.0, True, AS_WRITTEN)
    subject.layer_memory(model, 5.0, False, AS_WRITTEN)
    subject.layer_memory(model, 5.0, True, Computing("bf16"))
    assert len(probed) == len(kept(tmp_path)) == 4


def damage_text(path: Path) -> None:
    path.write_text(path.read_text()[:-20])


def lack_a_layer(path: Path) -> None:
    found = json.loads(path.read_text())
    del found["1"]
    path.write_text(json.dumps(found))


@pytest.mark.parametrize("damage", [damage_text, lack_a_layer])
def test_a_damaged_file_is_measured_again_and_replaced(damage, probed, tmp_path):
    measured = subject.layer_memory(mlp(), *QUESTION)
    [path] = kept(tmp_path)
    damage(path)
    for _ in range(2):
        forget()
        assert subject.layer_memory(mlp(), *QUESTION) == measured
    assert len(probed) == 2


def test_other_code_is_measured_again(probed, monkeypatch, tmp_path):
    subject.layer_memory(mlp(), *QUESTION)
    for name in subject.MEASURES:
        shutil.copytree(subject.PACKAGE / name, tmp_path / "microp" / name)
    monkeypatch.setattr(subject, "PACKAGE", tmp_path / "microp")
    forget()
    subject.layer_memory(mlp(), *QUESTION)
    assert len(probed) == 1
    with (tmp_path / "microp" / "device" / "meters.py").open("a") as file:
        file.write("# changed\n")
    forget()
    subject.layer_memory(mlp(), *QUESTION)
    assert len(probed) == 2


def test_a_users_own_model_and_a_folder_that_cannot_be_written(probed, monkeypatch, tmp_path):
    subject.layer_memory(settings_of(mixed), *QUESTION)
    assert kept(tmp_path) == []
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    assert len(subject.layer_memory(mlp(), *QUESTION)) == mlp().layers
    assert len(probed) == 2


def test_a_price_needs_no_torch_once_the_memory_is_known(tmp_path):
    code = (
        "import sys; from microp.simulate import main; main(); "
        "assert not {'torch', 'pandas'} & set(sys.modules), 'loaded'"
    )
    words = ["model.dim=64", "model.layers=4", "batch_size=20", "output=json"]
    environment = environment_of(tmp_path, {"XDG_CACHE_HOME": str(tmp_path / "cache")})
    done = [
        subprocess.run(
            [sys.executable, "-c", code, *words], cwd=tmp_path, env=environment, capture_output=True, text=True
        )
        for _ in range(2)
    ]
    assert "loaded" in done[0].stderr
    assert (done[1].returncode, done[1].stderr) == (0, "")
    assert done[0].stdout == done[1].stdout


@pytest.mark.parametrize("rows", [1, 4 / 3, 2, 11.5])
@pytest.mark.parametrize(
    "model",
    [mlp(), replace(mlp(), dim=8), gpt(), GptSettings("gpt", 6, 16, "float32", heads=4, context=64, dropout=0.1)],
    ids=str,
)
def test_no_size_is_negative_at_the_rows_asked_for(model, rows):
    """Which small products are held depends on the rows, so that two measurements do not lie on one line."""
    layers = probe_layers(model, rows, True)
    assert min(min(layer.at(rows)) for layer in layers) >= 0
    assert all(stage_bytes([layer], rows, NEVER).in_weight >= 0 for layer in layers)
