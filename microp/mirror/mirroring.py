"""Mirrors a run folder to Weights & Biases: one W&B run per rank, and one summary run per attempt.

::

    attempt-1/steps.rank0.jsonl ──► rank0 1f1b-m8-k2-...     id r0-1f1b-m8-k2-<uid>   job_type = rank
              steps.rank1.jsonl ──► rank1 1f1b-m8-k2-...     id r1-1f1b-m8-k2-<uid>   job_type = rank
              summary.json      ──► summary 1f1b-m8-k2-...   id summary-1f1b-m8-k2-<uid>   with timeline and tables
              + all rows, spans
              tracked.json      ◄── the W&B runs that are complete

All of them have the group `<run id>/attempt-1`. Only files are read, so it can be done at any time: after the last
step, while the rows are written, or later:

    python -m microp.tracking [FOLDER]               mirror what is not complete yet
    python -m microp.tracking [FOLDER] --follow      and what runs, until it has ended

Under a `wandb agent` only the summary run is the agent's own run.
"""

from __future__ import annotations

import os
import shutil
import tempfile
import time
from pathlib import Path
from typing import Any

from microp.mirror.content import Charts, run_summary
from microp.mirror.files import SUMMARY, completed, files_of, wandb_names, wandb_uid
from microp.records import RUNNING, check_attempt, read_env, read_status, read_summary, read_traced_step, write_json
from microp.settings import TrackingSettings
from microp.trace import DRAWN, MOMENTS, figure

POLL_S = 2.0  # between two looks at the rows; seldom, because the ranks need the cores


def mirror(attempt: Path, settings: TrackingSettings, folder: Path, *, follow: bool = False) -> list[str]:
    """Make or complete the W&B runs of an attempt that are not complete yet; W&B's files go to `folder/wandb`.

    With `follow`, as long as the attempt runs, its rows are logged as they are written.

    Returns:
        the names of the W&B runs that were completed now: `rank0`, ..., `summary`.

    Raises:
        RecordError: a newer microp wrote the attempt, or it is damaged; nothing is mirrored then.
        Exception: whatever W&B raises; the W&B runs completed before it are in `tracked.json`.
    """
    if settings.mode == "disabled":
        return []
    # 1. log what is written meanwhile
    charts, runs = Charts(attempt), dict[str, WandbRun]()
    while follow and read_status(attempt)["status"] == RUNNING:
        for name in wandb_names(attempt):
            if name not in runs:
                runs[name] = WandbRun(attempt, charts, settings, folder, name)
            runs[name].log_new_rows()
        time.sleep(POLL_S)
    # 2. log the rest, and what is known only after the last step
    check_attempt(attempt)
    done, made = completed(attempt), []
    for name in wandb_names(attempt):
        if name in done or (name == SUMMARY and not (attempt / "summary.json").exists()):
            continue
        run = runs.pop(name, None) or WandbRun(attempt, charts, settings, folder, name)
        try:
            run.log_new_rows()
            run.log_summary()
        finally:
            run.close(failed=name == SUMMARY and read_status(attempt)["status"] != "finished")
        done[name] = run.uid
        write_json(attempt / "tracked.json", done)
        made.append(name)
    # 3. of an attempt that was killed, the summary run
    for run in runs.values():
        run.close(failed=True)
    return made


_PLAIN: dict[str, Any] = {
    "console": "off",
    "silent": True,
    "disable_git": True,
    "save_code": False,
    "x_disable_meta": True,  # the command, with its secrets, and the variables of Slurm, of which one is a token
    "x_save_requirements": False,  # takes half the time of a W&B run; versions are in the configuration
}


class WandbRun:
    """One W&B run of an attempt, `rank<r>` or `summary`, to which rows are logged as they come; `uid` is its id."""

    def __init__(self, attempt: Path, charts: Charts, settings: TrackingSettings, folder: Path, name: str) -> None:
        online = settings.mode == "online"
        if not online:
            os.environ.setdefault("WANDB_ERROR_REPORTING", "false")  # else W&B looks up a host name when it is imported
        import wandb  # takes half a second

        self._attempt, self._charts = attempt, charts
        self._rank = None if name == SUMMARY else int(name.removeprefix("rank"))
        self._logged: list[dict[str, Any]] = []  # one for each step
        env = read_env(attempt)
        agent, experiment = env.get("wandb_agent", {}), env.get("experiment")
        is_agents = bool(agent) and self._rank is None
        charts.read_new_rows()
        self._config = charts.run_config(self._rank)
        self.uid = wandb_uid(attempt, name)
        for half_way in files_of(self.uid, folder):  # what failed before its end
            shutil.rmtree(half_way)
        self._run = wandb.init(
            project=agent.get("project", settings.project),
            entity=agent.get("entity", settings.entity),
            dir=str(folder),
            id=self.uid,
            resume="allow" if online and not is_agents else None,
            name=f"{name} {attempt.parent.name} {attempt.name}",
            group=f"{attempt.parent.name}/{attempt.name}",
            job_type=SUMMARY if self._rank is None else "rank",
            tags=[*settings.tags, *([experiment] if experiment else [])] or None,
            config=self._config,
            mode="online" if online else "offline",
            reinit="create_new",
            settings=wandb.Settings(
                **_PLAIN,
                x_disable_stats=not (settings.system_metrics and self._rank is None),
                sweep_id=agent.get("sweep_id") if is_agents else None,
            ),
        )
        self._skip = self._run.starting_step if online else 0  # rows that a process before this one has logged
        self._run.define_metric("step")
        self._run.define_metric("*", step_metric="step")

    def log_new_rows(self) -> None:
        """Log the steps that all ranks have ended since the last call."""
        charts = self._charts
        charts.read_new_rows()
        for rows in charts.steps(len(self._logged)):
            self._log(charts.of_all(rows) if self._rank is None else charts.of_rank(rows[self._rank], rows))

    def _log(self, charted: dict[str, Any]) -> None:
        """Log one step, unless a process before this one has."""
        self._logged.append(charted)
        if len(self._logged) > self._skip:
            self._run.log(charted)

    def log_summary(self) -> None:
        """Log what is known after the last step; the summary run also gets the timeline and the tables."""
        if (known := self._charts.run_config(self._rank)) != self._config:  # of a run that was followed
            config: Any = self._run.config
            config.update(known, allow_val_change=True)
        if self._rank is not None:
            for row in self._charts.rows[self._rank][len(self._logged) :]:  # another rank failed, and did not end them
                self._log(self._charts.of_rank(row, ()))
            self._run.summary.update(self._charts.rank_summary(self._rank, self._logged))
            return
        summary = read_summary(self._attempt)
        self._log_exhibits(summary)
        self._run.summary.update(run_summary(summary))

    def close(self, failed: bool) -> None:
        """End the W&B run; the summary run of a failed attempt has failed, so that a sweep sees it."""
        self._run.finish(exit_code=int(failed))

    def _log_exhibits(self, summary: dict[str, Any]) -> None:
        """Log the last measured step as a picture and as a table of spans, and the rows of all ranks as a table."""
        import wandb

        exhibits: dict[str, Any] = {}
        if rows := [row for of_rank in self._charts.rows for row in of_rank]:
            columns: list[Any] = list(dict.fromkeys(key for row in rows for key in row if key != "action_ms"))
            exhibits["steps"] = wandb.Table(columns, [[row.get(key) for key in columns] for row in rows])
        with tempfile.TemporaryDirectory() as folder:
            if step := read_traced_step(self._attempt, summary):
                spans = step.panels["measured"]
                begin = min(span.start for span in spans)
                lines = [[*span[:4], *((moment - begin) / 1e6 for moment in span[4:])] for span in spans]
                columns = ["rank", "op", "stage", "microbatch", *(f"{moment}_ms" for moment in MOMENTS)]
                exhibits["spans"] = wandb.Table(columns, list(lines))
                if sum(map(len, step.panels.values())) <= DRAWN:
                    [file] = figure(step.panels, "", Path(folder) / "timeline", sums=step.sums, endings=["png"])
                    exhibits["timeline"] = wandb.Image(str(file))
            if exhibits:
                at = {"_timestamp": self._logged[-1]["_timestamp"]} if self._logged else {}
                self._run.log(exhibits | at)
