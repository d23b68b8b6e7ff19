"""Mirrors a run folder to Weights & Biases: one W&B run per rank, and one summary run per point.

::

    attempt-1/steps.rank0.jsonl ──► run   group = <run id>/attempt-1   job_type = rank
              steps.rank1.jsonl ──► run   group = <run id>/attempt-1   job_type = rank
              summary.json      ──► run   group = <run id>/attempt-1   job_type = summary
              + all rows, spans           with the timeline and the tables
              tracked.json      ◄── the W&B runs that have been made

Mirroring starts after the last step and reads only files, so it can also be done later:

    python -m microp.tracking [FOLDER]      mirror what has not been mirrored yet

Under a `wandb agent` only the summary run is the agent's own run.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from microp.settings import TrackingSettings
from microp.simulator import replay, schedule_of
from microp.store.recorder import write_json
from microp.store.records import (
    check_rows,
    read_config,
    read_env,
    read_json,
    read_rows,
    read_spans,
    read_status,
    read_summary,
)
from microp.trace import MOMENTS, picture

AGENT = ("WANDB_RUN_ID", "WANDB_SWEEP_ID", "WANDB_SWEEP_PARAM_PATH")  # set by `wandb agent`
SPAN = ("rank", "op", "stage", "microbatch", *(f"{moment}_ms" for moment in MOMENTS))


def take_agent() -> dict[str, str]:
    """Remove a `wandb agent`'s variables from the environment and return them for `env.json`; empty without an agent.

    They are removed because only one run of one attempt may be the agent's.
    """
    given = {name: value for name in AGENT if (value := os.environ.pop(name, None))}
    if "WANDB_RUN_ID" not in given:
        return {}
    where = {name: os.environ[name] for name in ("WANDB_PROJECT", "WANDB_ENTITY") if name in os.environ}
    return {name.removeprefix("WANDB_").lower(): value for name, value in (given | where).items()}


def mirror(attempt: Path, settings: TrackingSettings, folder: Path) -> None:
    """Make the W&B runs of an attempt that have not been made yet.

    Args:
        attempt: a finished or failed attempt.
        settings: the mode, project, entity and tags.
        folder: W&B's files are written to `folder/wandb`.

    Raises:
        RecordError: a newer microp wrote the attempt, or it cannot be read; nothing is mirrored then.
        Exception: whatever W&B raises; the W&B runs made before it are in `tracked.json`.
    """
    if settings.mode == "disabled":
        return
    check_rows(attempt)
    if (attempt / "summary.json").exists():
        read_summary(attempt)
    done: dict[str, str] = read_json(path) if (path := attempt / "tracked.json").exists() else {}
    uid, agent = read_status(attempt)["uid"], read_env(attempt).get("wandb_agent", {})
    ranks = range(len(list(attempt.glob("steps.rank*.jsonl"))))
    names = [*(f"rank{rank}" for rank in ranks), "summary"]
    with _quiet(settings.mode):
        for name in names:
            if name in done or (name == "summary" and not (attempt / "summary.json").exists()):
                continue
            done[name] = agent["run_id"] if agent and name == "summary" else f"{uid}-{name}"
            _mirror_one(attempt, settings, folder, name, done[name])
            write_json(attempt / "tracked.json", done)


@contextmanager
def _quiet(mode: str) -> Iterator[None]:
    """Set W&B's environment during the mirroring: no agent's variables, and offline no look-up of host names."""
    wanted: dict[str, str | None] = {"WANDB_SILENT": "true", **dict.fromkeys(AGENT)}
    if mode == "offline":
        wanted |= {"WANDB_MODE": "offline", "WANDB_ERROR_REPORTING": "false"}
    before = {key: os.environ.get(key) for key in wanted}
    _set(wanted)
    try:
        yield
    finally:
        _set(before)


def _set(variables: dict[str, str | None]) -> None:
    """Set environment variables; None removes a variable."""
    for key, value in variables.items():
        if value is None:
            os.environ.pop(key, None)
        else:
            os.environ[key] = value


_PLAIN: dict[str, Any] = {
    "console": "off",
    "silent": True,
    "x_disable_stats": True,
    "disable_git": True,
    "save_code": False,
    "x_save_requirements": False,  # takes half the time of a W&B run; versions are in env.json
}


def _mirror_one(attempt: Path, settings: TrackingSettings, folder: Path, name: str, uid: str) -> None:
    import wandb  # takes half a second

    for half_done in (folder / "wandb").glob(f"offline-run-*-{uid}"):
        shutil.rmtree(half_done)
    config, env = read_config(attempt), read_env(attempt)
    agent, experiment = env.get("wandb_agent", {}), env.get("experiment")
    rank = None if name == "summary" else int(name.removeprefix("rank"))
    rows = [] if rank is None else read_rows(attempt, rank)
    run = wandb.init(
        project=agent.get("project", settings.project),
        entity=agent.get("entity", settings.entity),
        dir=str(folder),
        id=uid,
        name=f"{attempt.parent.name}/{name}",
        group=f"{attempt.parent.name}/{attempt.name}",
        job_type="summary" if rank is None else "rank",
        tags=[*settings.tags, *([experiment] if experiment else [])] or None,
        config=config if rank is None else {**config, **_who(rows), "stages": _stages(rows)},
        mode="offline" if settings.mode == "offline" else "online",
        reinit="create_new",
        settings=wandb.Settings(**_PLAIN, sweep_id=agent.get("sweep_id") if rank is None else None),
    )
    try:
        run.define_metric("step")
        run.define_metric("*", step_metric="step")
        for row in rows if rank is not None else _whole_steps(attempt):
            run.log(row)
        if rank is None:
            summary = read_summary(attempt)
            _log_exhibits(run, attempt, summary)
            run.summary.update(summary)
    finally:
        run.finish()


def _all_rows(attempt: Path) -> list[list[dict[str, Any]]]:
    """Return the rows of each rank."""
    return [read_rows(attempt, rank) for rank in range(len(list(attempt.glob("steps.rank*.jsonl"))))]


def _whole_steps(attempt: Path) -> Iterator[dict[str, Any]]:
    """Yield one row per step that all ranks finished: the slowest rank's time and the batch's loss."""
    for rows in zip(*_all_rows(attempt), strict=False):
        losses = [row["loss"] for row in rows if row["loss"] is not None]
        slowest = max(row["step_ms"] for row in rows)
        yield {"step": rows[0]["step"], "phase": rows[0]["phase"], "step_ms": slowest, "loss": sum(losses)}


def _log_exhibits(run: Any, attempt: Path, summary: dict[str, Any]) -> None:
    """Log the last measured step as a picture and as a table of spans, and the rows of all ranks as a table."""
    import wandb

    rows = [row for own in _all_rows(attempt) for row in own]
    found: dict[str, Any] = {}
    if rows:
        columns: list[Any] = list(dict.fromkeys(key for row in rows for key in row if key != "action_ms"))
        data: list[Any] = [[row.get(key) for key in columns] for row in rows]
        found["steps"] = wandb.Table(columns=columns, data=data)
    if spans := read_spans(attempt):
        begin = min(span.start for span in spans)
        data = [[*span[:4], *((time - begin) / 1e6 for time in span[4:])] for span in spans]
        found["spans"] = wandb.Table(columns=list(SPAN), data=data)
        # a failed attempt may have the trace of only some ranks, which cannot be replayed
        replayed = {"replayed": replay(schedule_of(spans, summary["schedule"]), spans)} if summary["time_ms"] else {}
        with tempfile.NamedTemporaryFile(suffix=".png") as file:
            picture({**replayed, "measured": spans}, Path(file.name))
            run.log({"timeline": wandb.Image(file.name)})
    run.log(found)


def _who(rows: list[dict[str, Any]]) -> dict[str, int]:
    """Return the rank and the replica that wrote these rows."""
    return {key: row[key] for row in rows[:1] for key in ("rank", "replica")}


def _stages(rows: list[dict[str, Any]]) -> list[int]:
    """Return the stages of a rank, from the names of the actions in its rows: `0F`, `0B`, ..."""
    return sorted({int(name[:-1]) for row in rows[:1] for name in row["action_ms"]})
