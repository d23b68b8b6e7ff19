"""The columns of what runs found: how each number is written, what it means, and which is left out first."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

from microp.results import PointRow
from microp.terminal.columns import Column, number
from microp.terminal.console import arrow

LISTED_RANKS = 2  # with more ranks, the column of peaks has the smallest and the largest


class Result(NamedTuple):
    """A column of what was found.

    `about` says what it means, for the rows that are shown; it is empty if its name or another column says it.
    """

    name: str  # the heading
    importance: int  # columns of the lowest importance are left out first
    value: Callable[[PointRow], str | None]  # what a row has in the column
    about: str | Callable[[Sequence[PointRow]], str] = ""

    def meaning(self, rows: Sequence[PointRow]) -> str:
        """Return what the column means, for these rows."""
        return self.about if isinstance(self.about, str) else self.about(rows)

    def column(self, rows: Sequence[PointRow]) -> Column:
        """Return the column with the values of these rows."""
        if self.name == "status":
            return Column(self.name, [row.summary["status"] for row in rows], "left", self.importance)
        if self.name == "disturbed":
            return Column(self.name, [self.value(row) or "" for row in rows], "left", self.importance, 12, "yellow")
        values = [self.value(row) or "-" for row in rows]
        if self.name == "peak MiB" and any(len(row.summary["peak_memory_mib"] or ()) > LISTED_RANKS for row in rows):
            values = [extremes(row.summary["peak_memory_mib"], ".1f") for row in rows]
        return Column(self.name, values, importance=self.importance)


def results(rows: Sequence[PointRow]) -> list[Result]:
    """Return the columns in which at least one of the rows has something."""
    return [result for result in _RESULTS if any(result.value(row) is not None for row in rows)]


def milliseconds(value: float) -> str:
    """Return a time with one digit after the point, or two or more if it is short."""
    return number(value, ".1f" if value >= 10 else ".2f")


def extremes(values: Iterable[float] | None, form: str) -> str:
    """Return the smallest and the largest value, one number if they look the same, `-` if there is none."""
    if not (known := list(values or ())):
        return "-"
    low, high = number(min(known), form), number(max(known), form)
    return low if low == high else f"{low} - {high}"


def _figure(form: Callable[[float], str], keys: str) -> Callable[[PointRow], str | None]:
    """Return the function that writes the number below these keys of a summary; of older ones, some lack it."""

    def value(row: PointRow) -> str | None:
        found: Any = row.summary
        for key in keys.split("."):
            found = (found or {}).get(key)
        return None if found is None else form(found)

    return value


def _spread(row: PointRow) -> str | None:
    step = row.summary["step_ms"]
    return f"{milliseconds(step['p10'])} - {milliseconds(step['p90'])}" if step else None


def _peaks(row: PointRow) -> str | None:
    peaks = row.summary["peak_memory_mib"]
    return " ".join(number(peak, ".1f") for peak in peaks) if peaks else None


def _loss(row: PointRow) -> str | None:
    loss = row.summary["loss"]
    if not loss:
        return None
    first, last = ("not finite" if loss[key] is None else format(loss[key], ".2f") for key in ("first", "last"))
    return f"{first} {arrow()} {last}"


def _status(row: PointRow) -> str | None:
    return None if row.summary["status"] == "finished" else str(row.summary["status"])


def _about_samples(rows: Sequence[PointRow]) -> str:
    gaps = [gap for row in rows if (gap := row.summary.get("between_steps_ms")) is not None]
    between = f"{extremes(gaps, '.1f')} ms (median) " if gaps else ""
    return f"samples/s: batch_size / step ms, so without the {between}between two steps (to load a batch, write rows)."


def _about_formula(rows: Sequence[PointRow]) -> str:
    emulated = sorted({row.summary["device"] == "emulated" for row in rows})
    times = {False: "equal layers, F = B = W and free hops", True: "an emulated device's nominal times"}
    known = " or for ".join(times[each] for each in emulated)
    return f"formula: the bubble by the schedule's closed form, for {known}."


def _about_engines(rows: Sequence[PointRow]) -> str:
    compared = [row for row in rows if row.summary["engines"]]
    emulated = all(row.summary["device"] == "emulated" for row in compared)
    limit = "simulated with the device's nominal times" if emulated else "one rank's compute alone, times (M+K-1)/M"
    about = f"microp, torch, limit ms: forward and backward of a step, medians; the limit is {limit}."
    return " ".join([about, *_about_other_orders(compared)])


def _about_other_orders(rows: Sequence[PointRow]) -> Iterator[str]:
    """Yield which order torch ran instead of microp's, and how the limits of the two differ, one sentence per pair."""
    pairs: dict[tuple[str, str], list[float]] = {}
    for row in rows:
        own, engines = row.summary["schedule"], row.summary["engines"]
        if engines["torch_schedule"] not in (own, None):
            ratios = pairs.setdefault((own, engines["torch_schedule"]), [])
            if limits := engines.get("own_limit_ms"):  # older runs have none
                ratios.append(limits["torch"] / limits["microp"])
    for (own, other), ratios in sorted(pairs.items()):
        apart = f", whose own limit is {extremes(ratios, '.2f')} times that of {own}" if ratios else ""
        yield f"torch has no {own} and ran {other}{apart}."


def _about_step(rows: Sequence[PointRow]) -> str:
    about = "step ms: pipeline and optimizer of a step, median of the measured steps."
    in_turn = "Where engines ran in turn, the columns that name none are microp's; where sums did, ddp's."
    return f"{about} {in_turn}" if any(row.summary["engines"] or row.summary["syncs"] for row in rows) else about


def _about_peaks(rows: Sequence[PointRow]) -> str:
    several = any(row.summary["replicas"] > 1 for row in rows)
    many = any(len(row.summary["peak_memory_mib"] or ()) > LISTED_RANKS for row in rows)
    which = ", the larger of its replicas" if several else ""
    extent = ", the least and the largest" if many else ""
    return f"peak MiB: tensors of each rank{which}{extent}, as metered in one further step."


_TURNS = (
    "Ratios of engines, or of sums, are medians over steps that ran in turn; "
    "the verdict is their geometric mean over launches."
)
_BUBBLE = "bubble: idle / total time of all ranks, median of the measured steps."
_SUMS = "ddp, torch_ddp ms: of a step, medians."
_RATIO, _FRACTION = "{:.2f}".format, "{:.3f}".format
_RESULTS = (
    Result("step ms", 90, _figure(milliseconds, "step_ms.median"), _about_step),
    Result("p10 - p90", 40, _spread, "p10 - p90: of the measured steps."),
    Result(
        "predicted ms", 45, _figure(milliseconds, "predicted.step_ms"), "predicted ms: of a step, known before the run."
    ),
    Result("disturbed", 85, lambda row: ", ".join(each.text for each in row.disturbed) or None),
    Result("torch / microp", 80, _figure(_RATIO, "engines.ratio.torch/microp"), _TURNS),
    Result("microp ms", 78, _figure(milliseconds, "engines.pipeline_ms.microp.median"), _about_engines),
    Result("torch ms", 77, _figure(milliseconds, "engines.pipeline_ms.torch.median"), _about_engines),
    Result("limit ms", 76, _figure(milliseconds, "engines.pipeline_ms.limit.median"), _about_engines),
    Result("microp / limit", 75, _figure(_RATIO, "engines.ratio.microp/limit"), _TURNS),
    Result("ddp / torch_ddp", 80, _figure(_RATIO, "syncs.ratio.ddp/torch_ddp"), _TURNS),
    Result("ddp ms", 78, _figure(milliseconds, "syncs.step_ms.ddp.median"), _SUMS),
    Result("torch_ddp ms", 77, _figure(milliseconds, "syncs.step_ms.torch_ddp.median"), _SUMS),
    Result("samples/s", 50, _figure("{:,.0f}".format, "samples_per_s"), _about_samples),
    Result("bubble", 80, _figure(_FRACTION, "bubble.measured"), _BUBBLE),
    Result("formula", 60, _figure(_FRACTION, "bubble.closed_form"), _about_formula),
    Result("peak MiB", 80, _peaks, _about_peaks),
    Result("loss", 30, _loss, "loss: of the first and the last measured step."),
    Result("status", 95, _status),
)
