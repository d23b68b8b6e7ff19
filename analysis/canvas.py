"""Draws a figure as SVG and PNG, laid out and drawn once for both.

::

    artists ── lines, markers, texts, in units of 1/72 inch ──► RendererSVG ──► .svg
                             └── the same, enlarged ──────────► RendererAgg ──► .png

Layout and the artists' own computations take most of a figure's time, not the files. Both files have the layout of
the SVG. Images and gradients are not drawn, and no figure here has one.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.backend_bases import FigureCanvasBase, RendererBase
from matplotlib.backends.backend_agg import RendererAgg
from matplotlib.backends.backend_svg import RendererSVG
from matplotlib.figure import Figure
from matplotlib.font_manager import FontProperties
from matplotlib.image import imsave
from matplotlib.textpath import TextPath
from matplotlib.transforms import Affine2D, Bbox, Transform, TransformedPath

from analysis import fitting

UNITS = 72  # of an SVG, per inch
COMPRESSION = 3  # of a PNG; Pillow's own level, 6, takes twice the time


def write(figure: Figure, vector: Path, pixels: Path) -> None:
    """Write a figure as SVG into the file `vector` and as PNG into the file `pixels`."""
    figure.dpi = UNITS
    for axes in figure.axes:
        for axis in (axes.xaxis, axes.yaxis):
            if not axis.label.get_text():
                axis.set_label_coords(0.5, 0.5)  # else matplotlib finds out several times where an empty name belongs
    dpi = mpl.rcParams["savefig.dpi"]
    width, height = figure.get_size_inches()
    with vector.open("w", encoding="utf-8") as file:
        nothing: Any = {"Date": None, "Creator": None}
        lines: Any = RendererSVG(width * UNITS, height * UNITS, file, image_dpi=UNITS, metadata=nothing)  # type: ignore[no-untyped-call]
        picture: Any = RendererAgg(width * dpi, height * dpi, dpi)  # type: ignore[no-untyped-call]
        figure.draw(_Canvas(figure, _Renderer(lines, picture)).get_renderer())
        lines.finalize()
    imsave(pixels, picture.buffer_rgba(), format="png", dpi=dpi, pil_kwargs={"compress_level": COMPRESSION})


class _Renderer(RendererBase):
    """Passes on what is drawn to a renderer of an SVG, and enlarged to one of pixels. Texts have no mathematics."""

    def __init__(self, lines: Any, picture: Any) -> None:
        super().__init__()
        self.lines, self.picture = lines, picture
        self.scale = picture.dpi / UNITS
        self.enlarge = np.diag((self.scale, self.scale, 1.0))

    def draw_path(self, gc: Any, path: Any, transform: Any, *fill: Any) -> None:
        self.lines.draw_path(gc, path, transform, *fill)
        with self._enlarged_clip(gc):
            self.picture.draw_path(gc, path, self._enlarged(transform), *fill)

    def draw_markers(self, gc: Any, marker: Any, marker_trans: Any, path: Any, trans: Any, *fill: Any) -> None:
        self.lines.draw_markers(gc, marker, marker_trans, path, trans, *fill)
        with self._enlarged_clip(gc):
            self.picture.draw_markers(gc, marker, self._enlarged(marker_trans), path, self._enlarged(trans), *fill)

    def draw_path_collection(  # type: ignore[override]
        self, gc: Any, trans: Any, paths: Any, own: Any, offsets: Any, offset_trans: Any, *looks: Any, **hatches: Any
    ) -> None:
        self.lines.draw_path_collection(gc, trans, paths, own, offsets, offset_trans, *looks, **hatches)
        trans, offset_trans = self._enlarged(trans), self._enlarged(offset_trans)
        with self._enlarged_clip(gc):
            self.picture.draw_path_collection(gc, trans, paths, own, offsets, offset_trans, *looks, **hatches)

    def draw_text(
        self, gc: Any, x: float, y: float, s: str, prop: Any, angle: float, ismath: Any = False, mtext: Any = None
    ) -> None:
        self.lines.draw_text(gc, x, y, s, prop, angle, ismath, mtext)
        gc.set_linewidth(0)
        gc.set_snap(False)
        place = Affine2D().rotate_deg(angle).translate(x, self.lines.height - y)
        with self._enlarged_clip(gc):
            self.picture.draw_path(gc, _outlines(s, prop), self._enlarged(place), gc.get_rgb())

    def get_text_width_height_descent(self, s: str, prop: Any, ismath: Any) -> tuple[float, float, float]:
        return fitting.extent(s, prop)

    def get_canvas_width_height(self) -> tuple[float, float]:
        return self.lines.width, self.lines.height

    def open_group(self, s: str, gid: str | None = None) -> None:
        self.lines.open_group(s, gid)

    def close_group(self, s: str) -> None:
        self.lines.close_group(s)

    def _enlarged(self, transform: Transform) -> Affine2D:
        return Affine2D(self.enlarge @ transform.get_matrix())

    @contextmanager
    def _enlarged_clip(self, gc: Any) -> Iterator[None]:
        """Enlarge the region to which a graphics context is clipped. Its widths of lines are points in both files."""
        box, (path, transform) = gc.get_clip_rectangle(), gc.get_clip_path()
        if box is not None:
            gc.set_clip_rectangle(Bbox(self.scale * np.asarray(box)))
        if path is not None:
            gc.set_clip_path(TransformedPath(path, self._enlarged(transform)))
        yield
        gc.set_clip_rectangle(box)
        if path is not None:
            gc.set_clip_path(TransformedPath(path, transform))


@cache
def _outlines(text: str, font: FontProperties) -> TextPath:
    """Return the outlines of a line of text; Agg fills them in a fraction of the time that its letters take."""
    return TextPath((0, 0), text, prop=font)


class _Canvas(FigureCanvasBase):
    """The canvas of a figure whose layout measures texts with the renderer that draws them."""

    def __init__(self, figure: Figure, renderer: _Renderer) -> None:
        super().__init__(figure)
        self.renderer = renderer

    def get_renderer(self) -> _Renderer:
        return self.renderer
