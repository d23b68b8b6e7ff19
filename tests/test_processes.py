"""Tests that run in several processes: each runs once, what fails is reported, and a process that ends fails a test."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

FILES = {
    "test_one": """
        import logging, os, pytest, warnings

        log = logging.getLogger("own")
        log.propagate = False
        log.addHandler(logging.StreamHandler())  # it keeps the stream of the moment

        @pytest.fixture(scope="module")
        def name():
            yield "one"
            open("ended", "a").write("module ")

        @pytest.fixture(scope="session")
        def whole():
            yield
            open("ended", "a").write("session ")

        def test_first(name, whole): open("ran", "a").write("1")
        def test_wrong(capfd): os.system("echo said"); assert capfd.readouterr().out == "other"
        def test_logs(): log.warning("told"); os.system("echo printed"); assert False
        def test_skipped(): pytest.skip("why")
        def test_warns(): warnings.warn("look here")
    """,
    "test_two": """
        import os

        def test_ends(): os._exit(3)
        def test_after(): open("ran", "a").write("2")
    """,
    "test_three": """
        def test_last(): open("ran", "a").write("3")
    """,
}


def pytest_in(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    for name, text in FILES.items():
        (folder / f"{name}.py").write_text(re.sub("^ {8}", "", text, flags=re.MULTILINE))
    command = [sys.executable, "-m", "pytest", "-p", "processes", "-p", "no:cacheprovider", "--processes", "2", *words]
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parent)}
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=60)


def test_every_test_runs_once_and_is_reported(tmp_path):
    done = pytest_in(tmp_path)
    assert done.returncode == 1
    assert sorted((tmp_path / "ran").read_text()) == ["1", "2", "3"]
    assert (tmp_path / "ended").read_text() == "module session "
    assert re.search(r"3 failed, 4 passed, 1 skipped, 1 warning in", done.stdout)
    assert "the process of the test has ended: 3" in done.stdout
    assert "assert 'said\\n' == 'other'" in done.stdout
    assert "UserWarning: look here" in done.stdout
    assert re.search(r"Captured stdout call -+\nprinted\n-+ Captured stderr call -+\ntold\n", done.stdout)


def test_no_more_tests_run_than_the_user_wants(tmp_path):
    done = pytest_in(tmp_path, "-x", "test_two.py")
    assert done.returncode == 1
    assert "stopping after 1 failures" in done.stdout
    assert not (tmp_path / "ran").exists()
