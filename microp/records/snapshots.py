"""Finds, checks and removes snapshots, which `worker.snapshot` writes. No torch is needed for that.

::

    outputs/runs/<run>/attempt-<n>/
        snapshots/step-15/           the training after 15 steps
            layer-0.pt ...           a layer's weights and their optimizer's state
            snapshot.json            what is trained, and how far
        snapshots/.step-20.draft/    one that is being written
        weights.pt                   the trained weights, if they were asked for

A snapshot is written as a draft, whose files are passed to the disk before it gets its name. So every folder
`step-<n>` is whole, and older ones are removed only after that. What a training will do next follows from its weights,
the optimizer's state, the seed and the step: batches and dropout masks are drawn from the last two, so neither the
position in the data nor the state of a random generator has to be saved.
"""

from __future__ import annotations

import shutil
import time
import zipfile
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

from microp.job import Job, Snapshot
from microp.records.recorder import write_json
from microp.records.records import RecordError, attempts, check_attempt, number_of, read_record, read_status
from microp.settings import ADAM, AS_WRITTEN
from microp.system import flatten

FORMAT = 1
MANIFEST = "snapshot.json"
WEIGHTS = "weights.pt"
OTHER = "remove the snapshot, or go on from another one"


def snapshot_folder(attempt: Path, step: int) -> Path:
    """Return the folder of an attempt's snapshot after `step` steps."""
    return attempt / "snapshots" / f"step-{step}"


def draft_of(path: Path) -> Path:
    """Return where a file or a folder is written before it gets its name."""
    return path.with_name(f".{path.name}.draft")


def layer_file(folder: Path, layer: int) -> Path:
    """Return the file of one layer of the model in a snapshot."""
    return folder / f"layer-{layer}.pt"


def snapshots_of(attempt: Path) -> list[Path]:
    """Return the whole snapshots of an attempt, the oldest first."""
    folders = (folder for folder in (attempt / "snapshots").glob("step-*") if folder.name[len("step-") :].isdigit())
    return sorted(folders, key=_steps)


def _steps(folder: Path) -> int:
    """Return how many steps a snapshot has, by its name."""
    return int(folder.name.removeprefix("step-"))


def write_manifest(folder: Path, job: Job, step: int, last_batch: list[int] | None = None) -> None:
    """Write what is trained and how far: the last file of a snapshot. `last_batch`: see `last_batch`."""
    origin = {"format": FORMAT, "run_id": job.run_id, "step": step, "saved": time.time()}
    own = {"last_batch": last_batch} if last_batch else {}
    write_json(folder / MANIFEST, {**origin, **own, "training": _training(job)})


def last_batch(folder: Path) -> list[int] | None:
    """Return checksums of the inputs and the targets of the last step before a snapshot; None if it has none.

    They are there for a model with data of its own: rows may follow from what its function keeps, and not from the step
    alone.
    """
    checksums: list[int] | None = _manifest(folder).get("last_batch")
    return checksums


def _training(job: Job) -> dict[str, Any]:
    """Return the part of a job that all runs of one training share; the ranks and their order are not in it."""
    return {
        "model": job.model.identity,
        "data": asdict(job.data),
        "batch_size": job.batch_size,
        "learning_rate": job.learning_rate,
        "seed": job.seed,
        **({} if job.optimizer == ADAM else {"optimizer": asdict(job.optimizer)}),
        **{key: value for key, value in asdict(job.computing).items() if value != getattr(AS_WRITTEN, key)},
    }


def unfinished_snapshot(run: Path, steps: int) -> Snapshot | None:
    """Return a run's snapshot with the most steps, but less than `steps`; None if there is none.

    Only attempts count that were made after the run's last finished one.

    Raises:
        RecordError: the snapshot cannot be read.
    """
    found = [folder for attempt in _unfinished(run) for folder in snapshots_of(attempt) if _steps(folder) < steps]
    return _open(max(found, key=_steps)) if found else None


def finished(run: Path, after: int = 0, *, final: bool = False) -> Path | None:
    """Return a run's last finished attempt, or None; `after`: of a higher number; `final`: with trained weights."""
    for attempt in reversed(attempts(run)):
        if number_of(attempt) <= after:
            return None
        with suppress(RecordError):  # an attempt that cannot be read answers nothing: the point runs again
            if read_status(attempt)["status"] == "finished":
                check_attempt(attempt)
                if not final or (attempt / WEIGHTS).exists():
                    return attempt
    return None


def _unfinished(run: Path) -> Iterator[Path]:
    """Yield the attempts of a run that were made after its last finished one, the newest first."""
    for attempt in reversed(attempts(run)):
        with suppress(RecordError):
            if read_status(attempt)["status"] == "finished":
                return
        yield attempt


def find_snapshot(path: Path) -> Snapshot:
    """Return the snapshot in this folder, or the newest one of this attempt or run.

    Raises:
        RecordError: there is none, or it cannot be read.
    """
    if not path.is_dir():
        raise RecordError(f"{path} is not a folder: give the folder of a snapshot, of an attempt or of a run")
    if (path / MANIFEST).exists():
        return _open(path)
    for attempt in (path, *reversed(attempts(path))):
        if found := snapshots_of(attempt):
            return _open(found[-1])
    raise RecordError(f"{path} has no snapshot: give the folder of a snapshot, of an attempt or of a run")


def about(snapshot: Snapshot, attempt: Path) -> dict[str, Any]:
    """Return the step and the folder from which an attempt goes on; below its own `runs` as `<run>/attempt-<n>/...`."""
    runs, folder = attempt.resolve().parents[1], Path(snapshot.folder).resolve()
    inside = folder.is_relative_to(runs)
    return {"step": snapshot.step, "snapshot": str(folder.relative_to(runs) if inside else folder)}


def _open(folder: Path) -> Snapshot:
    return Snapshot(str(folder), _manifest(folder)["step"])


def _manifest(folder: Path) -> dict[str, Any]:
    path = folder / MANIFEST
    manifest = read_record(path, ("format", "step", "training"), OTHER)
    if manifest["format"] > FORMAT:
        raise RecordError(
            f"{path} has format={manifest['format']}, and this microp reads up to {FORMAT}: update microp"
        )
    return manifest


def snapshot_problem(snapshot: Snapshot, job: Job) -> str | None:
    """Return why a job cannot go on from a snapshot, in one sentence; every byte of the snapshot is read."""
    folder = Path(snapshot.folder)
    try:
        saved, here = flatten(_manifest(folder)["training"]), flatten(_training(job))
        if other := [key for key in {**here, **saved} if here.get(key) != saved.get(key)]:
            theirs, ours = (", ".join(f"{key}={values.get(key)}" for key in other) for values in (saved, here))
            return f"{folder} is of another training: it has {theirs}, this run has {ours}: give the same values"
        if snapshot.step >= job.training_steps:
            return (
                f"{folder} has {snapshot.step} steps, which are all {job.training_steps} of this run "
                f"(warmup_steps={job.warmup_steps}, steps={job.steps}): give more steps"
            )
        for layer in range(job.model.layers):
            if not _is_whole(path := layer_file(folder, layer)):
                return f"{path} is missing, or not as it was written: {OTHER}"
    except RecordError as error:
        return str(error)
    return None


def _is_whole(path: Path) -> bool:
    """Return whether every byte of a layer's file is as it was written: torch's files have checksums."""
    try:
        with zipfile.ZipFile(path) as parts:
            return parts.testzip() is None
    except (OSError, zipfile.BadZipFile, ValueError, EOFError, NotImplementedError, RuntimeError):
        return False


def remove_older(attempt: Path, keep: int, resumed: Snapshot | None) -> None:
    """Remove all but the newest `keep` snapshots of the attempt that runs.

    Those of earlier attempts up to the snapshot of the same run from which this one has `resumed` are older ones too.
    """
    older: list[Path] = []
    if resumed:
        for earlier in _unfinished(attempt.parent):
            if earlier != attempt:
                older += (folder for folder in snapshots_of(earlier) if _steps(folder) <= resumed.step)
                remove_drafts(earlier)
    for folder in [*sorted(older, key=_steps), *snapshots_of(attempt)][:-keep]:
        remove(folder)


def remove(path: Path) -> None:
    """Remove a folder, a snapshot or a draft of one; it stops being a snapshot at once."""
    doomed = path
    if not path.name.startswith("."):
        doomed = draft_of(path)
        path.rename(doomed)
    shutil.rmtree(doomed, ignore_errors=True)


def remove_drafts(attempt: Path) -> None:
    """Remove what an attempt that has ended was still writing."""
    for draft in (*attempt.glob(".*.draft"), *attempt.glob("snapshots/.*.draft")):
        if draft.is_dir():
            remove(draft)
        else:
            draft.unlink(missing_ok=True)
