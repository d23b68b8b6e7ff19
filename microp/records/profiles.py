"""Writes, reads and finds the profiles of models, `outputs/profiles/<model>-<hash>.yaml`."""

from __future__ import annotations

import hashlib
import json
from functools import lru_cache
from pathlib import Path

import yaml

from microp.profiling import Machine, Profile, model_problem, read_plain, to_plain
from microp.records.files import write_text
from microp.settings import ADAM, AS_WRITTEN, Computing, ModelSettings, OptimizerSettings

_Loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


class ProfileError(ValueError):
    """A file is not a profile that can be used; the message names it."""


def write_profile(folder: Path, profile: Profile) -> Path:
    """Write a profile into `folder` in place of an older one of the same question; return its path.

    There is one file per model, machine and batch size.
    """
    name, others = profile.model["name"], [] if profile.optimizer_kind == ADAM.kind else [profile.optimizer_kind]
    known_by = [profile.machine, dict(profile.model), profile.batch_size, *others, *profile.computing.words]
    asked = json.dumps(known_by, sort_keys=True, default=str)
    path = folder / f"{name}-{hashlib.sha256(asked.encode()).hexdigest()[:8]}.yaml"
    folder.mkdir(parents=True, exist_ok=True)
    text = yaml.safe_dump(to_plain(profile), sort_keys=False, default_flow_style=None, width=120, allow_unicode=True)
    write_text(path, f"# Times of {name} on {profile.machine}; made by python -m microp.profile\n{text}")
    return path


def read_profile(path: Path) -> Profile:
    """Return the profile in a file.

    Raises:
        ProfileError: there is no such file, or it is no profile.
    """
    try:
        return _read(path, path.stat().st_mtime_ns)
    except (OSError, ValueError, RecursionError, yaml.YAMLError) as error:
        why = getattr(error, "strerror", None) or " ".join(str(error).split())[:120]
        raise ProfileError(f"profile={path} is not a profile ({why}): python -m microp.profile makes one") from error


@lru_cache(maxsize=64)
def _read(path: Path, _changed: int) -> Profile:
    return read_plain(yaml.load(path.read_text(), _Loader), str(path))


def find_profile(
    folder: Path,
    machine: Machine,
    model: ModelSettings,
    batch_size: int,
    optimizer: OptimizerSettings = ADAM,
    computing: Computing = AS_WRITTEN,
) -> Profile | None:
    """Return the profile of a model on this kind of machine made with the nearest batch size; None if none was."""
    profiles = []
    for path in sorted(folder.glob(f"{model.name}-*.yaml")):
        try:
            profile = read_profile(path)
        except ProfileError:
            continue
        is_same = profile.machine == machine and profile.optimizer_kind == optimizer.kind
        if is_same and model_problem(profile, model, computing) is None:
            profiles.append(profile)
    return min(profiles, key=lambda profile: abs(profile.batch_size - batch_size), default=None)
