"""Timelines of a run's last measured step, replayed above measured.

    python -m analysis.timeline outputs/runs/<run>/attempt-<n>

The replay simulates the schedule with the step's own median F and B times of each stage and its
median hop time; it differs from the measurement by noise and overhead. Of several replicas the
first is drawn, with the sums over all replicas, replayed and measured.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from microp.simulator import replay, replay_reductions, schedule_of
from microp.store import RecordError, attempts, read_reductions, read_spans, read_status, read_summary
from microp.trace import Span
from microp.trace import drawing as render


def main(arguments: list[str] | None = None) -> int:
    """Draw a run's last measured step, replayed above measured, as text and as a figure."""
    parser = argparse.ArgumentParser(prog="python -m analysis.timeline", description=main.__doc__)
    parser.add_argument("run", type=Path, help="an attempt, or a folder, whose newest attempt is drawn")
    parser.add_argument(
        "--report", type=Path, default=Path("outputs/report"), help="folder for the files (default: outputs/report)"
    )
    options = parser.parse_args(arguments)
    traced = []
    for each in attempts(options.run):
        with suppress(RecordError):
            if list(each.glob("spans.rank*.jsonl")):
                traced.append((read_status(each)["started"], each))
    if not traced:
        parser.error(f"{options.run} holds no attempt with a trace: give a folder below outputs/runs")
    _, attempt = max(traced)
    try:
        summary = read_summary(attempt)  # first, because it names the version
        measured = read_spans(attempt)
        sums = {"measured": read_reductions(attempt)}
    except RecordError as error:
        parser.error(str(error))
    if not measured:
        parser.error(f"{attempt} has an empty trace: run its command again")
    schedule = schedule_of(measured, summary["schedule"])
    panels: dict[str, Sequence[Span]] = {"measured": measured}
    time_ms = summary.get("time_ms")  # None if a rank failed before it had written its trace
    if time_ms:
        panels = {"replayed": replay(schedule, measured), **panels}
        sums["replayed"] = replay_reductions(schedule, measured, sums["measured"])
    for name, spans in panels.items():
        print(f"{name}\n{render.text(spans, sums=sums[name])}\n")
    if time_ms:
        print(time_table(time_ms))
    options.report.mkdir(parents=True, exist_ok=True)
    place = options.report / f"timeline-{attempt.parent.name}-{attempt.name}"
    files = render.figure(panels, f"{attempt.parent.name}, {attempt.name}: last measured step", place, sums=sums)
    files.append(render.perfetto(panels, schedule, place.with_name(f"{place.name}.trace.json")))
    for file in files:
        print(file)
    return 0


def time_table(time_ms: dict[str, list[float]]) -> str:
    """Return a text table of the step's time in ms, with one line per rank and one column per kind."""
    ranks = range(len(time_ms["compute"]))
    lines = ["ms      " + "".join(f"{kind:>11}" for kind in (*time_ms, "sum"))]
    for rank in ranks:
        own = [values[rank] for values in time_ms.values()]
        lines.append(f"rank {rank:<3}" + "".join(f"{value:11.2f}" for value in (*own, sum(own))))
    return "\n".join(
        [
            *lines,
            "warmup, steady, drain: waits for another rank; transfer: waits for a tensor that is being sent; "
            "reduction: waits for the sum over the replicas\n",
        ]
    )


if __name__ == "__main__":
    sys.exit(main())
