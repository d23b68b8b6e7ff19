"""Reads what ranks did from files: traces of torch.profiler, other Chrome or Perfetto JSON, and CSV.

::

    rank0.json  rank1.json.gz       torch.profiler: a file per rank          ┐
    trace.json                      Chrome JSON with a lane per rank         ├─► Lane: the ranges of one rank,
    spans.csv                       rank, op, stage, microbatch, start, end  ┘   in nanoseconds of its clock

A JSON file is read event by event, so that some hundred megabytes need little more memory than their text. A file that
was cut is read up to there.
"""

from __future__ import annotations

import csv
import io
import json
import math
import re
import zlib
from array import array
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from microp.foreign.names import OPS, Mark, Names, TraceError
from microp.trace import Column

_BETWEEN = re.compile(r"[\s,]*")
_BEGIN = re.compile(r'\s*\[|.*?"traceEvents"\s*:\s*\[', re.DOTALL)
_BASE = re.compile(r'"baseTimeNanoseconds"\s*:\s*(\d{1,19})')
_DISTRIBUTED = re.compile(r'"distributedInfo"\s*:\s*\{[^}]*?"rank"\s*:\s*(\d{1,9})\s*,\s*"world_size"\s*:\s*(\d{1,9})')
_RANK = re.compile(r"rank[ _:#-]*(\d{1,6})", re.IGNORECASE)
_NO_RANGES = {"fwdbwd", "ac2g", "gpu_user_annotation", "gpu_memcpy", "gpu_memset", "cpu_instant_event"}
_BACKWARD = "autograd::engine::"
_MESSAGES = ("c10d::", "record_param_comms")
_LAUNCHES = {"cuda_runtime", "cuda_driver"}
_UNITS = {"_ns": 1, "_us": 1e3, "_ms": 1e6, "_s": 1e9, "": 1e6}
_COLUMNS = ("rank", "op", "stage", "microbatch")


class Range(NamedTuple):
    """One range, in nanoseconds."""

    start: int
    end: int
    mark: Mark
    step: int | None = None  # where the file says it


@dataclass
class Lane:
    """What one rank did.

    Attributes:
        rank: its number in the file, or in the file's name.
        world: the number of ranks of the launch; None: the file does not tell.
        clock: what its times are of; lanes with the same one need no alignment.
        since_1970: whether its times count from 1970.
        cut: whether its file ends in the middle.
        kernels: of a GPU, sorted by launch: launched, begin, end; no rows if there are none.
        operators: of torch's operators other than messages the begins, the ends, and the begins of those of backwards,
            each sorted by itself.
    """

    file: Path
    rank: int
    ranges: list[Range]
    world: int | None = None
    clock: str = ""
    since_1970: bool = False
    cut: bool = False
    kernels: Column = field(default_factory=lambda: np.zeros((0, 3), np.int64))
    operators: tuple[Column, Column, Column] = field(default_factory=lambda: (np.zeros(0, np.int64),) * 3)

    def of(self, kind: str) -> list[Range]:
        """Return the ranges of a kind in the order of their starts, of equal starts the longest first."""
        return sorted((each for each in self.ranges if each.mark.kind == kind), key=lambda each: (each[0], -each[1]))


def read_lanes(paths: Sequence[Path], names: Names) -> tuple[list[Lane], list[str]]:
    """Return a lane per rank, by rank, and what there is to say about the files.

    Raises:
        TraceError: a file cannot be read, has no action, or two files are of the same rank.
    """
    lanes: dict[int, Lane] = {}
    notes = []
    for path in paths:
        text, cut = _text(path)
        is_json = text.lstrip()[:1] in ("{", "[")
        read, said = _json_lanes(path, text, names) if is_json else (_csv_lanes(path, text), [])
        cut = cut or any(lane.cut for lane in read)
        notes += said + [f"{path} was cut: it is read up to there"] * cut
        if not any(lane.of("action") for lane in read):
            raise TraceError(
                f"{path} has no range that is an action{' in what is left of it' if cut else ''}: put "
                "`with microp.marked(schedule):` around the profiled steps, or give the names with --names FILE"
            )
        for lane in read:
            if lane.rank in lanes:
                raise TraceError(
                    f"rank {lane.rank} is in {lanes[lane.rank].file} and in {path}: give each rank of one pipeline once"
                )
            lanes[lane.rank] = lane
    return [lanes[rank] for rank in sorted(lanes)], notes


def _text(path: Path) -> tuple[str, bool]:
    """Return a file's text, and whether it was cut in compressed form; each byte is a character."""
    try:
        data = path.read_bytes()
        if data[:2] != b"\x1f\x8b":
            return data.decode("latin-1"), False
        inflate = zlib.decompressobj(31)
        return inflate.decompress(data).decode("latin-1"), not inflate.eof
    except OSError as error:
        raise TraceError(f"{path} cannot be read ({error.strerror}): give the files of a trace") from error
    except zlib.error as error:
        raise TraceError(f"{path} is damaged ({error}): copy it again") from error


# --- JSON ----------------------------------------------------------------------------------------------


class _Events:
    """The events of a JSON file; afterwards `cut` says whether it ended early, and `outside` has the text around."""

    def __init__(self, path: Path, text: str) -> None:
        self._path, self._text, self.cut = path, text, False
        begin = _BEGIN.match(text)
        if begin is None:
            raise TraceError(f"{path} has no traceEvents: give a trace of torch.profiler, Chrome JSON, or CSV")
        self._at, self.outside = begin.end(), text[: begin.end()]

    def __iter__(self) -> Iterator[dict[str, Any]]:
        text, at, between = self._text, self._at, _BETWEEN.match
        decode = json.JSONDecoder().raw_decode
        while True:
            at = between(text, at).end()  # type: ignore[union-attr]
            if text[at : at + 1] != "{":
                break
            try:
                event, at = decode(text, at)
            except (ValueError, RecursionError):
                break
            yield event
        self.cut = text[at : at + 1] != "]"
        self.outside += text[at : at + 100_000]


class _File:
    """What the events of one file say, by process and thread."""

    def __init__(self, path: Path, names: Names) -> None:
        self.path, self._names = path, names
        self.ranges: dict[tuple[Any, Any], list[Range]] = defaultdict(list)
        self.called: dict[tuple[Any, Any], str] = {}  # (process, thread) -> its name; thread None: the process
        self.launched: dict[Any, int] = {}
        self.kernels: dict[Any, tuple[int, int]] = {}
        self.operators = array("q"), array("q"), array("q")
        self._open: dict[tuple[Any, Any], list[dict[str, Any]]] = defaultdict(list)

    def add(self, event: dict[str, Any]) -> None:
        phase, kind = event.get("ph"), event.get("cat")
        where = (event.get("pid"), event.get("tid"))
        if phase == "X" and kind not in _NO_RANGES:
            if kind == "cpu_op":
                self._operator(event)
            elif kind == "kernel":
                if "nccl" not in str(event.get("name")):
                    self.kernels[_correlation(event)] = self._times(event)
            elif kind in _LAUNCHES:
                self.launched[_correlation(event)] = self._times(event)[0]
            else:
                self._range(event, where)
        elif phase == "B":
            self._open[where].append(event)
        elif phase == "E" and self._open[where]:
            begun = self._open[where].pop()
            if self._names[str(begun.get("name"))]:
                length = self._number(event, "ts") - self._number(begun, "ts")
                self._range({**begun, "dur": length}, where)
        elif phase == "M" and event.get("name") in ("thread_name", "process_name"):
            is_thread = event["name"] == "thread_name"
            self.called[where[0], where[1] if is_thread else None] = str((event.get("args") or {}).get("name"))

    def _operator(self, event: dict[str, Any]) -> None:
        name = str(event.get("name"))
        if not name.startswith(_MESSAGES):
            begin, end = self._times(event)
            self.operators[0].append(begin)
            self.operators[1].append(end)
            if name.startswith(_BACKWARD):
                self.operators[2].append(begin)

    def _range(self, event: dict[str, Any], where: tuple[Any, Any]) -> None:
        mark = self._names[str(event.get("name"))]
        if mark is None:
            return
        if mark.stage is None and isinstance(args := event.get("args"), dict) and isinstance(args.get("stage"), int):
            mark = mark._replace(stage=args["stage"])
        self.ranges[where].append(Range(*self._times(event), mark))

    def _times(self, event: dict[str, Any]) -> tuple[int, int]:
        start, length = self._number(event, "ts"), self._number(event, "dur")
        if length < 0:
            raise TraceError(f"{self.path}: {str(event.get('name'))[:40]} lasts {length:g} us: give a whole trace")
        return round(start * 1000), round((start + length) * 1000)

    def _number(self, event: dict[str, Any], key: str) -> float:
        value = event.get(key)
        if isinstance(value, bool) or not isinstance(value, int | float) or not abs(value) < 1e16:
            raise TraceError(
                f"{self.path}: {str(event.get('name'))[:40]} has {key}={str(value)[:40]}, which is no time"
            )
        return value


def _correlation(event: dict[str, Any]) -> Any:
    args = event.get("args")
    return str(args.get("correlation")) if isinstance(args, dict) else None


def _json_lanes(path: Path, text: str, names: Names) -> tuple[list[Lane], list[str]]:
    events, file = _Events(path, text), _File(path, names)
    for event in events:
        if isinstance(event, dict):
            file.add(event)
    base, distributed = _BASE.search(events.outside), _DISTRIBUTED.search(events.outside)
    offset = int(base[1]) if base else 0
    acting = [where for where, ranges in file.ranges.items() if any(each.mark.kind == "action" for each in ranges)]
    notes: list[str] = []
    # 1. the processes and threads of each rank
    parts: dict[int, list[tuple[Any, Any]]] = {}
    if distributed or len({process for process, _ in acting}) == len(acting) == 1:
        number = int(distributed[1]) if distributed else _number_in(path)
        parts[number] = list(file.ranges)
    else:
        acting, notes = _one_timeline(path, file, acting)
        alone = len({process for process, _ in acting}) == len(acting)  # a process per rank
        for order, where in enumerate(sorted(acting, key=str)):
            called = file.called.get(where, "") + " " + file.called.get((where[0], None), "")
            match = _RANK.search(called)
            number = int(match[1]) if match else order
            if number in parts:
                raise TraceError(f"{path} has two lanes of rank {number}: keep one")
            parts[number] = [each for each in file.ranges if each[0] == where[0]] if alone else [where]
    # 2. their ranges
    pairs = sorted((file.launched[key], *times) for key, times in file.kernels.items() if key in file.launched)
    kernels = np.array(pairs, np.int64).reshape(-1, 3) + offset
    begins, ends, backwards = (np.sort(np.array(column, np.int64)) + offset for column in file.operators)
    lanes = []
    for number, places in parts.items():
        ranges = [each for where in places for each in file.ranges[where]]
        moved = [each._replace(start=each.start + offset, end=each.end + offset) for each in ranges]
        world = int(distributed[2]) if distributed else None
        lane = Lane(path, number, moved, world, str(path), bool(base), events.cut)
        if len(parts) == 1:  # of several ranks it is not known whose they are
            lane.kernels = kernels
            lane.operators = begins, ends, backwards
        lanes.append(lane)
    return lanes, notes


def _one_timeline(
    path: Path, file: _File, acting: Sequence[tuple[Any, Any]]
) -> tuple[list[tuple[Any, Any]], list[str]]:
    """Return the lanes of one timeline: microp's export has a process per timeline, each with all ranks."""
    processes = list(dict.fromkeys(process for process, _ in acting))
    if len(processes) < 2 or len(acting) == len(processes):
        return list(acting), []
    titles = {process: file.called.get((process, None), str(process)) for process in processes}
    chosen = next((process for process in processes if titles[process].startswith("measured")), processes[0])
    others = ", ".join(titles[process] for process in processes if process != chosen)
    note = f"{path} has several timelines: {titles[chosen]!r} is read, and not {others}"
    return [where for where in acting if where[0] == chosen], [note]


def _number_in(path: Path) -> int:
    """Return the rank that a file's name tells, 0 if it has no number."""
    match = _RANK.search(path.name)
    numbers = [match[1]] if match else re.findall(r"\d{1,6}", path.name)
    return int(numbers[-1]) if numbers else 0


# --- CSV -----------------------------------------------------------------------------------------------


def _csv_lanes(path: Path, text: str) -> list[Lane]:
    """Return the lanes of a table; its `start` and `end` are in milliseconds unless they are called `start_us` etc."""
    table = csv.DictReader(io.StringIO(text.removeprefix("ï»¿")), strict=True)
    try:
        columns = [name.strip() for name in table.fieldnames or ()]
        table.fieldnames = columns
        unit = next((unit for unit in _UNITS if {f"start{unit}", f"end{unit}"} <= set(columns)), None)
        if unit is None or not set(_COLUMNS) <= set(columns):
            raise TraceError(
                f"{path} is neither JSON nor a CSV with the columns {', '.join(_COLUMNS)}, start, end "
                "(milliseconds; or start_us, end_us and the like)"
            )
        lanes: dict[int, Lane] = {}
        for row in table:
            rank, each = _row(path, table.line_num, row, unit)
            lanes.setdefault(rank, Lane(path, rank, [], clock=str(path))).ranges.append(each)
    except csv.Error as error:
        raise TraceError(f"{path}: line {table.line_num} is no row of a CSV ({error})") from error
    return list(lanes.values())


def _row(path: Path, line: int, row: dict[str, Any], unit: str) -> tuple[int, Range]:
    try:
        rank, stage, microbatch = (int(row[key]) for key in ("rank", "stage", "microbatch"))
        start, end = (float(row[f"{key}{unit}"]) * _UNITS[unit] for key in ("start", "end"))
        op, step = str(row["op"]).strip(), int(row["step"]) if row.get("step") else None
    except (TypeError, ValueError) as error:
        raise TraceError(f"{path}: line {line} is no row of numbers ({error})") from error
    if op not in OPS or min(rank, stage, microbatch) < 0 or not math.isfinite(start) or not start <= end < math.inf:
        raise TraceError(
            f"{path}: line {line} has op={op}, rank={rank}, stage={stage}, microbatch={microbatch}, from {start:g} to "
            f"{end:g} ns: write F, B, I or W, numbers from 0, and an end that is not before the start"
        )
    return rank, Range(round(start), round(end), Mark("action", op, stage, microbatch), step)


def listed(files: Iterable[Path]) -> str:
    """Return files as a message names them."""
    each = list(dict.fromkeys(map(str, files)))
    return ", ".join(each[:3]) + (f" and {len(each) - 3} more" if len(each) > 3 else "")
