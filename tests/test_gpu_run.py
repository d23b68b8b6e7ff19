"""`make gpu` without a GPU: every part but the card itself."""

import json

import pytest
import torch

from tests import gpu_run
from tests.gpu_run import Card

SMALL_CARD = {"large": (*gpu_run.SMALL, "model.dim=32"), "schedules": ("zb_v",), "models": (("mlp", ()),)}
ELSEWHERE = ("compile", "profile", "4 ranks share a card")  # with tests of their own, or as for two ranks
ELSEWHERE += ("replicas share a card", "NCCL: losses", "NCCL: gradients: zb_v")  # the same on CPUs as other parts


@pytest.mark.parametrize("gpus", [1, 2])
def test_every_part_passes_with_the_cpu_in_the_card_s_place(gpus, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(gpu_run, "PART_S", 1000)  # a busy machine may take long
    monkeypatch.setattr(gpu_run, "LAST_START_S", 1000)
    card = Card("cpu", gpus, tmp_path, **SMALL_CARD)
    parts = {name: part for name, part in gpu_run.parts_of(card).items() if name not in ELSEWHERE}
    if gpus == 2:
        parts = {name: part for name, part in parts.items() if part[0] == 2}
    assert gpu_run.try_all(card, parts) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == len(parts) + 3
    [file] = tmp_path.glob("*.json")
    found = {part["part"]: part for part in json.loads(file.read_text())["parts"]}
    assert list(found) == list(parts)
    assert {name: part["passed"] for name, part in found.items()} == {
        name: True if needed <= gpus else None for name, (needed, _) in parts.items()
    }
    assert all(part["figures"] for part in found.values() if part["passed"])


def test_no_part_begins_too_late_and_without_a_gpu_it_says_so(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(gpu_run, "LAST_START_S", -1)
    assert gpu_run.try_all(Card("cpu", 1, tmp_path), {"late": (1, lambda _: exit(3))}) == 0
    assert "no part begins after -1 s" in capsys.readouterr().out
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert gpu_run.main() == 0
    assert capsys.readouterr().out == "torch sees no GPU here, so there was nothing to try\n"
