"""Files are written whole or not at all, on disks that are really full."""

from __future__ import annotations

import pytest

from microp.records import WriteError, in_a_line, in_words, write_text

ALLOCATING = (
    "[enforce fail at alloc_cpu.cpp:121] data. DefaultCPUAllocator: not enough memory: you tried to allocate {} bytes."
)


def test_a_reason_other_than_room_is_told_with_the_remedy(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(WriteError) as error:
        write_text(tmp_path / "file" / "a", "text")
    assert str(error.value) == (
        f"{tmp_path / 'file' / 'a'} cannot be written (Not a directory): make it writable, "
        "or choose another output_dir; the same command then goes on"
    )


SAID = {
    "the layer is broken": ValueError("the layer is broken"),
    "ValueError: two lines": ValueError("two\n  lines"),
    "KeyError: 'missing'": KeyError("missing"),
    "RuntimeError": RuntimeError(),
    f"{'much ' * 59}mu...": ValueError("much " * 1000),
    "a\\x1b[31m": ValueError("a\x1b[31m"),
    "out of memory": MemoryError(),
    "out of memory (no room)": MemoryError("no\nroom"),
    "out of memory (3 GiB more were asked for)": RuntimeError(ALLOCATING.format(3 * 2**30)),
}
SYSTEM = {
    "too few file descriptors for a pipe: a process may": OSError(24, "Too many open files"),
    "too few file descriptors for x.json: ": OSError(24, "Too many open files", "x.json"),
    "x.json cannot be written (Permission de": OSError(13, "Permission denied", "x.json"),
    "two lines": OSError("two\nlines"),
    "ConnectionResetError": ConnectionResetError(),
}


def test_an_error_is_one_line_in_words():
    assert [in_words(error) for error in SAID.values()] == list(SAID)
    for said, error in SYSTEM.items():
        assert in_a_line(error).startswith(said)
        assert "\n" not in in_a_line(error)
