"""Prices a schedule: simulates and draws a run's configuration instead of running it.

::

    PricingJob ── simulate ─► Price: makespan, three bubbles, memory, critical path
                              ├──► the timeline as text
                              └──► outputs/simulated/<run>/
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from fractions import Fraction
from functools import cache, cached_property
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from omegaconf import DictConfig

from microp import trace
from microp.config import (
    NO_MEMORY,
    Config,
    PricingJob,
    SimulateConfig,
    make_pricing_job,
    order_peaks,
    plain,
    prices_of,
    used_profile,
)
from microp.job import run_id
from microp.points import BAD_INPUT, Point, PointsCallback, run_app
from microp.results import asked, same, spans_frame, unscaled
from microp.schedule import spread, to_text, to_torch_csv
from microp.simulator import Simulated, closed_forms, critical_path, simulate
from microp.system import GIB, MIB
from microp.terminal import Column, bar, console, extremes, out, paragraph, show_columns, swept_columns

if TYPE_CHECKING:
    import pandas as pd

ROWS = 32  # the most ranks of a timeline in the terminal
MATTERS = ("schedule", "ranks", "chunks", "device", "partition", "checkpointing")
WHOLE = "the objects of output=json"
FILES = "timeline.svg .pdf .png, trace.json, schedule.txt .csv"
_COLUMNS: tuple[tuple[str, int, Callable[[dict[str, Any]], str], str], ...] = (  # heading, importance, text, meaning
    ("makespan", 90, lambda price: f"{price['makespan']:g}", "in ms of a device with times, else in the costs' unit"),
    ("closed form", 60, lambda price: _known(price["closed_form"]["makespan"]), "the makespan by formula"),
    ("gpipe", 80, lambda price: f"{price['bubble']['gpipe']:.4f}", "the bubble as idle / total time"),
    ("megatron", 40, lambda price: f"{price['bubble']['megatron']:.4f}", "as idle / ideal time"),
    ("zero bubble", 50, lambda price: f"{price['bubble']['zero_bubble']:.4f}", "as idle / largest span of a rank"),
    (
        "in flight",
        70,
        lambda price: extremes(price["in_flight_peak"], "g"),
        "peak microbatches of a rank, from F to B or I",
    ),
    ("MiB", 65, lambda price: extremes(price["peak_memory_mib"], ".1f"), ""),
)


class Price:
    """The simulated times and memory of a schedule.

    Attributes:
        schedule: the order that was priced.
        timeline: every action's moments, in the unit of the costs.
        sums: the sums over the replicas after the spans; empty if the costs have none.
        figures: all numbers, as plain values.
    """

    def __init__(self, job: PricingJob) -> None:
        self.schedule, self._costs = job.schedule, job.costs
        self._unit = trace.Scale(1, "ms", " ms") if job.is_in_ms else trace.UNITS
        self.timeline: Simulated = simulate(job.schedule, job.costs)
        self.sums = trace.reductions(self.schedule, self.timeline, job.costs.reduction) if job.costs.reduction else []
        self.figures: dict[str, Any] = json.loads(json.dumps(self._figures(job), default=_number))

    def __repr__(self) -> str:
        return f"<price of {self.schedule.name}: makespan {self.makespan:g}, bubble {self.bubble:.4f}>"

    def _repr_html_(self) -> str:
        panels, sums = {"simulated": self.timeline}, {"simulated": self.sums}
        return f"{escape(repr(self))}<br>{trace.svg(panels, self.schedule.name, self._unit, sums)}"

    @property
    def makespan(self) -> float:
        """The time from the first start to the last end, in the unit of the costs."""
        return float(self.figures["makespan"])

    @property
    def bubble(self) -> float:
        """Idle over total time of all ranks, GPipe's definition; `figures["bubble"]` has all three."""
        return float(self.figures["bubble"]["gpipe"])

    @cached_property
    def spans(self) -> pd.DataFrame:
        """One row per action: rank, op, stage, microbatch, and its moments in the unit of the costs."""
        return spans_frame(self.timeline)

    def draw(self, path: Path | str | None = None, columns: int = 100) -> str:
        """Return the timeline as text.

        Args:
            path: if given (without ending), the timeline is also written there as SVG, PDF and PNG.
            columns: the width of the text, in characters.
        """
        if path is not None:
            trace.figure({"simulated": self.timeline}, self.schedule.name, Path(path), self._unit)
        return trace.plain(self.lines(columns))

    def lines(self, columns: int) -> list[trace.Line]:
        """Return the timeline as lines of text with their looks."""
        name = "simulated"
        return trace.timeline({name: self.timeline}, columns, ROWS, self._unit, {name: self.sums})

    def save(self, folder: Path) -> None:
        """Write the timeline, a trace for Perfetto and the schedule in both text forms into `folder`."""
        folder.mkdir(parents=True, exist_ok=True)
        panels = {"simulated": self.timeline}
        trace.figure(panels, folder.name, folder / "timeline", self._unit)
        trace.perfetto(panels, {"simulated": self.schedule}, folder / "trace.json", trace.UNITS)
        (folder / "schedule.txt").write_text(to_text(self.schedule))
        (folder / "schedule.csv").write_text(to_torch_csv(self.schedule))

    def _figures(self, job: PricingJob) -> dict[str, Any]:
        schedule, spans, ranks = self.schedule, self.timeline, range(len(self.schedule.ranks))
        left = trace.exposed(spans, self.sums) if self.sums else {}
        return {
            "schedule": schedule.name,
            "ranks": len(schedule.ranks),
            "chunks": schedule.chunks,
            "stages": schedule.depth,
            "makespan": trace.makespan(spans),
            "bubble": {name: bubble(spans) for name, bubble in trace.BUBBLES.items()},
            "in_flight_peak": trace.microbatches_in_flight(schedule, spans),
            "peak_memory_mib": _memory(job),
            "closed_form": {
                "makespan": closed_forms.makespan(schedule, self._costs),
                "largest_span": closed_forms.largest_span(schedule, self._costs),
                "in_flight_peak": closed_forms.in_flight_peak(schedule),
            },
            "critical_path": len(critical_path(spans)),
            "reduction": None
            if not self.sums
            else {"makespan": trace.ends_at(spans, self.sums), "exposed": [left[rank] for rank in ranks]},
        }


def _memory(job: PricingJob) -> list[float] | None:
    """Return each rank's peak in MiB; None, with a note that says why, if no run could have the model."""
    config = job.config
    if job.workload is None:
        stages, layers = job.schedule.stages, config.model.layers
        _once(console.note, f"{stages} stages are more than {layers} layers: no run, so no MiB")
        return None
    if problems := config.model.slice_problems(job.schedule.slices):
        _once(console.note, f"no run, so no MiB: {problems[0]}")
        return None
    rows = spread(config.batch_size, config.replicas)[0]
    if config.device.is_emulated and (profile := used_profile(config)) is not None:  # config.model only stands in
        if profile.tells_memory:
            return prices_of(config).forecast(job.workload, config.model.batch_bytes(rows)).peak_memory_mib
        _once(console.note, f"no MiB: {NO_MEMORY}")
        return None
    try:
        return order_peaks(config.model, config.computing, job.workload, rows)
    except ValueError as error:
        _once(console.warn, str(error))
        return None


def _number(value: Fraction) -> int | float:
    """Return an exact number as JSON has it: a whole one as an integer."""
    return value.numerator if value.denominator == 1 else float(value)


def main() -> None:
    run_app("simulate", PricingCallback.task(run_price))


@cache
def _once(say: Callable[[str], None], text: str) -> None:
    """Say something once, for however many points of a command."""
    say(text)


def run_price(point: SimulateConfig, job: PricingJob) -> dict[str, Any]:
    """Price one point, print or draw it, and return its figures."""
    priced = Price(job)
    for note in job.notes:
        _once(console.note, note)
    for doubt in job.doubts:
        _once(console.warn, doubt)
    figures = dict(priced.figures)
    peaks, given = figures["peak_memory_mib"], point.device.memory_gib
    if peaks and given is not None and max(peaks) * MIB > given * GIB:
        console.warn(
            f"rank {peaks.index(max(peaks))} needs {max(peaks):.1f} MiB, more than device.memory_gib={given:g}: "
            f"the run is refused; python -m microp.plan ranks={point.ranks} memory_gib={given:g} finds what fits"
        )
    if point.output == "json":
        print(json.dumps(figures), flush=True)
        return figures
    figures["lines"], figures["folder"] = priced.lines(out.width), None
    if len(priced.timeline) <= trace.DRAWN:
        folder = Path(point.output_dir) / "simulated" / run_id(plain(point), to_text(priced.schedule))
        priced.save(folder)
        figures["folder"] = str(folder)
    return figures


class PricingCallback(PointsCallback):
    """Prices the points that are valid, and prints all prices as a table, a single one in full.

    Nothing is started, so Hydra need not compose the points again, and a point that is not valid costs its row alone.
    """

    in_part = True

    @classmethod
    def prepare(cls, config: Config) -> PricingJob:
        assert isinstance(config, SimulateConfig)
        return make_pricing_job(config)

    def begin(self, config: DictConfig, points: list[Point]) -> None:
        if not points:  # a sweeper that learns chooses them one by one, for the task
            return
        _once.cache_clear()
        priced, is_text = [], config.output == "text"
        with bar("pricing") if is_text else nullcontext(lambda _: None) as tick:
            for number, (typed, asked, job) in enumerate(points, start=1):
                assert isinstance(asked, SimulateConfig)
                priced.append(Priced(plain(asked), typed, run_price(asked, job)))
                tick(number / len(points))
        if is_text:
            show_prices(priced)
        raise SystemExit(BAD_INPUT if self.refused else 0)


# --- the table of prices ------------------------------------------------------------------------------


class Priced(NamedTuple):
    """A point of a command, and its price."""

    config: dict[str, Any]  # the resolved configuration
    overrides: list[str]  # what was typed for it
    figures: dict[str, Any]  # the numbers of the price


def show_prices(points: Sequence[Priced]) -> None:
    """Print a table of simulated schedules; a single one with its timeline."""
    configs, typed = [point.config for point in points], points[0].overrides
    heading = "simulated:" if len(points) == 1 else f"{len(points)} simulated, the same in all:"
    paragraph(" ".join([heading, *same(configs, typed, MATTERS)]), style="")
    prices = [point.figures for point in points]
    results = [
        Column(name, list(map(text, prices)), importance=importance, about=f"{name}: {meaning}." if meaning else "")
        for name, importance, text, meaning in _COLUMNS
    ]
    if any(price["reduction"] for price in prices) and len(prices) > 1:
        sums = ["-" if (found := price["reduction"]) is None else f"{found['makespan']:g}" for price in prices]
        results.insert(
            1, Column("with the sums", sums, importance=85, about="with the sums: of gradients, at the end.")
        )
    has_units = all(config["device"]["name"] in ("cpu", "cuda") and not config["profile"] for config in configs)
    if has_units and len({config["chunks"] for config in configs}) > 1:
        console.warn("a cost is of a microbatch, whatever its rows: compare bubbles, or makespans of equal chunks")
    elif reason := unscaled(configs):
        console.warn(reason)
    show_columns([*swept_columns(asked(configs, [point.overrides for point in points])), *results], WHOLE)
    if len(prices) == 1:
        _show_timeline(prices[0])
    folders = [price["folder"] for price in prices if price["folder"]]
    if folders:
        out.print()
        for folder in folders:
            out.print(f"drawn {folder}", soft_wrap=True, markup=False)
        out.print(f"files {FILES}\nopen  a trace.json in ui.perfetto.dev", soft_wrap=True)


def _known(value: float | None) -> str:
    return "-" if value is None else f"{value:g}"


def _show_timeline(price: dict[str, Any]) -> None:
    """Print the timeline of a price and the numbers of its ranks."""
    out.print()
    console.draw(price["lines"])
    known = price["closed_form"]["in_flight_peak"]
    form = f" (closed form {_listed(known)})" if known else ""
    out.print(f"in flight per rank: {_listed(price['in_flight_peak'])}{form}", soft_wrap=True)
    if price["peak_memory_mib"]:
        out.print(f"peak MiB per rank:  {_listed(price['peak_memory_mib'], '.1f')}", soft_wrap=True)
    if sums := price["reduction"]:
        out.print(f"with the sums: makespan {sums['makespan']:g}", soft_wrap=True)
        out.print(f"wait for the sums per rank: {_listed(sums['exposed'])}", soft_wrap=True)


def _listed(values: Sequence[float], form: str = "g") -> str:
    return " ".join(format(value, form) for value in values)
