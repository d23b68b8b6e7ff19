"""Weights & Biases as a mirror of the run folder: one run a rank, one summary run a point.

::

    attempt-1/steps.rank0.jsonl ──► run   group = <run id>/attempt-1   job_type = rank
              steps.rank1.jsonl ──► run   group = <run id>/attempt-1   job_type = rank
              summary.json      ──► run   group = <run id>/attempt-1   job_type = summary
              + all rows, spans           with the timeline and the tables
              tracked.json      ◄── which of them are done

It comes after the last step and reads only files, so it can be made again at any time:

    python -m microp.tracking [FOLDER]      mirror what has not been mirrored yet

Under a `wandb agent` the summary run, and no other, is the agent's own run.
"""

from __future__ import annotations

import argparse
import netrc
import os
import shutil
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlparse

import yaml

from microp import render
from microp.records import attempts, read_json, read_rows, read_spans, write_json
from microp.replay import predict, schedule_of

MODES = ("offline", "online", "disabled")
AGENT = ("WANDB_RUN_ID", "WANDB_SWEEP_ID", "WANDB_SWEEP_PARAM_PATH")  # what `wandb agent` gives a process it starts
SPAN = ("rank", "op", "stage", "microbatch", "start_ms", "end_ms", "ready_ms")


@dataclass
class TrackingSettings:
    """What a user chooses.

    Attributes:
        mode: `offline` (files, no account, no connection), `online` or `disabled`.
        project: the W&B project.
        entity: the W&B team or user; None for the account's own.
        tags: words to find the runs by.
    """

    mode: str
    project: str
    entity: str | None
    tags: list[str]

    def problems(self) -> list[str]:
        """What is wrong, a sentence each."""
        if self.mode not in MODES:
            return [f"tracking.mode={self.mode} is not one of {', '.join(MODES)}"]
        if self.mode == "online" and not _has_key():
            return [
                "tracking=online needs a W&B key: set WANDB_API_KEY or run `wandb login`, "
                "or use tracking=offline and `wandb sync` later"
            ]
        return []


def _has_key() -> bool:
    if os.environ.get("WANDB_API_KEY"):
        return True
    host = urlparse(os.environ.get("WANDB_BASE_URL", "https://api.wandb.ai")).hostname or ""
    try:
        return netrc.netrc(os.environ.get("NETRC")).authenticators(host) is not None
    except (OSError, netrc.NetrcParseError):
        return False


def take_agent() -> dict[str, str]:
    """What a `wandb agent` says of the run it wants, for `env.json`; empty if none started this process.

    It is taken out of the environment: only one run of one attempt may be the agent's.
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
        settings: where to.
        folder: the runs go to `folder/wandb`.

    Raises:
        Exception: whatever W&B raises. What was mirrored until then is remembered.
    """
    if settings.mode == "disabled":
        return
    done: dict[str, str] = read_json(path) if (path := attempt / "tracked.json").exists() else {}
    uid, agent = read_json(attempt / "status.json")["uid"], read_json(attempt / "env.json").get("wandb_agent", {})
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
    """W&B's environment for the time of the mirroring: no agent's; offline, it resolves no host name."""
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
    """Set environment variables; None takes one away."""
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
    "x_save_requirements": False,  # half the time of a run; versions are in env.json
}


def _mirror_one(attempt: Path, settings: TrackingSettings, folder: Path, name: str, uid: str) -> None:
    import wandb  # half a second, so not before it is needed

    for half_done in (folder / "wandb").glob(f"offline-run-*-{uid}"):
        shutil.rmtree(half_done)
    config, env = _read_config(attempt), read_json(attempt / "env.json")
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
            summary = read_json(attempt / "summary.json")
            _log_exhibits(run, attempt, summary)
            run.summary.update(summary)
    finally:
        run.finish()


def _read_config(attempt: Path) -> Any:
    """`config.yaml`, by the parser in C where there is one: a tenth of the time."""
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    return yaml.load((attempt / "config.yaml").read_text(), loader)


def _all_rows(attempt: Path) -> list[list[dict[str, Any]]]:
    """The rows of each rank."""
    return [read_rows(attempt, rank) for rank in range(len(list(attempt.glob("steps.rank*.jsonl"))))]


def _whole_steps(attempt: Path) -> Iterator[dict[str, Any]]:
    """A row for each step that all ranks ended: the slowest rank's time, and the batch's loss."""
    for rows in zip(*_all_rows(attempt), strict=False):
        losses = [row["loss"] for row in rows if row["loss"] is not None]
        slowest = max(row["step_ms"] for row in rows)
        yield {"step": rows[0]["step"], "phase": rows[0]["phase"], "step_ms": slowest, "loss": sum(losses)}


def _log_exhibits(run: Any, attempt: Path, summary: dict[str, Any]) -> None:
    """The last measured step as a picture and as a table of spans, and the rows of all ranks as a table."""
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
        schedule = schedule_of(spans, summary["schedule"])
        # a failed attempt may have left the trace of some ranks only, which nothing can be predicted from
        predicted = {"predicted": predict(schedule, spans)} if summary["time_ms"] else {}
        with tempfile.NamedTemporaryFile(suffix=".png") as file:
            render.picture({**predicted, "measured": spans}, Path(file.name))
            run.log({"timeline": wandb.Image(file.name)})
    run.log(found)


def _who(rows: list[dict[str, Any]]) -> dict[str, int]:
    """Which rank it is, of which pipeline."""
    return {key: row[key] for row in rows[:1] for key in ("rank", "replica")}


def _stages(rows: list[dict[str, Any]]) -> list[int]:
    """The stages a rank holds, as its rows name them: `0F`, `0B`, ..."""
    return sorted({int(name[:-1]) for row in rows[:1] for name in row["action_ms"]})


def main(arguments: list[str] | None = None) -> int:
    """Mirror every attempt below a folder that has not been mirrored yet."""
    parser = argparse.ArgumentParser(prog="python -m microp.tracking", description=main.__doc__)
    parser.add_argument("folder", nargs="?", default="outputs", type=Path, help="default: outputs")
    parser.add_argument("--mode", choices=MODES[:2], help="instead of the mode the run was started with")
    options = parser.parse_args(arguments)
    if not options.folder.is_dir():
        parser.error(f"{options.folder} is not a folder: give outputs, a run or an attempt")
    failed = 0
    found = attempts(options.folder)
    for number, attempt in enumerate(found, start=1):
        config = _read_config(attempt)
        settings = TrackingSettings(**config["tracking"])
        settings.mode = options.mode or settings.mode
        if settings.problems():
            parser.error(settings.problems()[0])
        try:
            mirror(attempt, settings, attempt.parents[2])
            print(f"{number}/{len(found)} {attempt}: {'disabled' if settings.mode == 'disabled' else 'mirrored'}")
        except Exception as error:  # W&B raises of its own accord; the other attempts go on
            failed += 1
            print(f"{number}/{len(found)} {attempt}: {error}", file=sys.stderr)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
