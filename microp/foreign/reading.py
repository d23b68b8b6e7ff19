"""Reads what ranks did from files: traces of torch.profiler, other Chrome or Perfetto JSON, and CSV.

::

    rank0.json  rank1.json.gz   torch.profiler: a file per rank              ┐
    trace.json                  Chrome JSON with a lane per rank             ├─► Lane: the ranges of one rank,
    spans.csv                   rank, op, stage, microbatch, start, end      ┘   in nanoseconds of its clock

What ranges are called is in `names.yaml`, which a user may extend. A JSON file is read event by event, so that hundreds
of megabytes need little more memory than their text. A file that was cut is read up to there.
"""

from __future__ import annotations

import csv
import json
import re
import zlib
from array import array
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import yaml

from microp.trace import Column

TABLE = Path(__file__).with_name("names.yaml")
OPS = ("F", "B", "I", "W")
KNOWN = (*OPS, "SEND_F", "SEND_B", "receive", "optimizer", "step")
_BETWEEN = re.compile(r"[\s,]*")
_JSON, _BEGIN = re.compile(r"\s*[{\[]"), re.compile(r'\s*\[|.*?"traceEvents"\s*:\s*\[', re.DOTALL)
_BASE = re.compile(r'"baseTimeNanoseconds"\s*:\s*(\d{1,19})')
_DISTRIBUTED = re.compile(r'"distributedInfo"\s*:\s*\{[^}]*?"rank"\s*:\s*(\d{1,9})\s*,\s*"world_size"\s*:\s*(\d{1,9})')
_HOST = re.compile(r'"host_name"\s*:\s*"([^"]+)"')
_RANK = re.compile(r"rank[ _:#-]*(\d{1,6})", re.IGNORECASE)
_IGNORED = ("kernel", "fwdbwd", "ac2g", "gpu_user_annotation", "gpu_memcpy", "gpu_memset")
_UNITS = {"_ns": 1, "_us": 1e3, "_ms": 1e6, "_s": 1e9, "": 1e6}
_LONGEST = 1e16  # microseconds
_NUMBERS = ("rank", "stage", "microbatch")  # columns of a table
NONE = np.zeros((0, 3), np.int64)
Where = tuple[str, str | None]  # process and thread
Event = dict[str, Any]
Naming = Callable[[str], "Mark | None"]  # of a range


class TraceError(ValueError):
    """A trace, or what is asked of it, cannot be used; the message says in one line why, and what to do."""


class Mark(NamedTuple):
    """What a range is: an action, whose op is one of OPS, or another one that is KNOWN."""

    op: str
    stage: int | None = None  # None: the name lacks it, as the microbatch
    microbatch: int | None = None  # or the number of a step


class Range(NamedTuple):
    """One range, in nanoseconds."""

    start: int
    end: int
    mark: Mark
    waits: tuple[int, ...] = ()  # of microp's own export: when the wait for its input began and ended
    is_bare: bool = False  # whether nothing but its action is in it, as in that of a function or of `microp.marked`


class Lane(NamedTuple):
    """What one rank did."""

    file: Path
    rank: int  # its number in the file, or in the file's name
    ranges: list[Range]
    world: int = 0  # the number of ranks of the launch; 0: the file does not tell
    kernels: Column = NONE  # of a GPU, sorted by launch: launched, begin, end
    operators: Column = NONE[:, 0]  # when each of torch's operators ended, without messages, sorted
    host: str = ""  # whose clock the file has; empty: the file does not tell
    is_exact: bool = False  # whether its spans are those of microp's own export

    def of(self, *ops: str) -> list[Range]:
        """Return the ranges of ops in the order of their starts, of equal starts the longest first."""
        return sorted((each for each in self.ranges if each.mark.op in ops), key=lambda each: (each[0], -each[1]))

    @property
    def name(self) -> str:
        """The rank and its file, for messages."""
        return f"{self.file}, rank {self.rank}"


def read_names(own: Path | None = None) -> Naming:
    """Return what tells a range's mark by its name, None if it does not count; a user's own patterns come first."""
    table = []
    for path in filter(None, (own, TABLE)):
        try:
            rows = [(re.compile(row["pattern"]), str(row.get("op", ""))) for row in yaml.safe_load(path.read_text())]
            if wrong := [row.pattern for row, op in rows if op not in KNOWN and "op" not in row.groupindex]:
                raise ValueError(f"{wrong[0]} tells no op, as {', '.join(KNOWN)}")
            table += rows
        except (OSError, ValueError, yaml.YAMLError, re.error, TypeError, KeyError, AttributeError) as error:
            why = " ".join(str(error).split())[:99]
            raise TraceError(f"{path} is no table of names ({why}): see {TABLE}") from error

    @cache
    def mark(name: str) -> Mark | None:
        for pattern, op in table:
            if match := pattern.fullmatch(name):
                groups = defaultdict(str, match.groupdict(""))
                texts = groups["stage"], groups["microbatch"]
                if not all(re.fullmatch("[0-9]{0,9}", text) for text in texts):
                    raise TraceError(f"{name[:40]}: stage and microbatch are {texts}: give numbers below 1e9")
                return Mark(groups["op"] or op, *(int(text) if text else None for text in texts))
        return None

    return mark


def read_lanes(paths: Sequence[Path], names: Naming) -> tuple[list[Lane], list[str]]:
    """Return a lane per rank, by rank, and what there is to say about the files; TraceError: one cannot be used."""
    lanes, notes = dict[int, Lane](), list[str]()
    for path in paths:
        try:
            data = path.read_bytes()
            if data[:2] == b"\x1f\x8b":
                data = zlib.decompressobj(31).decompress(data)
            text = data.decode("utf-8-sig", "replace")
            read = list(_json_lanes(path, text, names, notes) if _JSON.match(text) else _csv_lanes(path, text))
            if not any(lane.of(*OPS) for lane in read):
                raise TraceError("it has no action: profile `with microp.marked(schedule):`, or give --names FILE")
        except (OSError, zlib.error, csv.Error) as error:
            why = getattr(error, "strerror", None) or error
            raise TraceError(f"{path} cannot be read ({why}): give a trace") from error
        except TraceError as error:
            raise TraceError(f"{path}: {error}") from error
        for lane in read:
            if (other := lanes.setdefault(lane.rank, lane)) is not lane:
                raise TraceError(f"rank {lane.rank} is in {other.file} and in {path}: give each rank once")
    return [lanes[rank] for rank in sorted(lanes)], notes


class _Events:
    """What the events of one JSON file say, by process and thread."""

    def __init__(self, names: Naming) -> None:
        self._names, self.operators = names, array("q")
        self._begun: dict[Where, list[Event]] = defaultdict(list)
        self.ranges: dict[Where, list[Range]] = defaultdict(list)
        self.called: dict[Where, str] = defaultdict(str)  # a process has no thread: None
        self.launched, self.kernels = dict[str, int](), dict[str, tuple[int, int]]()

    def add(self, event: Event) -> None:
        where, phase, name = (str(event.get("pid")), str(event.get("tid"))), event.get("ph"), str(event.get("name"))
        args = own if isinstance(own := event.get("args"), dict) else {}
        if phase == "X":
            self._add_slice(event, name, where, args)
        elif phase == "B":
            self._begun[where].append(event)
        elif phase == "E" and self._begun[where]:
            begun = self._begun[where].pop()
            self.add({**begun, "ph": "X", "dur": _number(event, "ts") - _number(begun, "ts")})
        elif phase == "M" and name in ("thread_name", "process_name"):
            self.called[where[0], where[1] if name == "thread_name" else None] = str(args.get("name"))

    def _add_slice(self, event: Event, name: str, where: Where, args: Event) -> None:
        kind, key = event.get("cat"), str(args.get("correlation"))
        if kind == "kernel" and "nccl" not in name:
            self.kernels[key] = _times(event)
        elif kind in ("cuda_runtime", "cuda_driver"):
            self.launched[key] = _times(event)[0]
        elif kind not in _IGNORED:
            if mark := self._names(name):
                if mark.stage is None and isinstance(stage := args.get("stage"), int) and abs(stage) < 10**9:
                    mark = mark._replace(stage=stage)
                waits = tuple(round(_number(args, at) * 1000) for at in ("wait_start", "ready") if "wait_start" in args)
                self.ranges[where].append(Range(*_times(event), mark, waits, kind in ("cpu_op", "python_function")))
            if kind == "cpu_op" and not name.startswith(("c10d::", "record_param_comms")):  # no message
                self.operators.append(_times(event)[1])


def _times(event: Event) -> tuple[int, int]:
    start = _number(event, "ts")
    return round(start * 1000), round((start + _number(event, "dur")) * 1000)


def _number(event: Event, key: str) -> float:
    value = event.get(key)
    least = 0 if key == "dur" else -_LONGEST
    if isinstance(value, bool) or not isinstance(value, int | float) or not least <= value < _LONGEST:
        raise TraceError(f"{str(event.get('name'))[:40]} has no time ({key}={str(value)[:40]}): give a whole trace")
    return value


def _json_lanes(path: Path, text: str, names: Naming, notes: list[str]) -> Iterator[Lane]:
    """Yield the lanes of a file; `notes` gets what there is to say about it."""
    # 1. its events, and what stands around them
    if (begin := _BEGIN.match(text)) is None:
        raise TraceError("it has no traceEvents: give a trace of torch.profiler, Chrome JSON, or CSV")
    events, decode, at = _Events(names), json.JSONDecoder().raw_decode, begin.end()
    while text.startswith("{", at := _BETWEEN.match(text, at).end()):  # type: ignore[union-attr]
        try:
            event, at = decode(text, at)
        except (ValueError, RecursionError):
            break
        events.add(event)
    notes += [f"{path}: it was cut, and is read up to there"] * (not text.startswith("]", at))
    outside = text[: begin.end()] + text[at : at + 100_000]
    base, distributed, host = (each.search(outside) for each in (_BASE, _DISTRIBUTED, _HOST))
    offset, world = int(base[1]) if base else 0, int(distributed[2]) if distributed else 0
    # 2. the processes and threads of each rank
    acting = sorted(where for where, own in events.ranges.items() if any(each.mark.op in OPS for each in own))
    called = {process: events.called[process, None] for process, _ in acting}
    acting = [where for where in acting if called[where[0]].startswith("measured,")] or acting  # of microp's own export
    has_processes = len({process for process, _ in acting}) > 1
    parts: dict[int, list[Where]] = {}
    if distributed or len(acting) == 1:
        numbers = _RANK.findall(path.name) or re.findall(r"\d{1,6}", path.name) or [0]
        parts, acting = {int(distributed[1] if distributed else numbers[-1]): list(events.ranges)}, []
    for order, where in enumerate(acting):
        match = _RANK.search(f"{events.called[where]} {events.called[where[0], None]}")
        own = [each for each in events.ranges if each == where or (each[0] == where[0] and has_processes)]
        if parts.setdefault(int(match[1]) if match else order, own) is not own:
            rank, of = match[1] if match else order, "; ".join(called.values()) or "one process"
            raise TraceError(f"it has two lanes of rank {rank}, of {of}: keep one, as analysis.timeline of one run")
    # 3. their lanes
    columns, launched = list[Any](), events.launched
    if len(parts) == 1:  # else it is not known whose they are
        pairs = sorted((launched[key], *times) for key, times in events.kernels.items() if key in launched)
        operators = np.sort(np.array(events.operators, np.int64))
        columns = [np.array(pairs, np.int64).reshape(-1, 3) + offset, operators + offset]
    for rank, places in parts.items():
        read = (each for where in places for each in events.ranges[where])
        ranges = [each._replace(start=each.start + offset, end=each.end + offset) for each in read]
        is_exact = all(each.waits for each in ranges if each.mark.op in OPS)
        yield Lane(path, rank, ranges, world, *columns)._replace(host=host[1] if host else "", is_exact=is_exact)


def _csv_lanes(path: Path, text: str) -> Iterator[Lane]:
    """Yield the lanes of a table, whose times are milliseconds unless they are called `start_us` and the like."""
    reader = csv.DictReader(text.splitlines(), skipinitialspace=True)
    columns = {*(reader.fieldnames or ())}
    unit = next((unit for unit in _UNITS if {f"start{unit}", f"end{unit}", "op", *_NUMBERS} <= columns), None)
    if unit is None:
        raise TraceError("it is neither JSON nor a CSV with the columns rank, op, stage, microbatch, start, end")
    ranges: dict[int, list[Range]] = defaultdict(list)
    for number, row in enumerate(reader, 1):
        try:
            numbers = [float(row[key]) for key in _NUMBERS]
            start, end = (round(float(row[f"{key}{unit}"]) * _UNITS[unit]) for key in ("start", "end"))
            is_time = -1e3 * _LONGEST < start <= end < 1e3 * _LONGEST
            if not is_time or row["op"] not in OPS or any(not 0 <= each < 1e9 or each % 1 for each in numbers):
                raise ValueError
        except (TypeError, ValueError, OverflowError) as error:
            raise TraceError(f"row {number}: give F, B, I or W, numbers from 0, and an end after the start") from error
        rank, stage, microbatch = map(int, numbers)
        ranges[rank].append(Range(start, end, Mark(row["op"], stage, microbatch)))
    yield from (Lane(path, rank, own) for rank, own in ranges.items())
