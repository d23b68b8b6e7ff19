"""The harness's own cost is measured by a command."""

from __future__ import annotations

import re
from types import SimpleNamespace

from user import microp

from microp import null_stages
from microp.app import overheads


def test_every_transport_and_torch_get_a_line(tmp_path, monkeypatch, capsys):
    def run(command, **_):
        """Start a sweep, of ranks that are threads, or torchrun from the warm process."""
        _, option, program, *words = command
        assert option == "-m"
        threads = ["comms=threads"] if program == "microp.run" else []
        return microp(*words, *threads, folder=tmp_path, program=program)

    monkeypatch.setattr(overheads, "subprocess", SimpleNamespace(run=run))
    assert null_stages.main(["--steps", "3", "--points", "3"]) == 0
    said = capsys.readouterr().out
    for name in ("shm", "tcp", "gloo", r"torch \(gloo\)"):
        [(action, there_and_back)] = re.findall(rf"^{name}\s+([\d.]+) µs\s+(\d+) µs$", said, re.MULTILINE)
        assert float(action) > 0
        assert float(there_and_back) > 0
    assert len(re.findall(r"start and end of a point, [28] ranks, .*: \d+\.\d\d s", said)) == 3


def test_nothing_to_measure_is_refused(tmp_path):
    done = microp("--rows=0", folder=tmp_path, program="microp.null_stages")
    assert done.returncode == 2
    assert "--rows=0 is below 1" in done.stderr
    done = microp("--busy", "1", "--ranks", "1", folder=tmp_path, program="microp.null_stages")
    assert (done.returncode, "--ranks=1 is below 2" in done.stderr) == (2, True)


def test_transports_are_compared_beside_others(tmp_path):
    words = ["--busy", "0", "1", "--launches", "1", "--ranks", "2"]
    done = microp(*words, folder=tmp_path, program="microp.null_stages")
    assert done.returncode == 0, done.stderr
    rows = re.findall(r"^ +2 +(1|16) +([01]) +1 +\d+ \(\d+\) +\d+ \(\d+\) +[\d.]+ \[", done.stdout, re.MULTILINE)
    assert rows == [("1", "0"), ("1", "1"), ("16", "0"), ("16", "1")]
