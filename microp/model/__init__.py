"""The model that is trained: its layers, its batches, and stages with their forward and backward.

::

    ModelSettings ─ build_model ─► layers ─► Stage ── forward, backward, weight_gradient
    DataSettings  ─ open_batches ► batches ──┘

A user's model function imports `Layers` and, for a model that does not embed its tokens, `Bits` from here.
"""

from microp.model.autocast import fake_tensors, lowered_types, open_autocast
from microp.model.data import library_text, open_batches, open_data
from microp.model.inspection import check_apart, inspect_layers, number_of_weights
from microp.model.layers import Bits, Model
from microp.model.own import Layers, build_model, code_of
from microp.model.randomness import Dropout, generator_states, random_parts, seeded
from microp.model.slices import Sliced
from microp.model.stage import Batch, Stage
from microp.model.watch import memory_of, unchanged
from microp.model.weight_gradients import SMALL, adds_in_product
