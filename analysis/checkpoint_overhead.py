"""Recomputation of activations: its cost in time and its saving in memory.

::

    step_ms │        ● always            penalty: step time over that of the same launch with
            │   ● segments                        every activation kept (`never`)
            │      ○ except_last         simulated: the schedule simulated with the measured F, B
            │                  ● never              and R, over the same with `never`'s F and B
            └──────────────────── MiB

Measured bytes are compared with GPipe's memory law; see `memory_law`.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import replace
from operator import itemgetter
from pathlib import Path
from statistics import median
from typing import Any

import pandas as pd

from analysis import plot
from analysis.command import main
from analysis.exhibit import INTERVALS, Exhibit, drawn
from analysis.memory_law import laws
from analysis.prediction import measured_steps
from microp.schedule import Schedule
from microp.simulator import Costs, calibrate_steps, schedule_of, simulate
from microp.store import LAUNCH, Store, over_launches, paired, read_spans, records, worst_rank_mib
from microp.trace import makespan

NAME = "checkpoint_overhead"
POLICIES = ("never", "except_last", "always", "segments")
SAME = ["model", "ranks", "batch_size", "schedule", "chunks"]  # two policies are compared where these agree
POINT = ["model", "schedule", "checkpointing", "chunks"]


def exhibits(store: Store) -> list[Exhibit]:
    """Return up to three figures: memory against time, the penalty, and the memory."""
    runs = store.runs(NAME)
    if runs.empty:
        return []
    runs = runs.drop_duplicates([*POINT, LAUNCH]).reset_index(drop=True)
    compared = compare(runs)
    made = [pareto(runs, compared), penalty(compared), memory(runs)]
    return drawn(made, store.missing(NAME))


# --- time ------------------------------------------------------------------------------------------


def compare(runs: pd.DataFrame) -> pd.DataFrame:
    """Return the runs that recompute, each compared with the run of the same launch that keeps everything.

    Returns:
        their rows with four more columns: `ratio`, the ratio of step times; `simulated`, the ratio
        simulated with the run's own F, B and R; `R alone`, the ratio simulated with its R, but
        `never`'s F and B; and `kept`, the ratio of peak activations on the worst rank.
    """
    runs = runs.assign(worst_mib=worst_rank_mib(runs))
    plain = runs[runs["checkpointing"] == "never"]
    others = runs[runs["checkpointing"] != "never"]
    saved = paired(others, plain, SAME, "worst_mib").rename(columns={"ratio": "kept"})
    both = paired(saved, plain, SAME, "step_ms.median")
    launch = itemgetter(*SAME, LAUNCH)
    without = {launch(row): row for row in records(plain)}
    simulated = [simulated_ratios(without[launch(row)], row) for row in records(both)]
    return both.assign(**pd.DataFrame(simulated, both.index, ["simulated", "R alone"]))


def simulated_ratios(plain: dict[str, Any], row: dict[str, Any]) -> tuple[float, float]:
    """Return the simulated ratios of step times, with recomputation over without.

    Args:
        plain: the run that keeps everything.
        row: the run that recomputes.

    Returns:
        the ratio with F, B and R of `row`, and the ratio with F and B of `plain` and R of `row`.
        Both are NaN without traces. The F and B of `row` are shorter: its forward keeps nothing,
        and its backward finds the rebuilt activations in the cache.
    """
    folder = Path(plain["folder"])
    spans, steps = read_spans(folder), measured_steps(folder, plain["ranks"])
    again = measured_steps(Path(row["folder"]), row["ranks"])
    if not spans or not steps or not again:
        return float("nan"), float("nan")
    schedule, spare_last = schedule_of(spans, plain["schedule"]), bool(row["config.checkpointing.spare_last"])
    costs = calibrate_steps(schedule, steps, spans)
    dearer = with_recomputation(schedule, costs, again, spare_last)
    own, share = calibrate_steps(schedule, again, spans), 1 - spare_last / schedule.chunks
    backward = tuple(b - r * share for b, r in zip(own.backward, dearer.recompute, strict=True))
    own = replace(dearer, forward=own.forward, backward=backward)
    before, *after = (float(makespan(simulate(schedule, each))) for each in (costs, own, dearer))
    with_own, with_plain = (1 + (each - before) / plain["step_ms.median"] for each in after)
    return with_own, with_plain


def with_recomputation(schedule: Schedule, costs: Costs, steps: Sequence[Any], spare_last: bool) -> Costs:
    """Return `costs` with the recomputation time per microbatch and stage, in ms, that `steps` recorded."""
    number = schedule.chunks - spare_last
    per_rank = [
        median(step[rank]["recompute_ms"] for step in steps) / max(1, number * len(schedule.stages_of(rank)))
        for rank in range(len(schedule.ranks))
    ]
    recompute = tuple(per_rank[schedule.placement[stage]] for stage in range(schedule.stages))
    return replace(costs, recompute=recompute, spared=(schedule.chunks - 1,) if spare_last else ())


def penalty(compared: pd.DataFrame) -> Exhibit | None:
    """Return the figure of the step time relative to `never` against M, measured and simulated."""
    if compared.empty:
        return None
    table = over_launches(compared, POINT, ["ratio", "simulated", "R alone", "kept"])
    table["overhead"] = table["ratio"] - 1
    for name in ("simulated", "R alone"):
        table[f"overhead / {name}"] = table["overhead"] / (table[name] - 1)
    figure = _panels(table, "ratio", "simulated", "step time relative to never")
    for axis in figure.axes:
        axis.axhline(1, color="0.6", linewidth=0.8)
        axis.set_ylim(0.9, 0.1 + table[["ratio", "simulated"]].max().max())
    text = (
        "Step time over that of the same launch with every activation kept. Dashed: the schedule "
        "simulated with the measured F, B and R, over the same with the F and B of the run that keeps everything. "
        "Distance of the measured overhead (ratio - 1) from the simulated one: "
        f"{_misses(table, 'simulated')}. Adding R alone to the F and B of the run that keeps everything would give "
        "more, because a forward that keeps nothing is cheaper and a backward finds rebuilt activations in the cache; "
        f"distance from that: {_misses(table, 'R alone')}. {INTERVALS} Long bars are cut off."
    )
    return Exhibit("checkpoint-overhead-penalty", "The cost of recomputation", text, figure, table, compared)


def _misses(table: pd.DataFrame, simulated: str) -> str:
    """Return the distance of the measured overhead from the simulated one as text."""
    table = table.dropna(subset=[f"overhead / {simulated}"])
    if table.empty:
        return "unknown, because no run left a trace"
    steady = table[~table["ratio.wide"].astype(bool)]
    miss, of_steady = ((own[f"overhead / {simulated}"] - 1).abs() for own in (table, steady))
    return (
        f"{miss.median():.0%} in the median and {miss.max():.0%} at most over {len(miss)} points, "
        f"{(miss <= 0.1).sum()} of them within 10 %; of the {len(steady)} points whose spread is not too wide, "
        f"{(of_steady <= 0.1).sum()} are within 10 %"
    )


# --- memory ----------------------------------------------------------------------------------------


def memory(runs: pd.DataFrame) -> Exhibit | None:
    """Return the figure of the peak activations on the worst rank against M, with the memory law."""
    table = laws(runs, POINT)
    if table.empty:
        return None
    worst = table.loc[table.groupby(POINT, sort=True)["activation_mib"].idxmax()]
    for part in (".low", ".high"):
        worst[f"activation_mib{part}"] = worst["activation_mib"]
    worst["activation_mib.wide"] = False
    figure = _panels(worst, "activation_mib", "counted", "peak activations of a rank, MiB")
    for axis in figure.axes:
        axis.set_yscale("log", base=2)
        plot.plain(axis.yaxis)
    text = (
        "Peak bytes of activations on the rank that holds most, counted exactly in a separate step. Dashed: GPipe's "
        "law, n a without recomputation and n b + the largest segment with it; a, b and the segment follow from the "
        "batch's shape and from the 1F1B runs with the smallest M. The largest error over "
        f"{len(table)} points and ranks is {table['counted error'].abs().max():.1%}. With (a - b)/g for the segment, "
        f"which spreads the head over all segments, it is {table['law error'].abs().max():.1%}."
    )
    used = runs[runs["peak_activation_mib"].notna()]
    return Exhibit("checkpoint-overhead-memory", "The saving of recomputation", text, figure, table, used)


# --- both ------------------------------------------------------------------------------------------


def pareto(runs: pd.DataFrame, compared: pd.DataFrame) -> Exhibit | None:
    """Return the figure of the step time against peak activations."""
    runs = runs.assign(worst_mib=worst_rank_mib(runs)).dropna(subset=["worst_mib"])
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
        plot.plain(axis.xaxis)
        axis.set(title=model, xlabel="peak activations of a rank, MiB", ylim=(0, 1.3 * own["step_ms.median"].max()))
    axes[0, 0].set_ylabel("step time, ms")
    plot.legend(figure, [plot.FRONT])
    text = (
        "Step time against peak activations of the rank that holds most, one marker per schedule, policy and M. The "
        f"line is the Pareto front. {INTERVALS} Long bars are cut off."
    )
    if not compared.empty:
        cheapest = compared.groupby("checkpointing")[["ratio", "kept"]].median()
        text += " Relative to never, in the median over schedules and M: " + "; ".join(
            f"{name} has {line['ratio']:.2f} of the step time and {line['kept']:.2f} of the activations"
            for name, line in cheapest.reindex([p for p in POLICIES if p in cheapest.index]).iterrows()
        )
        text += "."
    return Exhibit("checkpoint-overhead-pareto", "Memory against time", text, figure, table, runs)


def _policies(table: pd.DataFrame) -> dict[Any, plot.Look]:
    """Return the looks of all policies. The usual policies come first, so that each looks the same in every figure."""
    return plot.looks([*POLICIES, *sorted(set(table["checkpointing"]) - set(POLICIES))])


def _panels(table: pd.DataFrame, value: str, simulated: str, label: str) -> Any:
    """Return a figure with one row per model and one column per schedule: `value` over M, `simulated` dashed."""
    models, schedules = sorted(table["model"].unique()), plot.in_order(sorted(table["schedule"].unique()))
    figure, axes = plot.sheet(len(models), len(schedules), (2.7, 2.3), sharey="row")
    for (model, schedule), own in table.groupby(["model", "schedule"]):
        axis = axes[models.index(model), schedules.index(schedule)]
        named = {name: look for name, look in _policies(own).items() if name in set(own["checkpointing"])}
        shifted = plot.beside(own, "chunks", "checkpointing", named)
        plot.lines(axis, shifted, "chunks", value, "checkpointing", named, simulated)
        plot.powers(axis, own["chunks"], plot.CHUNKS)
        axis.set_title(f"{model}, {schedule}")
    for axis in axes[:, 0]:
        axis.set_ylabel(label)
    plot.legend(figure, [plot.THEORY])
    return figure


if __name__ == "__main__":
    sys.exit(main(NAME, exhibits))
