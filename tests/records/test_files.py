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
    assert not error.value.no_room


def test_what_the_system_says_is_one_line():
    assert in_a_line(OSError(24, "Too many open files")).startswith(
        "too few file descriptors for a pipe: a process may"
    )
    assert in_a_line(OSError(24, "Too many open files", "x.json")).startswith("too few file descriptors for x.json: ")
    assert in_a_line(OSError(13, "Permission denied", "x.json")).startswith("x.json cannot be written (Permission de")
    assert in_a_line(OSError("two\nlines")) == "two lines"
    assert in_a_line(ConnectionResetError()) == "ConnectionResetError"


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
