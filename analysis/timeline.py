"""Timelines of a run's last measured step, predicted above measured.

    python -m analysis.timeline outputs/runs/<run>/attempt-<n>

The prediction replays the schedule with the step's own median F and B times of each stage and its
median hop time; it differs from the measurement by noise and overhead. Of several replicas the
first is drawn, with the sums over all replicas, predicted and measured.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from microp import render
from microp.records import attempts, read_json, read_reductions, read_spans
from microp.replay import predict, predict_sums, schedule_of

__all__ = ["accounting_table", "main", "predict", "schedule_of"]


def main(arguments: list[str] | None = None) -> int:
    """Draw a run's last measured step, predicted above measured, as text and as a figure."""
    parser = argparse.ArgumentParser(prog="python -m analysis.timeline", description=main.__doc__)
    parser.add_argument("run", type=Path, help="an attempt, or a folder, whose newest attempt is drawn")
    parser.add_argument(
        "--report", type=Path, default=Path("outputs/report"), help="folder for the files (default: outputs/report)"
    )
    options = parser.parse_args(arguments)
    found = [attempt for attempt in attempts(options.run) if read_spans(attempt)]
    if not found:
        parser.error(f"{options.run} holds no attempt with a trace: give a folder below outputs/runs")
    attempt = max(found, key=lambda attempt: read_json(attempt / "status.json")["started"])
    summary = read_json(attempt / "summary.json")
    measured = read_spans(attempt)
    schedule = schedule_of(measured, summary["schedule"])
    panels = {"predicted": predict(schedule, measured), "measured": measured}
    taken = read_reductions(attempt)
    sums = {"predicted": predict_sums(schedule, measured, taken), "measured": taken}
    for name, spans in panels.items():
        print(f"{name}\n{render.text(spans, sums=sums[name])}\n")
    print(accounting_table(summary["time_ms"]))
    options.report.mkdir(parents=True, exist_ok=True)
    place = options.report / f"timeline-{attempt.parent.name}-{attempt.name}"
    files = render.figure(panels, f"{attempt.parent.name}, {attempt.name}: last measured step", place, sums=sums)
    files.append(render.perfetto(panels, schedule, place.with_name(f"{place.name}.trace.json")))
    for file in files:
        print(file)
    return 0


def accounting_table(time_ms: dict[str, list[float]]) -> str:
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
