"""Tells whether a profile is of what a run computes."""

from __future__ import annotations

from microp.planner.profile import Profile
from microp.settings import Computing, ModelSettings


def model_problem(profile: Profile, model: ModelSettings, computing: Computing) -> str | None:
    """Return how the profile's model, or how it computed, differs from a run's; None if it does not."""
    mine = model.identity
    for key in dict.fromkeys([*mine, *profile.model]):
        if mine.get(key) != profile.model.get(key):
            return f"it is of model.{key}={profile.model.get(key)}, this run has model.{key}={mine.get(key)}"
    if differs := profile.computing.difference(computing):
        return f"it is of {differs}"
    lacking = sorted(set(model.kinds) - set(profile.layers))
    return f"it lacks layer {lacking[0]}" if lacking else None
