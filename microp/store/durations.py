"""Reads how long finished runs took."""

from __future__ import annotations

from pathlib import Path

from microp.store.records import RecordError, attempts, read_status, read_summary


def run_seconds(runs: Path) -> dict[str, list[float]]:
    """Return the seconds that each finished attempt below a folder took, by question id.

    They count from the start of the ranks to the last record. An attempt that cannot be read is left out.
    """
    found: dict[str, list[float]] = {}
    for attempt in attempts(runs):
        try:
            status = read_status(attempt)
            if status["status"] == "finished" and "ended" in status:
                question = read_summary(attempt)["question_id"]
                found.setdefault(question, []).append(status["ended"] - status["started"])
        except RecordError:
            continue
    return found
