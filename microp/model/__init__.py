"""The model that is trained: its layers, its batches, and stages with their forward and backward.

::

    ModelSettings ─ build_model ─► layers ─► Stage ── forward, backward, weight_gradient
    DataSettings  ─ open_data ───► batches ──┘
"""

from microp.model.data import Windows, open_data
from microp.model.layers import Dropout, Model, build_model
from microp.model.split_backward import SMALL
from microp.model.stage import Batch, Stage

__all__ = ["SMALL", "Batch", "Dropout", "Model", "Stage", "Windows", "build_model", "open_data"]
