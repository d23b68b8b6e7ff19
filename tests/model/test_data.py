"""A batch follows from (seed, step); a source that will not do is told before anything starts."""

import os
import re
import sysconfig
from pathlib import Path

import numpy as np
import pytest
import torch

from microp.model import open_data
from microp.settings import TextSettings, TokenSettings
from microp.settings.data import SyntheticSettings


@pytest.mark.parametrize("source", [TextSettings("text", None), SyntheticSettings("synthetic")], ids=lambda s: s.name)
def test_a_batch_follows_from_seed_and_step(source):
    one, two = open_data(source, 5, 12, seed=3), open_data(source, 5, 12, seed=3)
    assert one(4).shape == (5, 13)
    assert torch.equal(one(4), two(4))
    assert not torch.equal(one(4), one(5))
    assert not torch.equal(one(4), open_data(source, 5, 12, seed=4)(4))
    assert 0 <= one(0).min() <= one(0).max() <= 255


def test_default_text_is_the_standard_library_and_a_folder_is_read_by_name_with_its_subfolders(tmp_path):
    settings = TextSettings("text", None)
    corpus = b"".join(file.read_bytes() for file in settings.files())
    assert Path(sysconfig.get_paths()["stdlib"]) / "argparse.py" in settings.files()
    assert not any("site-packages" in file.parts for file in settings.files())
    assert all(bytes(row.tolist()) in corpus for row in open_data(settings, 3, 40, 0)(0))
    (tmp_path / "tests").mkdir()
    for name in ("b.txt", "a.txt", "tests/c.txt", ".hidden"):
        (tmp_path / name).write_text(Path(name).stem[0])
    settings = TextSettings("text", str(tmp_path))
    assert [file.name for file in settings.files()] == ["a.txt", "b.txt", "c.txt"]
    assert set(open_data(settings, 50, 1, 0)(0).flatten().tolist()) == {97, 98, 99}


def test_the_shortest_text_that_will_do(tmp_path):
    path = tmp_path / "text"
    for content, said in ((None, "(No such file or directory)"), (b"", "is empty"), (b"01234567", "has 8 bytes")):
        if content is not None:
            path.write_bytes(content)
        [problem] = TextSettings("text", str(path)).problems(8, 256)
        assert said in problem
        assert f"data.path={path}" in problem
    path.write_bytes(b"012345678")
    assert TextSettings("text", str(path)).problems(8, 256) == []
    assert open_data(TextSettings("text", str(path)), 2, 8, 0)(0).tolist() == [list(b"012345678")] * 2


def write_tokens(folder: Path) -> dict[str, Path]:
    """The same 1,000 tokens, each of them once, in files of several types."""
    tokens = np.arange(1000)
    files = {kind: folder / f"tokens.{kind}.bin" for kind in ("uint16", "int32", "int64")}
    for kind, path in files.items():
        tokens.astype(kind).tofile(path)
    files["npy"] = folder / "tokens.npy"
    np.save(files["npy"], tokens.astype(">u2"))  # its header says the type, here of another byte order
    return files


def test_tokens_of_every_type_are_the_same_rows(tmp_path):
    found = []
    for kind, path in write_tokens(tmp_path).items():
        settings = TokenSettings("tokens", str(path), "uint16" if kind == "npy" else kind)
        assert settings.problems(9, 1000) == []
        found.append(open_data(settings, 4, 9, seed=3)(2))
    assert found[0].shape == (4, 10)
    assert all(torch.equal(rows, found[0]) for rows in found)
    assert torch.equal(found[0].diff(dim=1), torch.ones(4, 9, dtype=torch.int64))  # consecutive tokens of the file
    last = open_data(settings, 200, 998, seed=0)(0)  # 1,000 tokens have two places for a row of 999
    assert set(last[:, 0].tolist()) == {0, 1}
    path = tmp_path / "large.bin"
    path.touch()
    os.truncate(path, 2**40)  # a TiB that takes no room on the disk: only the rows are read
    assert open_data(TokenSettings("tokens", str(path), "uint16"), 3, 5, seed=0)(0).tolist() == [[0] * 6] * 3


def test_tokens_that_will_not_do(tmp_path):
    files = write_tokens(tmp_path)
    np.save(tmp_path / "table.npy", np.zeros((10, 10), np.int32))
    np.save(tmp_path / "floats.npy", np.zeros(100))
    np.save(tmp_path / "negative.npy", np.arange(-1, 99))
    (tmp_path / "odd.bin").write_bytes(b"123")
    (tmp_path / "text.npy").write_text("not numpy's")
    os.mkfifo(tmp_path / "pipe")
    for path, context, skip, said in [
        (tmp_path / "pipe", 9, 0, "cannot be read (it is a pipe, or permission is denied)"),
        (tmp_path / "nowhere.bin", 9, 0, "cannot be read (No such file or directory)"),
        (tmp_path, 9, 0, "cannot be read (Is a directory)"),
        (tmp_path / "odd.bin", 9, 0, "has 3 bytes, no whole number of data.type=uint16"),
        (tmp_path / "text.npy", 9, 0, "cannot be read ("),
        (tmp_path / "table.npy", 9, 0, "holds int32 [10, 10]: give a file of whole numbers in one dimension"),
        (tmp_path / "floats.npy", 9, 0, "holds float64 [100]: give a file of whole numbers"),
        (tmp_path / "negative.npy", 9, 0, "has tokens from -1 to 98, but tokens count from 0"),
        (files["uint16"], 1000, 0, "has 1000 tokens, but one row needs 1001 (its context and the token after"),
        (files["npy"], 9, 8, "data.skip=8 is not used by data.path="),
        (files["uint16"], 9, 7, "has 1993 bytes after data.skip=7, no whole number of data.type=uint16"),
        (files["uint16"], 9, 5000, "has 0 bytes after data.skip=5000, no whole number"),
        (files["uint16"], 9, -1, "data.skip=-1 is below 0: use at least 0"),
    ]:
        [problem] = TokenSettings("tokens", str(path), "uint16", skip=skip).problems(context, 1000)
        assert said in problem
    [problem] = TokenSettings("tokens", str(files["uint16"]), "uint16").problems(9, 999)
    assert "has tokens from 0 to 999, but the model has 999 different ones, from 0 to 998: use a model with" in problem
    assert "data=text has 256 different tokens" in TextSettings("text", None).problems(9, 100)[0]


SOME = np.random.default_rng(0)
WORDS, MANY = SOME.zipf(1.3, 5000) % 50_000, SOME.zipf(1.1, 5000) % 120_000  # like those of GPT-2 and of Llama 3


OTHERWISE = "as every other token"


@pytest.mark.parametrize(
    ("tokens", "kind", "read_as", "vocabulary", "said"),
    [
        (WORDS, "uint16", "uint16", 50_257, None),
        (np.where(np.arange(5000) % 9, 0, WORDS), "uint16", "uint16", 50_257, None),  # mostly padding
        (WORDS, "int32", "uint32", 50_257, None),
        (MANY, "uint32", "uint32", 2**17, None),
        (WORDS % 256, "uint8", "uint8", 256, None),
        (WORDS, "int32", "uint16", 50_257, f"{OTHERWISE}, .*: set the data.type that the file has; if its"),
        (WORDS, "uint32", "int16", 50_257, OTHERWISE),
        (WORDS, "int64", "int32", 50_257, OTHERWISE),
        (WORDS % 256, "uint16", "uint8", 256, OTHERWISE),
        (MANY, "uint32", "uint16", 2**16, OTHERWISE),
        (np.arange(5000) * 24, "uint32", "uint16", 2**16, OTHERWISE),
        (WORDS, "uint16", "uint16", 2**17, "no token above 65535, .*: set the data.type that the file has, or use"),
        (WORDS, "uint16", "uint32", 50_257, "use a model with a vocabulary of .*, or the data.type that the file has"),
        (WORDS, "uint16", "int16", 50_257, "count from 0: give the data.type that the file has, or other numbers"),
    ],
)
def test_a_type_that_is_not_the_file_s(tmp_path, tokens, kind, read_as, vocabulary, said):
    path = tmp_path / "tokens.bin"
    tokens.astype(kind).tofile(path)
    found = TokenSettings("tokens", str(path), read_as).problems(9, vocabulary)
    assert (re.search(said, found[0]) and len(found) == 1) if said else found == []
    np.save(tmp_path / "tokens.npy", tokens.astype(kind))  # says its type itself
    assert TokenSettings("tokens", str(tmp_path / "tokens.npy"), read_as).problems(9, 2**17) == []


LLM_C = "a header of 1024 bytes in the form of llm.c"


def llm_c(magic: int, version: int, kind: str) -> bytes:
    header = np.zeros(256, np.int32)
    header[:3] = magic, version, len(WORDS)
    return header.tobytes() + WORDS.astype(kind).tobytes()


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (llm_c(20240520, 1, "uint16"), f"{LLM_C} (and modded-nanogpt): set data.skip=1024"),
        (llm_c(20240801, 7, "uint32"), f"{LLM_C}: set data.skip=1024 data.type=uint32"),
        (llm_c(20300101, 9, "uint32"), f"{LLM_C}: set data.skip=1024 data.type=uint32"),
        (b"LITPKDS" + bytes(17) + WORDS.astype("uint16").tobytes(), "in the form of lit-gpt: set data.skip=24"),
        ("What is this?\r\n\tCafé ".encode() * 300, "holds text and no tokens: use data=text"),
        (b"\x1f\x8b" + bytes(100), "is compressed, a table or numpy's under another name: give numbers alone"),
    ],
)
def test_a_file_that_begins_with_something_else(tmp_path, content, said):
    (tmp_path / "shard.bin").write_bytes(content)
    settings = TokenSettings("tokens", str(tmp_path / "shard.bin"), "uint16")
    [problem] = settings.problems(9, 50_257)
    assert said in problem
    keys = dict(word.removeprefix("data.").split("=") for word in problem.partition("set ")[2].split())
    if "skip" in keys:  # what is advised is what does
        asked = TokenSettings("tokens", settings.path, keys.get("type", "uint16"), skip=int(keys["skip"]))
        assert asked.problems(9, 50_257) == []
        whole = open_data(asked, 20, len(WORDS) - 1, seed=0)(0)
        assert torch.equal(whole[0], torch.from_numpy(WORDS))


def test_contents_tell_data_from_others_at_the_same_path(tmp_path):
    assert [TextSettings("text", None).contents(), SyntheticSettings("synthetic").contents()] == [None, None]
    folder, file = tmp_path / "folder", tmp_path / "tokens.bin"
    folder.mkdir()
    changes = [
        lambda: [path.write_bytes(b"12345678") for path in (folder / "a", folder / "b", file)],
        lambda: [path.write_bytes(b"12345679") for path in (folder / "b", file)],  # same size, and made the same time
        lambda: [path.write_bytes(b"1234567890") for path in (folder / "b", file)],
        lambda: [os.utime(path, (5, 5)) for path in (folder / "a", folder / "b", file)],  # as if copied
        lambda: [path.unlink() for path in (folder / "b", file)],
    ]
    seen = []
    for change in changes:
        change()
        for path in folder.glob("*") if len(seen) < 6 else ():
            os.utime(path, (1, 1))
        found = [TextSettings("text", str(folder)), TokenSettings("tokens", str(file), "uint16")]
        seen += [each.contents() for each in found]
        assert [each.contents() for each in found] == seen[-2:]
    assert len(set(seen)) == len(seen)
    assert seen[0].startswith("16 bytes in 2 files, written 1970-01-01 00:00:01.000+00:00, checksum ")
    assert seen[-1] == "nothing that can be read (No such file or directory)"
