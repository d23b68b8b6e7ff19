"""Reads what is recorded of a run's hosts if there were several, and says how well their clocks agree.

::

    hosts.json   [{"host": "h0", "ranks": [0, 1], "clock_residual_ns": 0, ...}, {"host": "h1", ...}]

The moments in all rows are on the clock of the first host. A residual is the most by which another host's may be wrong:
half of the time of the quickest message there and back.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from microp.schedule import Schedule
from microp.store.records import read_json, read_spans
from microp.trace import early_receive

HOSTS = "hosts.json"


def hosts_of(attempt: Path, schedule: Schedule, replicas: int) -> dict[str, Any] | None:
    """Return what a summary holds of the hosts; None if there was one, or if the rows were not gathered."""
    path = attempt / HOSTS
    if not path.exists():
        return None
    hosts = read_json(path)
    early = max(early_receive(schedule, read_spans(attempt, replica)) for replica in range(replicas))
    return {
        "names": [host["host"] for host in hosts],
        "ranks": [host["ranks"] for host in hosts],
        "clock_residual_ms": max(host["clock_residual_ns"] for host in hosts) / 1e6,
        "early_receive_ms": early / 1e6,
    }


def clocks_text(summary: Mapping[str, Any]) -> str:
    """Return a caption about the clocks of a run's hosts; empty if there was one host."""
    hosts = summary.get("hosts")
    if not hosts:
        return ""
    early = hosts["early_receive_ms"]
    check = (
        f"a receive ends {early:.3f} ms before its send begins" if early else "no receive ends before its send begins"
    )
    return f"clocks of {len(hosts['names'])} hosts, ±{hosts['clock_residual_ms']:.3f} ms: {check}"
