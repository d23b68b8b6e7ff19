"""Chooses the model that settings describe."""

from __future__ import annotations

from microp.model.layers import Gpt, Mlp, Model
from microp.model.own import OwnModel
from microp.settings import GptSettings, ModelSettings, OwnSettings


def build_model(settings: ModelSettings) -> Model:
    """Return the model that the settings describe; no layer is built before `Model.build` is called."""
    if isinstance(settings, OwnSettings):
        return OwnModel(settings)
    return Gpt(settings) if isinstance(settings, GptSettings) else Mlp(settings)
