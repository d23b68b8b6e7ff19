"""A profile: the measured times of a model's layers, of hops and of the optimizer on one machine.

::

    rows            8     32    128
    first  F      [.10   .22   .70]      layers that are equal are one kind: the first, those inside, the last
    inside F      [.08   .20   .66]      a time between two numbers of rows is interpolated
    last   F      [.06   .12   .40]

The times are those of a chain of layers on ranks that all compute, each op after what it usually follows: F after F,
a full backward after another, B after F, W after B. `after` tells the time after anything else, `checkpointed` is the
factor of a forward that keeps only its input, and `alone` that of a rank that computes alone.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, is_dataclass
from typing import Any, NamedTuple, get_args, get_origin, get_type_hints

import numpy as np

from microp.settings import ADAM, AS_WRITTEN, Computing, ModelSettings
from microp.simulator import LayerMemory, LayerTimes, Size

FORMAT = 6  # of the file, which has every field of a profile under its own name
DIGITS = 6  # behind the point of its numbers: a nanosecond
TIMES = ("forward", "full", "backward", "weight", "recompute")
DIVIDED, UNDIVIDED = "divided", "undivided"
TORCH = "torch"  # among the transports: torch's own pipeline runtime over gloo


class Machine(NamedTuple):
    """What makes two machines of the same kind."""

    device: str
    processor: str
    cores: int
    torch: str
    threads: int

    def __str__(self) -> str:
        threads = f"{self.threads} {'thread' if self.threads == 1 else 'threads'} per rank"
        if not self.torch:
            return self.processor
        return f"{self.cores} cores of {self.processor or 'an unknown processor'}, torch {self.torch}, {threads}"


class After(NamedTuple):
    """How much longer an action takes because of what its rank ran before it; one value per number of rows."""

    added: tuple[float, ...]  # milliseconds that do not depend on its layers
    factor: tuple[float, ...]  # of the time of its layers


class Transport(NamedTuple):
    """The times of one transport, in milliseconds."""

    latency: float  # of a hop, the part that does not depend on the size
    per_mib: float  # of a hop, per MiB
    overhead: float  # the engine's own time per action
    overhead_per_mib: float  # the same, per MiB of the tensor that is sent


@dataclass(frozen=True)
class Profile:
    """A model's times and memory on one kind of machine.

    Times are milliseconds; a tuple of them, or of factors, has one per number of rows. Names are those of `TIMES`.
    """

    machine: Machine  # where it was measured
    model: Mapping[str, Any]
    date: str  # when it was measured, in ISO form
    batch_size: int  # the rows of the batches with which it was measured
    ranks: int  # the number of ranks that computed at once
    rows: tuple[float, ...]  # the numbers of rows at which times were measured, ascending
    layers: Mapping[int, Mapping[str, tuple[float, ...]]]  # kind of layer -> name -> times
    fixed: Mapping[str, tuple[float, ...]]  # name -> the times of an action that do not depend on its layers
    # name -> what ran before (see `samples.before`) -> how that changes the time; what is lacking changes nothing
    after: Mapping[str, Mapping[str, After]]
    checkpointed: tuple[float, ...]  # the factor of a forward that keeps only its input
    alone: tuple[float, ...]  # the factor of a time while no other rank computes
    transports: Mapping[str, Transport]  # by name; TORCH is one, with its own hops and its own time between actions
    optimizer: tuple[float, float]  # of a step of the optimizer: the fixed part, and per MiB of weights
    edges: tuple[float, float]  # before a step's first action, and between its last action and the optimizer
    memory: Mapping[str, Mapping[int, LayerMemory]]  # DIVIDED or UNDIVIDED (the backward) -> kind of layer -> memory
    # name -> (p90 - p10) / median over the steps, the median over all samples; None: not known
    spread: Mapping[str, float | None] = field(default_factory=dict)
    path: str = ""
    optimizer_kind: str = ADAM.kind  # whose steps were measured, see `OptimizerSettings.kind`
    computing: Computing = AS_WRITTEN  # how the layers computed
    load: float | None = None  # the machine's load average before the measurement; None: not known
    peak_gflops: float | None = None  # what a rank reaches in a product of matrices, in 1e9 operations per second

    def transport(self, name: str) -> Transport:
        """Return a transport's times; the first one's if the profile does not have it."""
        return self.transports.get(name) or next(iter(self.transports.values()))

    def boundary_bytes(self, rows: float) -> float:
        """Return the bytes of the tensor between two layers for a microbatch of `rows` rows."""
        return max(layer.boundary.at(rows) for layer in self.memory[UNDIVIDED].values())

    @property
    def tells_memory(self) -> bool:
        """Whether it has the memory of layers, which that of a trace has not."""
        return any(layer.weights for layer in self.memory[UNDIVIDED].values())

    def layer_memory(self, kinds: Sequence[int], split: bool) -> list[LayerMemory]:
        """Return the memory of every layer of the model, given the kind of each."""
        known = self.memory[DIVIDED if split else UNDIVIDED]
        return [known[kind] for kind in kinds]

    def layer_times(
        self, kind: int, rows: float, shares: Mapping[str, Mapping[str, float]], keeps: bool = True
    ) -> LayerTimes:
        """Return the times of one layer.

        `shares` is name of `TIMES` -> what ran before -> the share of the actions that follow it; `keeps` tells whether
        a forward keeps its activations.
        """
        times = {name: interpolate(self.rows, values, rows) for name, values in self.layers[kind].items()}
        for name, own in shares.items():
            times[name] *= self._mean(name, own, rows, 1)
        return self._kept(LayerTimes(**times), rows, keeps)

    def fixed_times(self, rows: float, shares: Mapping[str, Mapping[str, float]], keeps: bool = True) -> LayerTimes:
        """Return the part of the actions' times that does not depend on their layers; see `layer_times`."""
        times = {name: interpolate(self.rows, values, rows) for name, values in self.fixed.items()}
        for name, own in shares.items():
            times[name] = times[name] * self._mean(name, own, rows, 1) + self._mean(name, own, rows, 0)
        return self._kept(LayerTimes(**times), rows, keeps)

    def _mean(self, name: str, shares: Mapping[str, float], rows: float, part: int) -> float:
        """Return the mean of what is added (part 0) or of the factors (part 1) over what ran before."""
        known = self.after.get(name, {})
        return sum(
            share * (self._inside(known[what][part], rows) if what in known else float(part))
            for what, share in shares.items()
        )

    def _kept(self, times: LayerTimes, rows: float, keeps: bool) -> LayerTimes:
        return times if keeps else times._replace(forward=times.forward * self._inside(self.checkpointed, rows))

    def alone_at(self, rows: float) -> float:
        """Return the factor of a time while no other rank computes."""
        return interpolate(self.rows, self.alone, rows, at_least=0.1)

    def _inside(self, factors: Sequence[float], rows: float) -> float:
        """Return a factor between the numbers of rows; beyond them that of the nearest."""
        return float(np.interp(rows, self.rows, factors))


def interpolate(places: Sequence[float], values: Sequence[float], at: float, at_least: float = 0.0) -> float:
    """Return the value at `at`: on the line through the two places around it, or through the nearest two."""
    if len(places) == 1:
        return values[0]
    after = next((index for index, place in enumerate(places) if place >= at), len(places) - 1)
    after = max(1, after)
    left, right = places[after - 1], places[after]
    share = (at - left) / (right - left)
    return max(at_least, values[after - 1] + share * (values[after] - values[after - 1]))


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


# --- its file ---------------------------------------------------------------------------------------


def to_plain(profile: Profile) -> dict[str, Any]:
    """Return the profile in plain values, as a file has it; only where it was read from is left out."""
    plain = {"format": FORMAT, **_plain(profile), "model": dict(profile.model)}  # a user's numbers are not rounded
    del plain["path"]
    return plain


def _plain(value: Any) -> Any:
    if isinstance(value, Size):
        return [_plain(number) for number in value]
    if is_dataclass(value):
        value = {field.name: getattr(value, field.name) for field in fields(value)}
    if hasattr(value, "_asdict"):
        value = value._asdict()
    if isinstance(value, Mapping):
        return {key: _plain(each) for key, each in value.items()}
    if isinstance(value, tuple | list):
        return [_plain(each) for each in value]
    return round(value, DIGITS) if isinstance(value, float) else value


def read_plain(given: Any, path: str) -> Profile:
    """Return the profile that a file's plain values describe.

    Raises:
        ValueError: the values are not those of a profile.
    """
    try:
        if given["format"] != FORMAT:
            raise ValueError(f"format {given['format']!r} is not {FORMAT}")
        profile: Profile = _read(Profile, {**given, "path": path})
    except KeyError as error:
        raise ValueError(f"it lacks {error}") from error
    except (TypeError, AttributeError) as error:
        raise ValueError("its values are not of a profile's form") from error
    return profile


def _read(kind: Any, value: Any) -> Any:
    """Return plain values as what has this type: a number, a tuple, a mapping, or a class with fields."""
    origin, inside = get_origin(kind), get_args(kind)
    if kind in (Any, bool):
        return value
    if kind is Size:
        return Size(*map(float, value))
    if type(None) in inside:
        return None if value is None else _read(inside[0], value)
    if origin is tuple:
        return tuple(_read(inside[0], each) for each in value)
    if origin is Mapping:
        return {_read(inside[0], key): _read(inside[1], each) for key, each in value.items()}
    if kind is float and not 0 <= float(value) < math.inf:  # a prediction of NaN or below 0 would be told as one
        raise ValueError(f"{value} is no number from 0")
    if kind in (float, int, str):
        return kind(value)
    return kind(**{name: _read(hint, value[name]) for name, hint in get_type_hints(kind).items()})
