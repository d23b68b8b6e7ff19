"""Lays out each text of a figure once, where matplotlib does it again each time that it needs the text's size.

::

    layout engine, twice ─┐
    SVG ──────────────────┼─► how large is this label? ─► laid out: 8 times a text, a tenth of the report's time
    PNG ──────────────────┘                          └──► kept, also for the labels of other figures

matplotlib has no public way to keep a layout.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from matplotlib.text import Text

_made: dict[tuple[Any, ...], Any] = {}


@contextmanager
def kept() -> Iterator[None]:
    """Keep the layouts of all texts in such contexts; the files have the same bytes as without."""
    anew: Any = Text._get_layout  # type: ignore[attr-defined]

    def layout(text: Any, renderer: Any) -> Any:
        key = _key(text, renderer)
        if key is None:
            return anew(text, renderer)
        if key not in _made:
            _made[key] = anew(text, renderer)
        return _made[key]

    Text._get_layout = layout  # type: ignore[attr-defined]
    try:
        yield
    finally:
        Text._get_layout = anew  # type: ignore[attr-defined]


def _key(text: Any, renderer: Any) -> tuple[Any, ...] | None:
    """Return what the layout of a text depends on; None if that is also its place."""
    if text.get_wrap() or text.get_transform_rotates_text():
        return None
    return (
        type(renderer),
        text.get_figure(root=True).dpi,
        text.get_text(),
        text.get_fontproperties(),
        text.get_usetex(),
        text.get_parse_math(),
        text.get_rotation(),
        text.get_rotation_mode(),
        text.get_horizontalalignment(),
        text.get_verticalalignment(),
        text._multialignment,
        text._linespacing,
    )
