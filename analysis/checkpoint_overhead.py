"""What recomputing activations costs in time, and what it saves in memory.

::

    step_ms │        ● always            penalty: a launch's step over that of the same launch
            │   ● segments                        with every activation kept
            │      ○ except_last         predicted: the schedule, simulated with the F and B that
            │                  ● never              `never` took, and the R that was measured
            └──────────────────── MiB

GPipe's memory law (arXiv 1811.06965), for a rank that holds n microbatches, each with
activations a, of which b are the inputs of its g segments:

    never  n a        g segments  n b + (a - b) / g        (always: g = 1)

The first stage's first input is the batch, which is counted nowhere. The law takes all segments
to be alike; the last rank's last one has the head as well. What that one takes is counted off
the 1F1B runs, and then the law is asked about all the others.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Any

import pandas as pd

from analysis import plot
from analysis.command import main
from analysis.exhibit import Exhibit
from analysis.prediction import measured_steps
from analysis.statistics import LAUNCH, over_launches, paired
from analysis.store import Store, records
from analysis.timeline import schedule_of
from microp.costs import Costs, of_steps
from microp.records import read_spans
from microp.schedule import Action, Op, Schedule
from microp.simulate import simulate
from microp.trace import makespan

NAME = "checkpoint_overhead"
POLICIES = ("never", "except_last", "always", "segments")
SAME = ["model", "ranks", "batch_size", "schedule", "chunks"]  # in all of which two policies are compared
POINT = ["model", "schedule", "checkpointing", "chunks"]
MIB = 2**20
CHUNKS = "microbatches M"
Made = tuple[str, str, str, Any, pd.DataFrame, pd.DataFrame]  # an Exhibit's fields, but for what is missing


def exhibits(store: Store) -> list[Exhibit]:
    """Three figures: the penalty, the memory, and both."""
    runs = store.runs(NAME)
    if runs.empty:
        return []
    runs = runs.drop_duplicates([*POINT, LAUNCH]).reset_index(drop=True)
    compared = compare(runs)
    made = [pareto(runs, compared), penalty(compared), memory(runs)]
    missing = store.missing(NAME)
    return [Exhibit(*exhibit, missing) for exhibit in made if exhibit is not None]


# --- time ------------------------------------------------------------------------------------------


def compare(runs: pd.DataFrame) -> pd.DataFrame:
    """The launches that recompute, with those of the same launch that keep everything.

    Returns:
        their rows with `ratio`, step over step, `predicted`, the same as simulated, and
        `kept`, peak activations over peak activations, of the worst rank.
    """
    runs = runs.assign(worst_mib=[_worst(row) for row in records(runs)])
    plain = runs[runs["checkpointing"] == "never"]
    others = runs[runs["checkpointing"] != "never"]
    saved = paired(others, plain, SAME, "worst_mib").rename(columns={"ratio": "kept"})
    both = paired(saved, plain, SAME, "step_ms.median")
    without = {tuple(row[key] for key in (*SAME, LAUNCH)): row for row in records(plain)}
    predicted = [predict(without[tuple(row[key] for key in (*SAME, LAUNCH))], row) for row in records(both)]
    return both.assign(predicted=predicted)


def _worst(row: dict[str, Any]) -> float:
    peaks = row["peak_activation_mib"]
    return max(peaks) if isinstance(peaks, list) else float("nan")


def predict(plain: dict[str, Any], row: dict[str, Any]) -> float:
    """What recomputation should make of a step: `plain`'s actions simulated with and without `row`'s R.

    Returns:
        a step's time over the measured one of `plain`; NaN where there is no trace.
    """
    folder = Path(plain["folder"])
    spans, steps = read_spans(folder), measured_steps(folder, plain["ranks"])
    again = measured_steps(Path(row["folder"]), row["ranks"])
    if not spans or not steps or not again:
        return float("nan")
    schedule = schedule_of(spans, plain["schedule"])
    costs = of_steps(schedule, steps, spans)
    dearer = with_recomputation(schedule, costs, again, bool(row["config.checkpointing.spare_last"]))
    extra = makespan(simulate(schedule, dearer)) - makespan(simulate(schedule, costs))
    return float(1 + extra / plain["step_ms.median"])


def with_recomputation(schedule: Schedule, costs: Costs, steps: Sequence[Any], spare_last: bool) -> Costs:
    """`costs` with the recomputation that the ranks' rows of `steps` name, a microbatch, in milliseconds."""
    number = schedule.chunks - spare_last
    per_rank = [
        median(step[rank]["recompute_ms"] for step in steps) / max(1, number * len(schedule.stages_of(rank)))
        for rank in range(len(schedule.ranks))
    ]
    recompute = tuple(per_rank[schedule.placement[stage]] for stage in range(schedule.stages))
    return replace(costs, recompute=recompute, spared=(schedule.chunks - 1,) if spare_last else ())


def penalty(compared: pd.DataFrame) -> Made | None:
    """Step time over that of `never`, against M, beside its prediction."""
    if compared.empty:
        return None
    table = over_launches(compared, POINT, ["ratio", "predicted", "kept"])
    table["overhead"] = table["ratio"] - 1
    table["overhead error"] = (table["ratio"] - 1) / (table["predicted"] - 1) - 1
    figure = _panels(table, "ratio", "predicted", "step time over never's")
    for axis in figure.axes:
        axis.axhline(1, color="0.6", linewidth=0.8)
        axis.set_ylim(0.9, 0.1 + table[["ratio", "predicted"]].max().max())
    miss = table["overhead error"].abs()
    text = (
        "Step time over that of the same launch with every activation kept. Markers: median of launches, paired by "
        "launch; bars: 95 % bootstrap interval (long ones leave the panel); broken: predicted, the schedule simulated with the F and B of the run "
        f"that keeps everything and the measured recomputation. The overhead (ratio - 1) lies {miss.median():.0%} from "
        f"the prediction's in the median of {len(miss)} points, {miss.max():.0%} at most; {(miss <= 0.1).sum()} are "
        "within 10 %."
    )
    return "checkpoint-overhead-penalty", "What recomputation costs", text, figure, table, compared


# --- memory ----------------------------------------------------------------------------------------


def boundary_mib(row: dict[str, Any]) -> float:
    """The tensor between two layers, of one microbatch."""
    context = row.get("config.model.context")
    columns = row["config.model.dim"] * (1 if context is None or pd.isna(context) else context)
    itemsize = {"float32": 4, "float64": 8}[row["config.model.dtype"]]
    return float(row["batch_size"] / row["chunks"] * columns * itemsize / MIB)


def inputs_mib(row: dict[str, Any], rank: int) -> float:
    """The inputs of the segments that `rank` keeps of one microbatch: the first stage's first is the batch."""
    segments = min(int(row["config.checkpointing.segments"]), row["partition"][rank])
    return (segments - (rank == 0)) * boundary_mib(row)


def peak_of(actions: Sequence[Action], whole: float, inputs: float, segment: float, spared: Sequence[int]) -> float:
    """The most that a rank holds over its actions: a walk along its row.

    Args:
        whole: what a microbatch holds that is not recomputed.
        inputs: what one holds that is.
        segment: what that one's B has to make again, at most.
        spared: the microbatches that are not recomputed.
    """
    held = peak = 0.0
    for op, _, microbatch in actions:
        own = whole if microbatch in spared else inputs
        if op is Op.F:
            held += own
            peak = max(peak, held)
        elif op is Op.B:
            peak = max(peak, held + (0 if microbatch in spared else segment))
            held -= own
    return peak


def laws(runs: pd.DataFrame) -> pd.DataFrame:
    """A line a rank of every point: measured, the law, and the law with the largest segment instead of the mean one."""
    rows = records(runs.dropna(subset=["peak_activation_mib"]).drop_duplicates(POINT).sort_values(POINT))
    orders = {(row["schedule"], row["chunks"]): spans for row in rows if (spans := read_spans(Path(row["folder"])))}
    single = {(row["model"], row["checkpointing"]): row for row in reversed(rows) if row["schedule"] == "1f1b"}
    lines = [
        {**{key: row[key] for key in POINT}, "rank": rank, **found}
        for row in rows
        if (row["schedule"], row["chunks"]) in orders and (row["model"], "never") in single
        for rank, found in enumerate(_laws(row, single, orders[row["schedule"], row["chunks"]]))
    ]
    return pd.DataFrame(lines)


def _laws(row: dict[str, Any], single: dict[Any, dict[str, Any]], spans: Any) -> Iterator[dict[str, float]]:
    """What the law says of each rank of a run."""
    schedule = schedule_of(spans, row["schedule"])
    plain = single[row["model"], "never"]
    like = single.get((row["model"], row["checkpointing"]), row)
    segments = int(row["config.checkpointing.segments"])
    everything = range(schedule.chunks)
    spared = everything if not segments else everything[-1:] if row["config.checkpointing.spare_last"] else ()
    for rank, actions in enumerate(schedule.ranks):
        whole = _of_one(plain, rank, 0.0) * plain["chunks"] / row["chunks"]
        inputs = inputs_mib(row, rank)
        mean = largest = (whole - inputs) / max(1, segments)
        if segments > 1:  # of one segment the whole is known
            largest = _of_one(like, rank, inputs_mib(like, rank)) * like["chunks"] / row["chunks"]
        measured = row["peak_activation_mib"][rank]
        law, counted = (peak_of(actions, whole, inputs, segment, spared) for segment in (mean, largest))
        yield {
            "in_flight": row["in_flight_peak"][rank],
            "activation_mib": measured,
            "law": law,
            "law error": measured / law - 1,
            "counted": counted,
            "counted error": measured / counted - 1,
        }


def _of_one(row: dict[str, Any], rank: int, inputs: float) -> float:
    """What a rank's peak leaves to one microbatch: of what it holds, or beside the `inputs` that each holds."""
    peak, number = row["peak_activation_mib"][rank], row["in_flight_peak"][rank]
    return float(peak - number * inputs if inputs else peak / number)


def memory(runs: pd.DataFrame) -> Made | None:
    """Peak activations of the worst rank against M, and the law."""
    table = laws(runs)
    if table.empty:
        return None
    worst = table.loc[table.groupby(POINT, sort=True)["activation_mib"].idxmax()]
    for part in (".low", ".high"):
        worst[f"activation_mib{part}"] = worst["activation_mib"]
    worst["activation_mib.wide"] = False
    figure = _panels(worst, "activation_mib", "counted", "peak activations of a rank, MiB")
    for axis in figure.axes:
        axis.set_yscale("log", base=2)
        axis.yaxis.set_major_formatter(lambda value, _: f"{value:g}")
    text = (
        "Peak bytes of activations on the rank that holds most, exact, from a step under a meter. Broken: GPipe's law, "
        "n a without recomputation and n b + the largest segment with it, from the batch's shape and from 1F1B's runs "
        f"at the smallest M: {table['counted error'].abs().max():.1%} off at most, over "
        f"{len(table)} points and ranks. With (a - b)/g for the segment, as if the head were spread over all of them, "
        f"{table['law error'].abs().max():.1%}."
    )
    used = runs[runs["peak_activation_mib"].notna()]
    return "checkpoint-overhead-memory", "What recomputation saves", text, figure, table, used


# --- both ------------------------------------------------------------------------------------------


def pareto(runs: pd.DataFrame, compared: pd.DataFrame) -> Made | None:
    """Step time against peak activations."""
    runs = runs.assign(worst_mib=[_worst(row) for row in records(runs)]).dropna(subset=["worst_mib"])
    if runs.empty:
        return None
    table = over_launches(runs, POINT, ["step_ms.median", "worst_mib"])
    best = [plot.front(own, "worst_mib", "step_ms.median") for _, own in table.groupby("model")]
    table["front"] = table.index.isin([label for labels in best for label in labels])
    models = sorted(table["model"].unique())
    figure, axes = plot.sheet(1, len(models), (3.8, 3.2))
    for axis, model in zip(axes[0], models, strict=True):
        own = table[table["model"] == model]
        plot.scatter(axis, own, "worst_mib", "step_ms.median", "checkpointing", _policies(own))
        axis.set_xscale("log", base=2)
        axis.xaxis.set_major_formatter(lambda value, _: f"{value:g}")
        axis.set(title=model, xlabel="peak activations of a rank, MiB", ylim=(0, 1.3 * own["step_ms.median"].max()))
    axes[0, 0].set_ylabel("step time, ms")
    plot.legend(figure, [plot.FRONT])
    text = (
        "Step time against peak activations of the rank that holds most, a marker for each schedule and M; the line "
        "joins what nothing else beats in both. Bars: 95 % bootstrap interval over launches; long ones leave the panel."
    )
    if not compared.empty:
        cheapest = compared.groupby("checkpointing")[["ratio", "kept"]].median()
        text += " In the median over schedules and M: " + "; ".join(
            f"{name} takes {line['ratio']:.2f} of never's time and {line['kept']:.2f} of its activations"
            for name, line in cheapest.reindex([p for p in POLICIES if p in cheapest.index]).iterrows()
        )
        text += "."
    return "checkpoint-overhead-pareto", "Memory against time", text, figure, table, runs


def _policies(table: pd.DataFrame) -> dict[Any, plot.Look]:
    """The looks of all policies, and the usual ones first, so that a policy has the same look in every figure."""
    return plot.looks([*POLICIES, *sorted(set(table["checkpointing"]) - set(POLICIES))])


def _panels(table: pd.DataFrame, value: str, predicted: str, label: str) -> Any:
    """A row of panels for each model, a column for each schedule, over M; `predicted` in broken lines."""
    models, schedules = sorted(table["model"].unique()), plot.in_order(sorted(table["schedule"].unique()))
    figure, axes = plot.sheet(len(models), len(schedules), (2.7, 2.3), sharey="row")
    for (model, schedule), own in table.groupby(["model", "schedule"]):
        axis = axes[models.index(model), schedules.index(schedule)]
        named = {name: look for name, look in _policies(own).items() if name in set(own["checkpointing"])}
        for place, (name, look) in enumerate(named.items()):
            line = own[own["checkpointing"] == name].sort_values("chunks")
            line = line.assign(chunks=plot.beside(line["chunks"], place, len(named)))
            plot.theory(axis, line["chunks"], line[predicted], look.colour)
            plot.points(axis, line, "chunks", value, look, name)
        plot.powers(axis, own["chunks"], CHUNKS)
        axis.set_title(f"{model}, {schedule}")
    for axis in axes[:, 0]:
        axis.set_ylabel(label)
    plot.legend(figure, [plot.THEORY])
    return figure


if __name__ == "__main__":
    sys.exit(main(NAME, exhibits))
