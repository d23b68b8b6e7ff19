"""Files are written whole or not at all, on disks that are really full."""

from __future__ import annotations

import os

import pytest

from microp.records import WriteError, in_a_line, in_words, unwritable, write_text

ALLOCATING = (
    "[enforce fail at alloc_cpu.cpp:121] data. DefaultCPUAllocator: not enough memory: you tried to allocate {} bytes."
)


def test_a_reason_other_than_room_is_told_with_the_remedy(tmp_path):
    (tmp_path / "file").touch()
    (tmp_path / "link").symlink_to(tmp_path / "nowhere")
    with pytest.raises(WriteError) as error:
        write_text(tmp_path / "file" / "a", "text")
    assert str(error.value) == (
        f"{tmp_path / 'file' / 'a'} cannot be written (Not a directory): make it writable, "
        "or choose another output_dir; the same command then goes on"
    )
    assert not error.value.no_room
    said = str(unwritable(tmp_path / "link", OSError(17, "File exists")))
    assert said.startswith(f"{tmp_path / 'link'} cannot be written (a link to nothing): ")


def test_what_the_system_says_is_one_line():
    assert in_a_line(OSError(24, "Too many open files")).startswith(
        "too few file descriptors for a pipe: a process may"
    )
    assert in_a_line(OSError(24, "Too many open files", "x.json")).startswith("too few file descriptors for x.json: ")
    assert in_a_line(OSError(13, "Permission denied", "x.json")).startswith("x.json cannot be written (Permission de")
    assert in_a_line(OSError("two\nlines")) == "two lines"
    assert in_a_line(ConnectionResetError()) == "ConnectionResetError"


def test_a_file_in_a_folder_that_is_closed_is_named(monkeypatch):
    """Root may look into every folder, so the system's answer is made here."""
    refused = PermissionError(13, "Permission denied", "theirs/lock")

    def stat(*_: object, **__: object):
        raise refused

    with monkeypatch.context() as changed:
        changed.setattr(os, "stat", stat)
        changed.setattr(os, "lstat", stat)
        said = in_a_line(refused)
    assert said.startswith("theirs/lock cannot be written (Permission denied): make it writable, ")


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (ValueError("the layer is broken"), "the layer is broken"),
        (ValueError("two\n  lines"), "ValueError: two lines"),
        (KeyError("missing"), "KeyError: 'missing'"),
        (RuntimeError(), "RuntimeError"),
        (ValueError("much " * 1000), f"{'much ' * 59}mu..."),
        (ValueError("a\x1b[31m"), "a\\x1b[31m"),
        (MemoryError(), "out of memory"),
        (MemoryError("no\nroom"), "out of memory (no room)"),
        (RuntimeError(ALLOCATING.format(3 * 2**30)), "out of memory (3 GiB more were asked for)"),
    ],
    ids=lambda each: each[:20] if isinstance(each, str) else type(each).__name__,
)
def test_an_error_is_one_line_in_words(error, said):
    assert in_words(error) == said
