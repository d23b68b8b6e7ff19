"""Makes the files from which a W&B server distributes the points of a stored sweep.

::

    stored sweep:  policy: never,except_last      W&B distributes all points of a product and cannot leave
                   drain: fifo,lifo               any out (`skip:`). So the points are divided into few
                                                  products, one per file:
                       never  except_last
                fifo     x        x               grid 1: drain [fifo], policy [never, except_last]
                lifo              x               grid 2: drain [lifo], policy [except_last]
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from functools import cache
from pathlib import Path

import yaml
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.errors import HydraException
from omegaconf.errors import OmegaConfBaseException

from microp.app.config import register_schemas
from microp.app.errors import ConfigError
from microp.app.hydra_internals import composer, expand
from microp.app.hydra_problems import in_a_line
from microp.app.places import CONF, SWEEPS
from microp.app.sweep_parts import PARTS, register_parts

Value = int | float | str
Words = tuple[str, ...]  # a point's overrides, `("chunks=4", "schedule=gpipe")`, in the order of the sweep's axes
Points = frozenset[tuple[str, ...]]  # only the values, `("4", "gpipe")`


@dataclass(frozen=True)
class Grid:
    """One W&B sweep: every combination of its values is a run.

    Attributes:
        name: of the sweep, and of its file.
        description: the part of the stored sweep that it covers.
        command: the command of an agent, without the overrides of a point.
        axes: the values of each parameter.
    """

    name: str
    description: str
    command: tuple[str, ...]
    axes: dict[str, list[Value]]

    def to_yaml(self) -> str:
        """Return the text of a file for `wandb sweep FILE`."""
        content = {
            "name": self.name,
            "description": self.description,
            "program": "microp/run.py",
            "method": "grid",
            "metric": {"name": "step_ms", "goal": "minimize"},  # for `bayes` in place of `grid`
            "command": [*self.command, "hydra.mode=RUN", "tracking=online", "${args_no_hyphens}"],
            "parameters": {key: {"values": values} for key, values in self.axes.items()},
        }
        return yaml.safe_dump(content, sort_keys=False, default_flow_style=None, width=120)


def grids_of(name: str, part: str | None = None, own: Path | None = None) -> list[Grid]:
    """Return the grids whose runs together are those of a stored sweep, or of one of its parts.

    Args:
        name: the stored sweep.
        part: only this part of it, if given.
        own: a further folder of stored sweeps, as given by `-cd`.

    Raises:
        ConfigError: there is no such sweep or part, or it cannot be composed.
    """
    if own is not None and not own.is_dir():
        raise ConfigError([f"{own} is not a folder"])
    register_schemas()
    folders = [SWEEPS, *([own] if own else [])]
    register_parts(*folders)
    mine = own is not None and name in _names(own)
    if not mine and name not in _names(SWEEPS):
        raise _unknown("a stored sweep", name, [each for folder in folders for each in _names(folder)])
    try:
        with composer(CONF, *folders) as hydra:
            points = [tuple(words) for words, node in expand(hydra.sweep(name)) if not node.skip]
    except OmegaConfBaseException as error:
        raise ConfigError([in_a_line(error)]) from error
    except HydraException as error:
        raise ConfigError([str(error)]) from error
    if not points or not points[0]:
        raise ConfigError([f"{name} has no hydra.sweeper.params for a grid: use `microp.run -cn {name}`"])
    if part is not None:
        points = _points_of_part(name, part, points, folders)
    where = ("-cd", str(own)) if mine else ()
    command = ("${env}", "${interpreter}", "-m", "microp.run", *where, "-cn", name)
    return grids_over(name, points, command, f"{name}_{part}" if part else name)


def grids_over(sweep: str, points: Sequence[Words], command: tuple[str, ...], name: str) -> list[Grid]:
    """Return the grids over some points of a stored sweep, in the order of the points."""
    keys = [word.partition("=")[0] for word in points[0]]
    values = [tuple(word.partition("=")[2] for word in words) for words in points]
    order = [list(dict.fromkeys(column)) for column in zip(*values, strict=True)]
    boxes = sorted(divide(frozenset(values)), key=lambda box: min(values.index(point) for point in box))
    grids = []
    for number, box in enumerate(boxes, start=1):
        texts = [[each for each in known if each in held] for known, held in zip(order, _axes(box), strict=True)]
        narrowed = [
            f"{key}={','.join(axis)}"
            for key, axis, known in zip(keys, texts, order, strict=True)
            if len(axis) < len(known)
        ]
        which = f", grid {number} of {len(boxes)}: {' '.join(narrowed)}" if len(boxes) > 1 else ""
        axes = {key: [_typed(key, text) for text in axis] for key, axis in zip(keys, texts, strict=True)}
        called = f"{name}_{number}" if len(boxes) > 1 else name
        grids.append(Grid(called, f"the stored sweep {sweep}{which}", command, axes))
    return grids


@cache
def divide(points: Points) -> tuple[Points, ...]:
    """Return products that together contain each of the points once.

    The points are cut along an axis: values that occur with the same values of the other axes stay together. Every
    piece is then cut along another axis, until it is a product. Of all orders of the axes the one with the fewest
    products is taken; among equals the one whose first cut makes the most pieces, then the one with the largest
    product.
    """
    axes = _axes(points)
    if len(points) == math.prod(map(len, axes)):
        return (points,)
    cuts = [cut for axis in range(len(axes)) if len(cut := _cut(points, axis)) > 1]
    divisions = [(cut, tuple(box for piece in cut for box in divide(piece))) for cut in cuts]
    _, best = min(divisions, key=lambda each: (len(each[1]), -len(each[0]), -max(map(len, each[1]))))
    return best


def _cut(points: Points, axis: int) -> list[Points]:
    """Return the points in pieces; the values of a piece on this axis occur with the same values of the other axes."""
    others: dict[str, set[tuple[str, ...]]] = {}
    for point in points:
        others.setdefault(point[axis], set()).add(point[:axis] + point[axis + 1 :])
    alike: dict[Points, set[str]] = {}
    for value, rest in others.items():
        alike.setdefault(frozenset(rest), set()).add(value)
    return [frozenset(point for point in points if point[axis] in together) for together in alike.values()]


def _axes(points: Points) -> list[set[str]]:
    """Return the set of values on each axis."""
    return [set(column) for column in zip(*points, strict=True)]


def _typed(key: str, text: str) -> Value:
    """Return a number or a boolean as such, and any other value as it is typed on a command line."""
    value = OverridesParser.create().parse_override(f"{key}={text}").value()
    if isinstance(value, (bool, int)) or (isinstance(value, float) and math.isfinite(value)):
        return value
    return text


def _points_of_part(name: str, part: str, points: Sequence[Words], folders: Sequence[Path]) -> list[Words]:
    groups = {file.name.removesuffix(PARTS) for folder in folders for file in folder.glob(f"*{PARTS}")}
    parts = dict.fromkeys(word for words in points for word in words if word.partition("=")[0] in groups)
    if not parts:
        raise ConfigError([f"{name} does not go over parts: leave --part out"])
    chosen = [word for word in parts if word.partition("=")[2] == part]
    if not chosen:
        raise _unknown(f"a part of {name}", part, [word.partition("=")[2] for word in parts])
    return [words for words in points if chosen[0] in words]


def _names(folder: Path) -> list[str]:
    """Return the names of the stored sweeps in a folder."""
    return [file.stem for file in sorted(folder.glob("*.yaml")) if not file.name.endswith(PARTS)]


def _unknown(what: str, name: str, known: Sequence[str]) -> ConfigError:
    near = get_close_matches(name, known, 3)
    remedy = f"did you mean {' or '.join(near)}?" if near else f"there are {', '.join(known)}"
    return ConfigError([f"{name} is not {what}: {remedy}"])


def files_of(grids: Sequence[Grid], output: Path) -> Iterator[tuple[Path, Grid]]:
    """Yield the file of each grid: `output` itself if its name ends in .yaml, else a file in that folder.

    Raises:
        ConfigError: there are several grids, but `output` is one file.
    """
    if output.suffix not in (".yaml", ".yml"):
        yield from ((output / f"{grid.name}.yaml", grid) for grid in grids)
        return
    if len(grids) > 1:
        raise ConfigError([f"{len(grids)} grids need a file each, but --output={output} is one file: give a folder"])
    yield output, grids[0]
