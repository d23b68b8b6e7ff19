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
from collections.abc import Sequence
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
_LAUNCHES = ("cuda_runtime", "cuda_driver")
_IGNORED = ("fwdbwd", "ac2g", "gpu_user_annotation", "gpu_memcpy", "gpu_memset")
_MESSAGES = ("c10d::", "record_param_comms")  # operators
_UNITS = {"_ns": 1, "_us": 1e3, "_ms": 1e6, "_s": 1e9, "": 1e6}
_LONGEST = 1e16  # microseconds
Where = tuple[Any, Any]  # process and thread


class Range(NamedTuple):
    """One range, in nanoseconds; its step, where the file says it."""

    start: int
    end: int
    mark: Mark
    step: int | None = None


@dataclass
class Lane:
    """What one rank did.

    Attributes:
        rank: its number in the file, or in the file's name.
        world: the number of ranks of the launch; 0: the file does not tell.
        cut: whether its file ends in the middle.
        kernels: of a GPU, sorted by launch: launched, begin, end.
        operators: of torch, without messages: the ends, and the begins in backwards, each sorted by itself.
    """

    file: Path
    rank: int
    ranges: list[Range]
    world: int = 0
    cut: bool = False
    kernels: Column = field(default_factory=lambda: np.zeros((0, 3), np.int64))
    operators: list[Column] = field(default_factory=lambda: [np.zeros(0, np.int64)] * 2)

    def of(self, kind: str) -> list[Range]:
        """Return the ranges of a kind in the order of their starts, of equal starts the longest first."""
        return sorted((each for each in self.ranges if each.mark.kind == kind), key=lambda each: (each[0], -each[1]))

    @property
    def name(self) -> str:
        """The rank and its file, for messages."""
        return f"{self.file}, rank {self.rank}"


def read_lanes(paths: Sequence[Path], names: Names) -> tuple[list[Lane], list[str]]:
    """Return a lane per rank, by rank, and what there is to say about the files.

    Raises:
        TraceError: a file cannot be read, has no action, or two files are of the same rank.
    """
    lanes: dict[int, Lane] = {}
    notes = []
    for path in paths:
        text, cut = _text(path)
        read, said = _json_lanes(path, text, names) if text.lstrip()[:1] in ("{", "[") else (_csv_lanes(path, text), [])
        cut = cut or any(lane.cut for lane in read)
        notes += said + [f"{path} was cut: it is read up to there"] * cut
        if not any(lane.of("action") for lane in read):
            raise TraceError(f"{path} has no action: profile `with microp.marked(schedule):`, or give --names FILE")
        for lane in read:
            if (other := lanes.setdefault(lane.rank, lane)) is not lane:
                raise TraceError(f"rank {lane.rank} is in {other.file} and in {path}: give each rank once")
    return [lanes[rank] for rank in sorted(lanes)], notes


def _text(path: Path) -> tuple[str, bool]:
    """Return a file's text, each byte a character, and whether it was cut in compressed form."""
    try:
        data = path.read_bytes()
        if data[:2] != b"\x1f\x8b":
            return data.decode("latin-1"), False
        inflate = zlib.decompressobj(31)
        return inflate.decompress(data).decode("latin-1"), not inflate.eof
    except (OSError, zlib.error) as error:
        why = getattr(error, "strerror", None) or error
        raise TraceError(f"{path} cannot be read ({why}): give a trace") from error


# --- JSON ----------------------------------------------------------------------------------------------


class _File:
    """What the events of one file say, by process and thread."""

    def __init__(self, path: Path, names: Names) -> None:
        self.path, self._names = path, names
        self.ranges: dict[Where, list[Range]] = defaultdict(list)
        self.called: dict[Where, str] = {}  # a process has no thread: None
        self.launched: dict[str, int] = {}
        self.kernels: dict[str, tuple[int, int]] = {}
        self.operators = array("q"), array("q")
        self._open: dict[Where, list[dict[str, Any]]] = defaultdict(list)
        self.cut, self.outside = False, ""

    def read(self, text: str) -> None:
        """Take the events of a text; afterwards `outside` has what stands around them."""
        if (begin := _BEGIN.match(text)) is None:
            raise TraceError(f"{self.path} has no traceEvents: give a trace of torch.profiler, Chrome JSON, or CSV")
        at, decode, between = begin.end(), json.JSONDecoder().raw_decode, _BETWEEN.match
        while True:
            at = between(text, at).end()  # type: ignore[union-attr]
            if text[at : at + 1] != "{":
                break
            try:
                event, at = decode(text, at)
            except (ValueError, RecursionError):
                break
            self._add(event, str(event.get("name")), (str(event.get("pid")), str(event.get("tid"))))
        self.cut = text[at : at + 1] != "]"
        self.outside = text[: begin.end()] + text[at : at + 100_000]

    def _add(self, event: dict[str, Any], name: str, where: Where) -> None:
        phase, args = event.get("ph"), event.get("args")
        args = args if isinstance(args, dict) else {}
        if phase == "X":
            self._add_slice(event, name, where, args)
        elif phase == "B":
            self._open[where].append(event)
        elif phase == "E" and self._open[where]:
            begun = self._open[where].pop()
            if self._names[name := str(begun.get("name"))]:
                begun["dur"] = self._number(event, "ts") - self._number(begun, "ts")
                self._add_slice(begun, name, where, args)
        elif phase == "M" and name in ("thread_name", "process_name"):
            self.called[where[0], where[1] if name == "thread_name" else None] = str(args.get("name"))

    def _add_slice(self, event: dict[str, Any], name: str, where: Where, args: dict[str, Any]) -> None:
        kind = event.get("cat")
        if kind == "cpu_op":
            if not name.startswith(_MESSAGES):
                begin, end = self._times(event)
                self.operators[0].append(end)
                if name.startswith("autograd::engine::"):
                    self.operators[1].append(begin)
        elif kind == "kernel":
            if "nccl" not in name:
                self.kernels[str(args.get("correlation"))] = self._times(event)
        elif kind in _LAUNCHES:
            self.launched[str(args.get("correlation"))] = self._times(event)[0]
        elif kind not in _IGNORED and (mark := self._names[name]):
            if mark.stage is None and isinstance(args.get("stage"), int):
                mark = mark._replace(stage=args["stage"])
            self.ranges[where].append(Range(*self._times(event), mark))

    def _times(self, event: dict[str, Any]) -> tuple[int, int]:
        start, length = self._number(event, "ts"), self._number(event, "dur")
        if length < 0:
            raise TraceError(f"{self.path}: {str(event.get('name'))[:40]} lasts {length:g} us: give a whole trace")
        return round(start * 1000), round((start + length) * 1000)

    def _number(self, event: dict[str, Any], key: str) -> float:
        value = event.get(key)
        if isinstance(value, bool) or not isinstance(value, int | float) or not abs(value) < _LONGEST:
            raise TraceError(f"{self.path}: {str(event.get('name'))[:40]} has no time ({key}={str(value)[:40]})")
        return value


def _json_lanes(path: Path, text: str, names: Names) -> tuple[list[Lane], list[str]]:
    file = _File(path, names)
    file.read(text)
    base, distributed = _BASE.search(file.outside), _DISTRIBUTED.search(file.outside)
    offset, notes = int(base[1]) if base else 0, list[str]()
    # 1. the processes and threads of each rank
    acting = [where for where, own in file.ranges.items() if any(each.mark.kind == "action" for each in own)]
    processes = list(dict.fromkeys(process for process, _ in acting))
    parts: dict[int, list[Where]] = {}
    if distributed or len(acting) == 1:
        parts[int(distributed[1]) if distributed else _number_in(path.name)] = list(file.ranges)
    else:
        if 1 < len(processes) < len(acting):  # microp's export has a process per timeline, each with all ranks
            titles = {process: file.called.get((process, None), process) for process in processes}
            chosen = next((each for each in processes if titles[each].startswith("measured")), processes[0])
            notes.append(f"{path} has {len(processes)} timelines: the one called {titles[chosen]!r} is read")
            acting, processes = [where for where in acting if where[0] == chosen], [chosen]
        for order, where in enumerate(sorted(acting)):
            called = f"{file.called.get(where, '')} {file.called.get((where[0], None), '')}"
            number = int(match[1]) if (match := _RANK.search(called)) else order
            if number in parts:
                raise TraceError(f"{path} has two lanes of rank {number}: keep one")
            alone = len(processes) == len(acting)  # a process per rank
            parts[number] = [each for each in file.ranges if each[0] == where[0]] if alone else [where]
    # 2. their ranges
    lanes = []
    for number, places in parts.items():
        read = [each for where in places for each in file.ranges[where]]
        ranges = [Range(start + offset, end + offset, mark, step) for start, end, mark, step in read]
        lane = Lane(path, number, ranges, int(distributed[2]) if distributed else 0, file.cut)
        if len(parts) == 1:  # else it is not known whose they are
            pairs = sorted((file.launched[key], *times) for key, times in file.kernels.items() if key in file.launched)
            lane.kernels = np.array(pairs, np.int64).reshape(-1, 3) + offset
            lane.operators = [np.sort(np.array(column, np.int64)) + offset for column in file.operators]
        lanes.append(lane)
    return lanes, notes


def _number_in(name: str) -> int:
    """Return the rank that the name of a file or a lane tells; 0 if it has no number."""
    numbers = _RANK.findall(name) or re.findall(r"\d{1,6}", name)
    return int(numbers[-1]) if numbers else 0


# --- CSV -----------------------------------------------------------------------------------------------


def _csv_lanes(path: Path, text: str) -> list[Lane]:
    """Return the lanes of a table, whose times are milliseconds unless they are called `start_us` and the like."""
    lanes: dict[int, Lane] = {}
    table = csv.DictReader(io.StringIO(text.removeprefix("\xef\xbb\xbf")), skipinitialspace=True)
    try:
        columns = set(table.fieldnames or ())
        units = [unit for unit in _UNITS if {f"start{unit}", f"end{unit}"} <= columns]
        if not units or not {"rank", "op", "stage", "microbatch"} <= columns:
            raise TraceError(
                f"{path} is neither JSON nor a CSV with the columns rank, op, stage, microbatch, start, end (in "
                "milliseconds; or start_us, end_us and the like)"
            )
        for row in table:
            rank, stage, microbatch = (int(row[key]) for key in ("rank", "stage", "microbatch"))
            start, end = (round(float(row[f"{key}{units[0]}"]) * _UNITS[units[0]]) for key in ("start", "end"))
            if (
                row["op"] not in OPS
                or min(rank, stage, microbatch) < 0
                or start > end
                or max(-start, end) > 1e3 * _LONGEST
            ):
                raise ValueError("it takes F, B, I or W, numbers from 0, and an end that is not before the start")
            step = int(row["step"]) if row.get("step") else None
            mark = Mark("action", row["op"], stage, microbatch)
            lanes.setdefault(rank, Lane(path, rank, [])).ranges.append(Range(start, end, mark, step))
    except TraceError:
        raise
    except (csv.Error, TypeError, ValueError, OverflowError) as error:
        raise TraceError(f"{path}: line {table.line_num} is no row of spans: {str(error)[:120]}") from error
    return list(lanes.values())
