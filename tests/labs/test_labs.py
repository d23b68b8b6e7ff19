"""The course: every lab runs, and what it teaches is so."""

import re
from pathlib import Path

import pytest
from user import torchrun

from microp import labs
from microp.labs import __main__ as command
from microp.labs import ddp, gpipe, manual_replicas, manual_split, memory_wall, monolith, naive, one_f_one_b, train_text
from microp.terminal import out

FOLDER = Path(__file__).parents[2] / "microp" / "labs"


@pytest.fixture(autouse=True)
def narrow(monkeypatch):
    monkeypatch.setattr(out, "width", 80)


def said(capsys: pytest.CaptureFixture[str]) -> str:
    """What a lab printed, none of whose lines a terminal of 80 columns breaks."""
    text = capsys.readouterr().out
    assert max(map(len, text.splitlines())) <= 80
    return text


def test_the_readme_and_the_command_list_them_in_order(capsys):
    text = (FOLDER / "README.md").read_text()
    assert re.findall(r"-m microp\.labs\.(\w+)`", text) == list(labs.LABS)
    assert all((FOLDER / f"{name}.py").exists() for name in labs.LABS)
    assert command.main([]) == 0
    assert re.findall(r"^ ?\d+  (\w+)", capsys.readouterr().out, re.MULTILINE) == list(labs.LABS)
    command.main(["1", "batch_size=32", "model.layers=3"])  # a lab by its number with words
    assert capsys.readouterr().out.startswith("3 layers, ")


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["77"], "77 is not a lab: use 1 to 10 or monolith, "),
        (["gpipe", "chunks=0"], "chunks=0 is below 1: use at least 1"),
        (["3", "ranks=2"], "ranks=2: this lab is about ranks=1, so leave ranks out"),
        (["gpipe", "schedule=1f1b"], "schedule=1f1b: this lab is about schedule=gpipe, so leave schedule out"),
        (["gpipe", "dry_run=true"], "dry_run=true: this lab takes ranks, chunks, "),
        (["gpipe", "chunks=4,8"], "chunks=4,8: a lab runs one value, so type one of them"),
        (["2", "cards=2"], "cards=2: this lab takes parameters, layers, rows, card"),
        (["2", "card=0"], "card=0: use a number above 0"),
        (["3", "model.layers=1"], "model.layers=1 has no halves: use at least 2"),
        (["4", "batch_size=63"], "batch_size=63 is odd, and each copy takes half of the rows: use 64"),
        (["5", "chunks=2"], "chunks=2: this lab takes no words"),
        (["10", "chunks=2"], "chunks=2: this lab takes steps, folder"),
    ],
)
def test_words_that_a_lab_cannot_take(words, sentence, capsys):
    with pytest.raises(SystemExit) as end:
        command.main(words)
    assert end.value.code == 2
    assert capsys.readouterr().err.startswith(f"error: {sentence}")


def test_another_option_of_a_group_takes_none_of_the_keys_that_the_lab_gives(capsys):
    job = labs.typed.typed_job("gpipe", "", ["device=cpu"], *labs.pipeline.EMULATED, takes=["device"])
    assert job.device.name == "cpu"
    kept = labs.typed.typed_job("gpipe", "", ["device=emulated"], *labs.pipeline.EMULATED, takes=["device"]).device
    assert (kept.forward_ms, kept.per) == (0.3125, ["layer", "row"])


def test_monolith(capsys):
    monolith.main([])
    losses = [float(loss) for loss in re.findall(r"loss (\d\.\d+)", said(capsys))]
    assert len(losses) > 5
    assert losses[-1] < losses[0] - 1
    monolith.main(["steps=2", "learning_rate=1000"])
    assert re.findall(r"^step  \d  loss (\S+)", said(capsys), re.MULTILINE) == ["5.875", "nan"]


def test_memory_wall(capsys):
    memory_wall.main([])
    text = said(capsys)
    assert "needs 8 cards: at most 2 layers and\n20.1 GB on each." in text
    bars = dict(re.findall(r"GB  (\S.*?) +(█+)$", text, re.MULTILINE))
    assert len(bars["in all"]) == pytest.approx(4 * len(bars["gradients"]), abs=3)
    assert len(bars["in all"]) == pytest.approx(160 / 24 * len(bars["a card"]), abs=4)
    assert "The parameters alone are 40 GB: they do not fit on" in text
    memory_wall.main(["layers=4"])
    assert "A layer alone needs 40.1 GB, more than a card: no cut between layers" in said(capsys)


def test_manual_split_and_replicas(capsys):
    manual_split.main([])
    text = said(capsys)
    assert text.index("gradients: False") < text.index("gradients: True", text.index("gradients: False"))
    assert "32 of 32 gradients equal the monolith's bit for bit" in text
    manual_replicas.main([])
    alone, average = map(float, re.findall(r"(\d\.\de-\d+)", said(capsys)))
    assert average < 1e-12 < 1e-4 < alone


def test_ping_pong_by_torchrun(tmp_path):
    done = torchrun(2, folder=tmp_path, program="microp.labs.ping_pong")
    assert done.returncode == 0, done.stderr
    assert re.search(r"rank 0 is process \d+, before rank 1; rank 1 is process \d+, after rank 0\n", done.stdout)
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
    text = said(capsys)
    whole = " ".join(text.split())
    assert "The times are set, not measured: F lasts 20 ms and B 40 ms for a microbatch of 16 rows" in whole
    assert "F lasts 10 ms and B 20 ms for a microbatch of 8 rows" in whole
    kept = [re.findall(r"4 in flight, (\d+) KiB kept", part)[0] for part in re.split("gpipe, |1f1b, ", text)[1:]]
    assert kept == ["80", "40"]  # rank 0 of GPipe keeps the whole batch, that of 1F1B four of its eight microbatches


def test_hooks_fire_from_the_last_layer_to_the_first(capsys):
    labels = ddp.main([])
    layers = [int(label.split()[1]) for label in labels]
    assert layers == sorted(layers, reverse=True)
    assert len(labels) == 32
    text = said(capsys)
    assert "Bucket 0 is full at 1 MiB (sync.first_bucket_mb)" in text
    assert re.search(r"^time +└0 +\d+\.\d ms┘$", text, re.MULTILINE)
    assert re.search(r"So \d+% of their time was hidden\.\s+(That is good|That is not good|Disturbed: a rank)", text)
    early, every = map(int, re.search(r"(\d+) of (\d+) sums started before", text).groups())
    assert 0 < early <= every


def test_a_gpt_learns_in_the_pipeline_as_in_one_process(tmp_path, capsys):
    assert train_text.main(["steps=12", "--folder", str(tmp_path)]) == 0
    text = capsys.readouterr().out
    assert max(map(len, text.splitlines()[:-1])) <= 80  # the last line is a path
    assert "12 of 12 losses are the same bit for bit" in " ".join(text.split())
    rows = [line.split(",") for line in (tmp_path / "loss.csv").read_text().splitlines()[1:]]
    assert [row[1] for row in rows] == [row[2] for row in rows]
    assert float(rows[-1][1]) < float(rows[0][1]) - 1
    before, after = re.split("before training:\n|after training:\n", (tmp_path / "sample.txt").read_text())[1:]
    assert before.count("\\x") > 1.5 * after.count("\\x")  # most bytes of an untrained model are no text
    with pytest.raises(SystemExit) as end:
        train_text.main(["--steps", "0"])
    assert end.value.code == 2
