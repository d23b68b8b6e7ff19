"""The answer to the question of each experiment: one to three sentences, computed from the rows.

::

    outputs/ ── Store ── answers.find("m_sensitivity", store) ──► "Real compute, K = 2, fixed batch: from M = 1
                                                                   to 16 the bubble of gpipe goes from 0.500
                                                                   [0.498, 0.503] to 0.066 ..."

An experiment's module here has the name of the module that draws its figures, and a function `answer(store)`. What
cannot be said from the runs that are there is left out. With too few of them the answer says what is missing, which is
the module's NEEDS, and the command that makes it.
"""

from __future__ import annotations

import importlib

from microp.store import Store, command


def find(name: str, store: Store) -> str:
    """Return the answer to the question of an experiment, or what is missing for one; empty if it has no runs.

    Args:
        name: the name of the experiment's module.
        store: the recorded runs.
    """
    module = importlib.import_module(f"{__name__}.{name}")
    text: str = module.answer(store)
    needs = getattr(module, "NEEDS", "")  # what is over all runs has no question of its own
    if text or not needs or store.runs(name).empty:
        return text
    return (
        f"The finished runs do not answer the question yet: it needs {needs}. `{command(name)}` runs what is missing."
    )
