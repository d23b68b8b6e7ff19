"""The answer to the question of each experiment: one to three sentences, computed from the rows.

::

    outputs/ ── Store ── answers.find("m_sensitivity", store) ──► "Real compute, K = 2, fixed batch: from M = 1
                                                                   to 16 the bubble of gpipe goes from 0.500
                                                                   [0.498, 0.503] to 0.066 ..."

An experiment's module here has the name of the module that draws its figures, and a function `answer(store)`. What
cannot be said from the runs that are there is left out; with too few of them the answer is empty.
"""

from __future__ import annotations

import importlib

from microp.store import Store


def find(name: str, store: Store) -> str:
    """Return the answer to the question of an experiment; empty if there are too few runs to answer it.

    Args:
        name: the name of the experiment's module.
        store: the recorded runs.
    """
    text: str = importlib.import_module(f"{__name__}.{name}").answer(store)
    return text
