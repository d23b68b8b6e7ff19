"""A batch follows from (seed, step); a source that will not do is told before anything starts."""

from __future__ import annotations

import sysconfig
from pathlib import Path

import pytest
import torch

from microp.model import open_data
from microp.settings import SyntheticSettings, TextSettings


@pytest.mark.parametrize("source", [TextSettings("text", None), SyntheticSettings("synthetic")], ids=lambda s: s.name)
def test_a_batch_follows_from_seed_and_step(source):
    one, two = open_data(source, 5, 12, seed=3), open_data(source, 5, 12, seed=3)
    assert one(4).shape == (5, 13)
    assert torch.equal(one(4), two(4))
    assert not torch.equal(one(4), one(5))
    assert not torch.equal(one(4), open_data(source, 5, 12, seed=4)(4))
    assert 0 <= one(0).min() <= one(0).max() <= 255


def test_default_text_is_the_standard_library():
    files = TextSettings("text", None).files()
    library = Path(sysconfig.get_paths()["stdlib"])
    assert library / "argparse.py" in files
    assert not any("site-packages" in file.parts for file in files)
    corpus = b"".join(file.read_bytes() for file in files)
    for row in open_data(TextSettings("text", None), 3, 40, 0)(0):
        assert bytes(row.tolist()) in corpus


def test_a_folder_is_read_by_name_with_its_subfolders(tmp_path):
    (tmp_path / "tests").mkdir()
    (tmp_path / "b.txt").write_bytes(b"b")
    (tmp_path / "a.txt").write_bytes(b"a")
    (tmp_path / "tests" / "c.txt").write_bytes(b"c")
    (tmp_path / ".hidden").write_bytes(b"h")
    assert [file.name for file in TextSettings("text", str(tmp_path)).files()] == ["a.txt", "b.txt", "c.txt"]
    assert set(open_data(TextSettings("text", str(tmp_path)), 50, 1, 0)(0).flatten().tolist()) == {97, 98, 99}


def test_the_shortest_text_that_will_do(tmp_path):
    path = tmp_path / "text"
    path.write_bytes(b"012345678")
    assert TextSettings("text", str(path)).problems(8) == []
    assert open_data(TextSettings("text", str(path)), 2, 8, 0)(0).tolist() == [list(b"012345678")] * 2


@pytest.mark.parametrize(
    ("content", "message"),
    [(None, "does not exist"), (b"", "is empty: give a text of at least 9 bytes"), (b"01234567", "has 8 bytes")],
)
def test_problems(tmp_path, content, message):
    path = tmp_path / "text"
    if content is not None:
        path.write_bytes(content)
    [problem] = TextSettings("text", str(path)).problems(8)
    assert message in problem
    assert f"data.path={path}" in problem
