"""Reads what ranks did from files: traces of torch.profiler, other Chrome or Perfetto JSON, and CSV.

::

    rank0.json  rank1.json.gz   torch.profiler: a file per rank              ┐
    trace.json                  Chrome JSON with a lane per rank             ├─► Lane: the ranges of one rank,
    spans.csv                   rank, op, stage, microbatch, start, end      ┘   in nanoseconds of its clock

A JSON file is read event by event, so that hundreds of megabytes need little more memory than their text. A file that
was cut is read up to there.
"""

from __future__ import annotations

import csv
import io
import json
import re
import zlib
from array import array
from collections import defaultdict
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from microp.foreign.names import OPS, Mark, TraceError
from microp.trace import Column

_BETWEEN = re.compile(r"[\s,]*")
_BEGIN = re.compile(r'\s*\[|.*?"traceEvents"\s*:\s*\[', re.DOTALL)
_BASE = re.compile(r'"baseTimeNanoseconds"\s*:\s*(\d{1,19})')
_DISTRIBUTED = re.compile(r'"distributedInfo"\s*:\s*\{[^}]*?"rank"\s*:\s*(\d{1,9})\s*,\s*"world_size"\s*:\s*(\d{1,9})')
_RANK = re.compile(r"rank[ _:#-]*(\d{1,6})", re.IGNORECASE)
_LAUNCHES = ("cuda_runtime", "cuda_driver")
_IGNORED = ("fwdbwd", "ac2g", "gpu_user_annotation", "gpu_memcpy", "gpu_memset")
_MESSAGES = ("c10d::", "record_param_comms")  # operators
_UNITS = {"_ns": 1, "_us": 1e3, "_ms": 1e6, "_s": 1e9, "": 1e6}
_LONGEST = 1e16  # microseconds
CUT = "it was cut, and is read up to there"
NONE = np.zeros((0, 3), np.int64)
Where = tuple[str, str | None]  # process and thread
Event = dict[str, Any]
Naming = Callable[[str], Mark | None]


class Range(NamedTuple):
    """One range, in nanoseconds."""

    start: int
    end: int
    mark: Mark


class Lane(NamedTuple):
    """What one rank did."""

    file: Path
    rank: int  # its number in the file, or in the file's name
    ranges: list[Range]
    world: int = 0  # the number of ranks of the launch; 0: the file does not tell
    kernels: Column = NONE  # of a GPU, sorted by launch: launched, begin, end
    operators: Column = NONE[:, 0]  # when each of torch's operators ended, without messages, sorted
    backwards: Column = NONE[:, 0]  # when each operator of a backward began, sorted

    def of(self, kind: str) -> list[Range]:
        """Return the ranges of a kind in the order of their starts, of equal starts the longest first."""
        return sorted((each for each in self.ranges if each.mark.kind == kind), key=lambda each: (each[0], -each[1]))

    @property
    def name(self) -> str:
        """The rank and its file, for messages."""
        return f"{self.file}, rank {self.rank}"


def read_lanes(paths: Sequence[Path], names: Naming) -> tuple[list[Lane], list[str]]:
    """Return a lane per rank, by rank, and what there is to say about the files; TraceError: one cannot be used."""
    lanes, notes = dict[int, Lane](), list[str]()
    for path in paths:
        said = list[str]()
        try:
            data = path.read_bytes()
            if data[:2] == b"\x1f\x8b":
                inflate = zlib.decompressobj(31)
                data, said = inflate.decompress(data), [] if inflate.eof else [CUT]
            text = data.decode("latin-1")
            is_json = text.lstrip()[:1] in ("{", "[")
            read = _json_lanes(path, text, names, said) if is_json else _csv_lanes(path, text)
            if not any(lane.of("action") for lane in read):
                raise TraceError("it has no action: profile `with microp.marked(schedule):`, or give --names FILE")
        except (OSError, zlib.error) as error:
            why = getattr(error, "strerror", None) or error
            raise TraceError(f"{path} cannot be read ({why}): give a trace") from error
        except TraceError as error:
            raise TraceError(f"{path}: {error}") from error
        notes += [f"{path}: {text}" for text in dict.fromkeys(said)]
        for lane in read:
            if (other := lanes.setdefault(lane.rank, lane)) is not lane:
                raise TraceError(f"rank {lane.rank} is in {other.file} and in {path}: give each rank once")
    return [lanes[rank] for rank in sorted(lanes)], notes


class _Events:
    """What the events of one JSON file say, by process and thread."""

    def __init__(self, names: Naming) -> None:
        self._names = names
        self._begun: dict[Where, list[Event]] = defaultdict(list)
        self.ranges: dict[Where, list[Range]] = defaultdict(list)
        self.called: dict[Where, str] = defaultdict(str)  # a process has no thread: None
        self.launched, self.kernels = dict[str, int](), dict[str, tuple[int, int]]()
        self.operators, self.backwards = array("q"), array("q")

    def add(self, event: Event) -> None:
        args, where = event.get("args"), (str(event.get("pid")), str(event.get("tid")))
        args = args if isinstance(args, dict) else {}
        phase, name = event.get("ph"), str(event.get("name"))
        if phase == "B":
            self._begun[where].append(event)
        elif phase == "E" and self._begun[where]:
            begun = self._begun[where].pop()
            if self._names(name := str(begun.get("name"))):
                length = _number(event, "ts") - _number(begun, "ts")
                self._add_slice({**begun, "dur": length}, name, where, args)
        elif phase == "M" and name in ("thread_name", "process_name"):
            self.called[where[0], where[1] if name == "thread_name" else None] = str(args.get("name"))
        elif phase == "X":
            self._add_slice(event, name, where, args)

    def _add_slice(self, event: Event, name: str, where: Where, args: Event) -> None:
        kind, key = event.get("cat"), str(args.get("correlation"))
        if kind == "cpu_op":
            if not name.startswith(_MESSAGES):
                start, end = _times(event)
                self.operators.append(end)
                if name.startswith("autograd::engine::"):
                    self.backwards.append(start)
        elif kind == "kernel":
            if "nccl" not in name:
                self.kernels[key] = _times(event)
        elif kind in _LAUNCHES:
            self.launched[key] = _times(event)[0]
        elif kind not in _IGNORED and (mark := self._names(name)):
            if mark.stage is None and isinstance(args.get("stage"), int):
                mark = mark._replace(stage=args["stage"])
            self.ranges[where].append(Range(*_times(event), mark))


def _times(event: Event) -> tuple[int, int]:
    start, length = _number(event, "ts"), _number(event, "dur")
    return round(start * 1000), round((start + length) * 1000)


def _number(event: Event, key: str) -> float:
    value = event.get(key)
    least = 0 if key == "dur" else -_LONGEST
    if isinstance(value, bool) or not isinstance(value, int | float) or not least <= value < _LONGEST:
        raise TraceError(f"{str(event.get('name'))[:40]} has no time ({key}={str(value)[:40]}): give a whole trace")
    return value


def _json_lanes(path: Path, text: str, names: Naming, said: list[str]) -> list[Lane]:
    """Return the lanes of a file; `said` gets what there is to say about it."""
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
    said += [CUT] * (not text.startswith("]", at))
    outside = text[: begin.end()] + text[at : at + 100_000]
    base, distributed = _BASE.search(outside), _DISTRIBUTED.search(outside)
    offset, world = int(base[1]) if base else 0, int(distributed[2]) if distributed else 0
    # 2. the processes and threads of each rank
    acting = sorted(where for where, own in events.ranges.items() if any(each.mark.kind == "action" for each in own))
    titles = {process: events.called[process, None] or process for process, _ in acting}
    if not distributed and 1 < len(titles) < len(acting):  # microp's export: each timeline has all ranks
        chosen = next((each for each in titles if titles[each].startswith("measured")), acting[0][0])
        said.append(f"it has {len(titles)} timelines: the one called {titles[chosen]!r} is read")
        acting, titles = [where for where in acting if where[0] == chosen], {chosen: ""}
    parts: dict[int, list[Where]] = {}
    for order, where in enumerate(acting):
        match = _RANK.search(f"{events.called[where]} {events.called[where[0], None]}")
        own = [each for each in events.ranges if each == where or (each[0] == where[0] and len(titles) > 1)]
        if parts.setdefault(int(match[1]) if match else order, own) is not own and not distributed:
            raise TraceError(f"it has two lanes of rank {match[1] if match else order}: keep one")
    if distributed or len(acting) == 1:
        numbers = _RANK.findall(path.name) or re.findall(r"\d{1,6}", path.name) or [0]
        parts = {int(distributed[1] if distributed else numbers[-1]): list(events.ranges)}
    # 3. their lanes
    lanes = []
    for rank, places in parts.items():
        read = (each for where in places for each in events.ranges[where])
        lanes.append(Lane(path, rank, [Range(start + offset, end + offset, mark) for start, end, mark in read], world))
    if len(lanes) == 1:  # else it is not known whose they are
        launched = events.launched
        pairs = sorted((launched[key], *times) for key, times in events.kernels.items() if key in launched)
        columns = (np.sort(np.array(column, np.int64)) + offset for column in (events.operators, events.backwards))
        lanes = [Lane(*lanes[0][:4], np.array(pairs, np.int64).reshape(-1, 3) + offset, *columns)]
    return lanes


def _csv_lanes(path: Path, text: str) -> list[Lane]:
    """Return the lanes of a table, whose times are milliseconds unless they are called `start_us` and the like."""
    lanes, steps = dict[int, Lane](), dict[tuple[int, int], Range]()
    table = csv.DictReader(io.StringIO(text.removeprefix("\xef\xbb\xbf")), skipinitialspace=True)
    try:
        columns = set(table.fieldnames or ())
        unit = next((unit for unit in _UNITS if {f"start{unit}", f"end{unit}"} <= columns), None)
        if unit is None or not {"rank", "op", "stage", "microbatch"} <= columns:
            raise TraceError("it is neither JSON nor a CSV with the columns rank, op, stage, microbatch, start, end")
        for row in table:
            rank, stage, microbatch = (int(row[key]) for key in ("rank", "stage", "microbatch"))
            start, end = (round(float(row[f"{key}{unit}"]) * _UNITS[unit]) for key in ("start", "end"))
            is_time = -1e3 * _LONGEST < start <= end < 1e3 * _LONGEST
            if row["op"] not in OPS or min(rank, stage, microbatch) < 0 or not is_time:
                raise ValueError("it takes F, B, I or W, numbers from 0, and an end that is not before the start")
            lane = lanes.setdefault(rank, Lane(path, rank, []))
            lane.ranges.append(Range(start, end, Mark("action", row["op"], stage, microbatch)))
            if row.get("step"):
                step = int(row["step"])
                known = steps.get((rank, step), lane.ranges[-1])
                window = min(start, known.start), max(end + 1, known.end)
                steps[rank, step] = Range(*window, Mark("step", microbatch=step))
    except (csv.Error, TypeError, ValueError, OverflowError) as error:
        if isinstance(error, TraceError):
            raise
        raise TraceError(f"line {table.line_num} is no row of spans: {str(error)[:120]}") from error
    for (rank, _), each in steps.items():
        lanes[rank].ranges.append(each)
    return list(lanes.values())
