"""Works out what the W&B runs of an attempt hold, from its files; nothing here needs W&B.

::

    rows of a rank    ──► charts   step_ms own_step_ms wait_ms ...    measured steps
                                   warmup/step_ms  memory/step_ms  torch/step_ms    other steps, under their own names
                          summary  medians of the measured steps
    rows of all ranks ──► charts   step_ms (of the slowest rank), loss
    summary.json      ──► summary  step_ms (the median), step_ms_p10, ..., peak_memory_mib.rank0, ...

In charts and summaries `step_ms` is the time of the slowest rank, and `own_step_ms` that of the run's own rank.
A chart's time is the time of its step, in seconds since 1970. Clocks in nanoseconds and what is the same in all
rows are no charts; the table `steps` of the summary run has every column.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from statistics import median
from typing import Any

from microp.records import PEAKS, Row, read_config, read_env, read_status
from microp.system import flatten

_ALWAYS = ("pipeline_ms", "optimizer_ms", "compute_ms", "wait_ms", "action_ms")
_SUMS = ("all_reduce_ms", "exposed_ms", "reduced_bytes")  # of the sums over replicas
_NO_MEDIAN = ("step", "_timestamp", "loss")


class Charts:
    """Turns the rows of an attempt into what is logged at each step; each row is read once for all W&B runs.

    `rows` holds what has been read, a list for each rank of all pipelines.
    """

    def __init__(self, attempt: Path) -> None:
        self._config = config = read_config(attempt)
        processes = config["ranks"] * config.get("replicas", 1)
        self._files = [attempt / f"steps.rank{rank}.jsonl" for rank in range(processes)]
        self._read = [0] * processes  # bytes of each file
        self.rows: list[list[Row]] = [[] for _ in self._files]
        engine, sync = config["engine"]["name"], config.get("sync", {}).get("name")
        self._engine = "microp" if engine == "compare" else engine
        self._sync = "ddp" if sync == "compare" and config["replicas"] > 1 else None
        self._keys = [*_ALWAYS, *(_SUMS if config.get("replicas", 1) > 1 else ())]
        self._keys += ["overruns"] if config["device"]["name"] == "emulated" else []
        self._keys += ["recompute_ms"] if config["checkpointing"]["name"] != "never" else []
        self._attempt = attempt

    def read_new_rows(self) -> None:
        """Read the rows that have been written since the last call, without a line that is being written."""
        for rank, path in enumerate(self._files):
            if not path.exists():
                continue
            with path.open("rb") as file:
                file.seek(self._read[rank])
                for line in file:
                    if line.endswith(b"\n"):
                        self._read[rank] += len(line)
                        self.rows[rank].append(json.loads(line))

    def steps(self, first: int) -> Iterator[tuple[Row, ...]]:
        """Yield the rows of all ranks in each step that all of them have ended, from the step with this index on."""
        return zip(*(rows[first:] for rows in self.rows), strict=False)

    def run_config(self, rank: int | None) -> dict[str, Any]:
        """Return the configuration of the W&B run of a rank (None: the summary run), with its machine and versions."""
        attempt = self._attempt
        env = {key: value for key, value in read_env(attempt).items() if key != "wandb_agent"}
        started = datetime.fromtimestamp(read_status(attempt)["started"], UTC).isoformat(timespec="milliseconds")
        config = {**self._config, **env, "started": started, "run_id": attempt.parent.name, "attempt": attempt.name}
        if rank is None:
            return config
        rows = self.rows[rank][:1]
        who = {key: row[key] for row in rows for key in ("rank", "replica")}
        stages = sorted({int(name[:-1]) for row in rows for name in row["action_ms"]})  # `0F`, `0B`, ...
        return {**config, **who, "stages": stages}

    def of_rank(self, row: Row, step: Sequence[Row]) -> dict[str, Any]:
        """Return what is logged for a rank's row of a step, whose rows of all ranks are empty if one did not end it."""
        prefix = self._prefix(row)
        charted = {"step": row["step"], "_timestamp": row["ended"], f"{prefix}own_step_ms": row["step_ms"]}
        if step:
            charted[f"{prefix}step_ms"] = _slowest(step)
        if not prefix:
            charted |= {key: row[key] for key in self._keys if key in row}
        return charted if row["loss"] is None else charted | {"loss": row["loss"]}

    def of_all(self, rows: Sequence[Row]) -> dict[str, Any]:
        """Return what is logged for one step of all ranks: the slowest rank's time and the batch's loss."""
        charted = {"step": rows[0]["step"], "_timestamp": max(row["ended"] for row in rows)}
        charted[f"{self._prefix(rows[0])}step_ms"] = _slowest(rows)
        losses = [row["loss"] for row in rows if row["loss"] is not None]
        return charted | ({"loss": sum(losses)} if losses else {})

    def _prefix(self, row: Row) -> str:
        """Return the first part of the names of steps that are not measured steps of the run's own engine."""
        if row["phase"] != "measured":
            return f"{row['phase']}/" if row["engine"] == self._engine else f"{row['engine']}/{row['phase']}/"
        if row["engine"] != self._engine:
            return f"{row['engine']}/"
        return f"{row['sync']}/" if self._sync not in (None, row.get("sync")) else ""

    def rank_summary(self, rank: int, logged: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        """Return the summary of a rank: medians of what `of_rank` returned for each of its rows, and its peaks."""
        rows, columns = self.rows[rank], defaultdict[str, list[float]](list)
        for charted in logged:
            for key, value in flatten(charted).items():
                columns[key].append(value)
        summary: dict[str, Any] = {key: median(values) for key, values in columns.items() if key not in _NO_MEDIAN}
        losses = [row["loss"] for row in rows if row["phase"] == "measured" and row["loss"] is not None]
        summary |= {"loss": losses[-1]} if losses else {}
        summary |= {key: row[key] for row in rows for key in PEAKS if key in row}
        return _nested(summary)


def run_summary(summary: Mapping[str, Any]) -> dict[str, Any]:
    """Return the numbers of `summary.json` as scalars: a list over the ranks becomes `rank0`, `rank1`, ... and `max`.

    `step_ms` is the median, so that it is the same quantity in every W&B run and a sweep can minimise it.
    """
    step = summary.get("step_ms") or {"median": None}
    numbers = {**_scalars(summary), "step_ms": step["median"]}
    return numbers | {f"step_ms_{key}": value for key, value in step.items() if key != "median"}


def _scalars(values: Mapping[str, Any]) -> dict[str, Any]:
    scalars: dict[str, Any] = {}
    for key, value in values.items():
        if key == "partition":
            scalars[key] = " ".join(map(str, value))  # per stage, a choice and not a result
        elif isinstance(value, Mapping):
            scalars[key] = _scalars(value)
        elif isinstance(value, list):
            scalars[key] = {f"rank{rank}": part for rank, part in enumerate(value)} | {"max": max(value)}
        elif value is not None:
            scalars[key] = value
    return scalars


def _slowest(step: Sequence[Row]) -> float:
    return float(max(row["step_ms"] for row in step))


def _nested(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return `a.b` as `b` inside `a`, as W&B keeps it."""
    nested: dict[str, Any] = {}
    for key, value in values.items():
        group, _, name = key.rpartition(".")
        (nested.setdefault(group, {}) if group else nested)[name] = value
    return nested
