"""The model that is trained: its layers, its batches, and stages with their forward and backward.

::

    ModelSettings ─ build_model ─► layers ─► Stage ── forward, backward, weight_gradient
    DataSettings  ─ open_data ───► batches ──┘

A user's model function imports `Layers` and, for a model that does not embed its tokens, `Bits` from here.
"""

from microp.model.autocast import open_autocast
from microp.model.building import build_model
from microp.model.data import Windows, library_text, open_data
from microp.model.inspection import inspect_layers
from microp.model.layers import Bits, Model
from microp.model.lowered_types import lowered_types
from microp.model.own import Layers, code_of
from microp.model.randomness import Dropout, Random, random_parts
from microp.model.stage import Batch, Stage
from microp.model.weight_gradients import SMALL, adds_in_product

__all__ = [
    "SMALL",
    "Batch",
    "Bits",
    "Dropout",
    "Layers",
    "Model",
    "Random",
    "Stage",
    "Windows",
    "adds_in_product",
    "build_model",
    "code_of",
    "inspect_layers",
    "library_text",
    "lowered_types",
    "open_autocast",
    "open_data",
    "random_parts",
]
