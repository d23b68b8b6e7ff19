"""The course: every lab runs, and what it teaches is so."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from user import torchrun

from microp.labs import (
    LABS,
    ddp,
    gpipe,
    manual_replicas,
    manual_split,
    memory_wall,
    monolith,
    naive,
    one_f_one_b,
    train_text,
)
from microp.labs import __main__ as command

FOLDER = Path(__file__).parents[2] / "microp" / "labs"


def test_the_readme_lists_them_in_order():
    text = (FOLDER / "README.md").read_text()
    assert re.findall(r"-m microp\.labs\.(\w+)`", text) == list(LABS)
    assert all((FOLDER / f"{name}.py").exists() for name in LABS)


def test_the_list(capsys):
    assert command.main([]) == 0
    assert re.findall(r"^ ?\d+  (\w+)", capsys.readouterr().out, re.MULTILINE) == list(LABS)


def test_a_lab_by_its_number_with_words(capsys):
    command.main(["1", "batch_size=32", "model.layers=3"])
    assert capsys.readouterr().out.startswith("3 layers, ")


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["77"], "77 is not a lab: use 1 to 10 or monolith, "),
        (["gpipe", "chunks=0"], "chunks=0 is below 1: use at least 1"),
        (["3", "ranks=2"], "ranks=2: this lab is about ranks=1, so leave ranks out"),
        (["gpipe", "schedule=1f1b"], "schedule=1f1b: this lab is about schedule=gpipe, so leave schedule out"),
    ],
)
def test_words_that_a_lab_cannot_take(words, sentence, capsys):
    with pytest.raises(SystemExit) as end:
        command.main(words)
    assert end.value.code == 2
    assert capsys.readouterr().err.startswith(f"error: {sentence}")


@pytest.mark.parametrize("lab", LABS)
def test_every_lab_has_help(lab, capsys):
    with pytest.raises(SystemExit) as end:
        command.main([lab, "--help"])
    assert end.value.code == 0
    assert f"usage: python -m microp.labs.{lab}" in capsys.readouterr().out


def test_monolith(capsys):
    monolith.main([])
    losses = [float(loss) for loss in re.findall(r"loss (\d\.\d+)", capsys.readouterr().out)]
    assert len(losses) > 5
    assert losses[-1] < losses[0] - 1


def test_memory_wall(capsys):
    memory_wall.main([])
    text = capsys.readouterr().out
    assert "   40.00 GB  parameters" in text
    assert "   80.00 GB  Adam's two moments" in text
    assert "The parameters alone are 40 GB: they do not fit on a card of 24 GB." in text
    memory_wall.main(["--parameters", "1e9"])
    assert "they fit on a card of 24 GB" in capsys.readouterr().out


def test_manual_split(capsys):
    manual_split.main([])
    text = capsys.readouterr().out
    assert text.index("gradients: False") < text.index("gradients: True", text.index("gradients: False"))
    assert "32 of 32 gradients equal the monolith's bit for bit" in text


def test_manual_replicas(capsys):
    manual_replicas.main([])
    alone, average = map(float, re.findall(r"(\d\.\de-\d+)", capsys.readouterr().out))
    assert average < 1e-12 < 1e-4 < alone


def test_ping_pong_by_torchrun(tmp_path):
    done = torchrun(2, folder=tmp_path, program="microp.labs.ping_pong")
    assert done.returncode == 0, done.stderr
    assert "world of 2: rank 0 is process" in done.stdout
    assert ", between None and 1; rank 1 is process" in done.stdout
    assert "the mean of their numbers, 0.5" in done.stdout
    rows = [list(map(float, line.split())) for line in done.stdout.splitlines() if re.fullmatch(r"[\d. ]+", line)]
    assert [row[0] for row in rows] == [4**power for power in range(8)]
    assert all(row[1] > 0 < row[3] for row in rows)  # times; a rate in whole MiB/s is 0 where a core is not free
    assert all(row[4] >= 0 for row in rows)


def test_three_pipelines(capsys):
    found = {lab.__name__.rsplit(".")[-1]: lab.main([]) for lab in (naive, gpipe, one_f_one_b)}
    working = {name: sum(each["utilisation"]) for name, each in found.items()}  # ranks at a time; 1, 16/7, 16/7
    assert 0.5 < working["naive"] <= 1.1  # never two at once, but for what a busy machine adds
    assert working["naive"] < min(working["gpipe"], working["one_f_one_b"]) <= 4
    assert found["naive"]["in_flight"] == [1, 1, 1, 1]
    assert found["gpipe"]["in_flight"] == [4, 4, 4, 4]
    assert found["one_f_one_b"]["in_flight"] == [4, 3, 2, 1]
    assert "The times are set, not measured: on every rank F lasts 5 ms and B 10 ms." in capsys.readouterr().out


def test_hooks_fire_from_the_last_layer_to_the_first(capsys):
    labels = ddp.main([])
    layers = [int(label.split()[1]) for label in labels]
    assert layers == sorted(layers, reverse=True)
    assert len(labels) == 32
    text = capsys.readouterr().out
    assert re.search(r"^time +└0 +\d+\.\d ms┘$", text, re.MULTILINE)
    assert re.search(r"So \d+% of their time was hidden\. (That is good|At best)", text)
    early, every = map(int, re.search(r"(\d+) of (\d+) sums started before", text).groups())
    assert 0 < early <= every


def test_a_gpt_learns_in_the_pipeline_as_in_one_process(tmp_path, capsys):
    assert train_text.main(["--steps", "12", "--folder", str(tmp_path)]) == 0
    text = capsys.readouterr().out
    assert "12 of 12 losses are the same bit for bit" in text
    rows = [line.split(",") for line in (tmp_path / "loss.csv").read_text().splitlines()[1:]]
    assert [row[1] for row in rows] == [row[2] for row in rows]
    assert float(rows[-1][1]) < float(rows[0][1]) - 1
    before, after = re.split("before training:\n|after training:\n", (tmp_path / "sample.txt").read_text())[1:]
    assert before.count("\\x") > 1.5 * after.count("\\x")  # most bytes of an untrained model are no text
    assert (tmp_path / "loss.svg").stat().st_size < (tmp_path / "loss.png").stat().st_size > 5000
    with pytest.raises(SystemExit) as end:
        train_text.main(["--steps", "0"])
    assert end.value.code == 2
