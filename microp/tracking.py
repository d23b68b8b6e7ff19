"""Weights & Biases as a mirror of the run folder: one run a rank, one summary run a point.

::

    attempt-1/steps.rank0.jsonl ──► run   group = <run id>/attempt-1   job_type = rank
              steps.rank1.jsonl ──► run   group = <run id>/attempt-1   job_type = rank
              summary.json      ──► run   group = <run id>/attempt-1   job_type = summary
              tracked.json      ◄── which of them are done

It comes after the last step and reads only files, so it can be made again at any time:

    python -m microp.tracking [FOLDER]      mirror what has not been mirrored yet
"""

from __future__ import annotations

import argparse
import netrc
import os
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlparse

import yaml

from microp.records import attempts, read_json, read_rows, write_json

MODES = ("offline", "online", "disabled")


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
    status = read_json(attempt / "status.json")
    ranks = range(len(list(attempt.glob("steps.rank*.jsonl"))))
    names = [*(f"rank{rank}" for rank in ranks), "summary"]
    with _quiet(settings.mode):
        for name in names:
            if name in done or (name == "summary" and not (attempt / "summary.json").exists()):
                continue
            _mirror_one(attempt, settings, folder, name, f"{status['uid']}-{name}")
            done[name] = f"{status['uid']}-{name}"
            write_json(attempt / "tracked.json", done)


@contextmanager
def _quiet(mode: str) -> Iterator[None]:
    """W&B's environment for the time of the mirroring: offline, it resolves no host name."""
    wanted = {"WANDB_SILENT": "true"}
    if mode == "offline":
        wanted |= {"WANDB_MODE": "offline", "WANDB_ERROR_REPORTING": "false"}
    before = {key: os.environ.get(key) for key in wanted}
    os.environ.update(wanted)
    try:
        yield
    finally:
        for key, value in before.items():
            if value is None:
                del os.environ[key]
            else:
                os.environ[key] = value


def _mirror_one(attempt: Path, settings: TrackingSettings, folder: Path, name: str, uid: str) -> None:
    import wandb  # half a second, so not before it is needed

    for half_done in (folder / "wandb").glob(f"offline-run-*-{uid}"):
        shutil.rmtree(half_done)
    config = yaml.safe_load((attempt / "config.yaml").read_text())
    rank = None if name == "summary" else int(name.removeprefix("rank"))
    rows = [] if rank is None else read_rows(attempt, rank)
    run = wandb.init(
        project=settings.project,
        entity=settings.entity,
        dir=str(folder),
        id=uid,
        name=f"{attempt.parent.name}/{name}",
        group=f"{attempt.parent.name}/{attempt.name}",
        job_type="summary" if rank is None else "rank",
        tags=settings.tags or None,
        config=config if rank is None else {**config, "rank": rank, "stages": _stages(rows)},
        mode="offline" if settings.mode == "offline" else "online",
        reinit="create_new",
        settings=wandb.Settings(console="off", silent=True, x_disable_stats=True, disable_git=True, save_code=False),
    )
    try:
        run.define_metric("step")
        run.define_metric("*", step_metric="step")
        for row in rows:
            run.log(row)
        if rank is None:
            run.summary.update(read_json(attempt / "summary.json"))
    finally:
        run.finish()


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
        config = yaml.safe_load((attempt / "config.yaml").read_text())
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
