"""How far are the replayed and the predicted step time from the measured one?

::

    a run's own action times and hops  ── simulate ──► replayed makespan ───────┐
    its measured steps ── median of last end - first start ──► measured ────────┴─► error

The noise is the distance of a launch from the median of the other launches of its question. An
estimate that does not know the launch itself cannot be expected to be more accurate.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import seaborn as sns
from matplotlib.axes import Axes

from analysis import looks, plot, scales
from analysis.command import run
from analysis.exhibit import Exhibit, counted, kind_of, percent
from analysis.forecasts import BASELINES, FORECASTS, forecasts, of_the_others, summary
from analysis.varied import differing
from analysis.words import doubts, sentences
from microp.records import Row, read_some_rows, read_spans, traced_schedule
from microp.results import records
from microp.simulator import replay_steps
from microp.trace import makespan

SMALLEST = 0.05  # %: an error below it is drawn as this, as the axis is logarithmic
CLIPPED = f"errors below {SMALLEST} % are drawn there"
MARKED = 50  # runs of a curve at most
NOISE = (0, (3, 2))  # the dashes of the noise between launches


class Given(NamedTuple):
    """The runs, and what is known of them."""

    runs: pd.DataFrame
    replayed: pd.DataFrame  # one row per run: both makespans, the replay's error, the launch's noise
    forecasts: pd.DataFrame  # one row per configuration that was predicted
    judged: pd.DataFrame  # their summary


def prepared(runs: pd.DataFrame) -> Given:
    """Return the runs with their replays and their forecasts, of which there may be none."""
    table = pd.DataFrame([line for row in records(runs) for line in _compare(row)])
    if not table.empty:
        table["error"] = table["replayed_ms"] / table["measured_ms"] - 1
        table["noise"] = table.groupby("question")["measured_ms"].transform(
            lambda own: own / of_the_others(own, np.median) - 1 if len(own) > 1 else own * np.nan  # from the others
        )
    predicted = forecasts(runs)
    return Given(runs, table, predicted, predicted if predicted.empty else summary(predicted))


def exhibits(given: Given) -> list[Exhibit | None]:
    """Return a figure of the replays of all runs, and one of what was predicted before they ran."""
    return [_replayed(given.runs, given.replayed), _predicted(*given)]


def answer(given: Given) -> str:
    """Return sentences per kind of computation on the errors of replay and prediction, and on the noise of launches."""
    _, table, _, known = given
    if table.empty:
        return ""
    told = [f"replayed from its own actions: {_summary(str(kind), own)}" for kind, own in table.groupby("kind")]
    for _, own in known.groupby("kind") if not known.empty else ():
        kinds = {row["forecast"]: row for row in records(own)}
        others = ", ".join(f"{name} {percent(kinds[name]['median'])}" for name in BASELINES if name in kinds)
        baselines = f"; median error of the baselines: {others}" if others else ""
        told.append(f"predicted before the run: {judged(kinds['predicted'])}{baselines}")
    return sentences(told)


def _replayed(runs: pd.DataFrame, table: pd.DataFrame) -> Exhibit | None:
    if table.empty:
        return None
    summary = "; ".join(_summary(kind, own) for kind, own in table.groupby("kind"))
    several = table["run_id"].nunique() > 1
    text = (
        f"{'First: m' if several else 'M'}akespan of a step, replayed (simulated with the run's own action and hop "
        "times), against the median measured one. "
        + (f"Second: cumulative share of runs by the error of the replayed makespan; {CLIPPED}. " if several else "")
        + ("Noise: a launch's distance from the median of the other launches. " if table["noise"].notna().any() else "")
        + f"{summary}."
    )
    used = runs[runs["run_id"].isin(table["run_id"])]
    keys = {f"config.{key}": key for key in differing(used) if key not in ("chunks", "ranks", "schedule.name")}
    shown = table.merge(used[["run_id", *keys]], on="run_id").rename(columns=keys)
    shown = shown.drop(columns="question").sort_values(["kind", "run_id"])
    return Exhibit("replayed-measured", "Replayed against measured", text, _draw(table), shown, used)


def _predicted(runs: pd.DataFrame, _: pd.DataFrame, table: pd.DataFrame, known: pd.DataFrame) -> Exhibit | None:
    if table.empty:
        return None
    best = [judged(row) for row in records(known[known["forecast"] == "predicted"])]
    text = (
        "Step times known before the run, from a profile or from nominal times, against measured ones; a marker per "
        "configuration, the median of its launches. Second: median error over configurations (hollow if most of these "
        "are) of the prediction, of the replay and of three baselines, each with one number fitted to the other "
        "configurations of the problem: the busiest rank's operations (FLOPs), these over 1 - (K-1)/(M+K-1) (closed "
        f"bubble), and the mean step time; {CLIPPED}. {'; '.join(best)}. Bias: the median error with its sign."
    )
    if known["tau"].notna().any():
        text += " Kendall's tau: 1 if the prediction ranks configurations as measured, -1 if in reverse."
    if known["regret"].notna().any():
        text += " Regret: how much longer the plan of least predicted time, of several the slowest, took than the best."
    if table["uncounted"].any():
        text += " Where nominal times do not count rows, or layers, only equal M, or numbers of stages, are ranked."
    figure, axes = plot.panels(2, 3.2)
    scatter(axes[0], table.assign(hollow=table["measured.wide"]), "group", "measured", "predicted", "step")
    known = known.assign(shown=(100 * known["median"]).clip(lower=SMALLEST))
    kinds = sorted(known["kind"].unique())
    named = looks.looks([*sorted(table["group"].unique()), *kinds])  # other looks than those of the first panel
    for number, kind in enumerate(kinds):
        own, look = known[known["kind"] == kind], named[kind]
        at = [FORECASTS.index(name) + 0.15 * number for name in own["forecast"]]
        fill = "none" if own["hollow"].all() else "full"  # of most configurations
        axes[1].plot(own["shown"], at, look.marker, color=look.colour, label=f"error, {kind}", fillstyle=fill)
    scales.logarithmic(axes[1].xaxis, known["shown"])
    scales.name_rows(axes[1], list(FORECASTS))
    plot.titled(axes[1], x="median error, %", own=True)
    plot.legend(figure, [looks.thin("predicted = measured")])
    used = runs[runs["predicted.step_ms"].notna()]
    return Exhibit("predicted-measured", "Predicted against measured", text, figure, table, used)


def judged(row: dict[str, Any]) -> str:
    """Return what the prediction of one kind of runs was worth."""
    text = (
        f"{row['kind']}, {counted(int(row['n']), 'configuration')}{row['doubts']}: median error "
        f"{percent(row['median'])}, 90 % within {percent(row['p90'])}, bias {100 * row['bias']:+.1f} %"
    )
    text += "" if pd.isna(row["tau"]) else f", Kendall's tau {row['tau']:.2f}"
    return text + ("" if pd.isna(row["regret"]) else f", regret of the plan chosen {percent(row['regret'])}")


def scatter(axis: Axes, table: pd.DataFrame, by: str, measured: str, other: str, what: str) -> None:
    """Draw the column `other` of times in ms over that of the measured ones, with a look for each value of `by`."""
    for name, look in looks.looks(sorted(table[by].unique())).items():
        own = table[table[by] == name]
        across, up, wide = (own[column].to_numpy() for column in (measured, other, "hollow"))
        axis.plot(across, up, look.marker, color=look.colour, label=str(name), markersize=4)
        plot.hollow(axis, across, up, wide.astype(bool), look, markersize=4)
    plot.titled(axis, x=f"measured {what}, ms", y=f"{other.removesuffix('_ms')} {what}, ms", own=True)
    for scale in (axis.xaxis, axis.yaxis):
        scales.logarithmic(scale, [*table[measured], *table[other]])
    axis.plot(axis.get_xlim(), axis.get_xlim(), zorder=1, **looks.THIN)


def _compare(row: dict[str, Any]) -> Iterator[Row]:
    """Yield the replayed and the measured makespan of a run; nothing if there is no trace or several replicas."""
    attempt = Path(row["folder"])
    spans, steps = read_spans(attempt), measured_steps(attempt, row["ranks"])
    if not spans or not steps or row["replicas"] != 1:
        return
    schedule = traced_schedule(attempt, spans, row["schedule"])
    replayed = makespan(replay_steps(schedule, steps, spans))
    yield {
        **{key: row[key] for key in ("run_id", "question")},
        "kind": kind_of(row["device"]),
        **{key: row[key] for key in ("schedule", "ranks", "chunks", "disturbed")},
        "replayed_ms": float(replayed),
        "measured_ms": median(map(makespan_ms, steps)),
    }


def measured_steps(attempt: Path, ranks: int) -> list[list[Row]]:
    """Return the rows of each measured step, one per rank in the order of ranks; of very many steps, of some thousand.

    If several engines ran in turn, only the steps of the run's own engine count, which ran the last step.
    """
    every = read_some_rows(attempt, ranks)
    measured = [
        [row for row in own if row["phase"] == "measured" and row.get("engine") == own[-1].get("engine")]
        for own in every
    ]
    return [list(step) for step in zip(*measured, strict=False)]


def makespan_ms(step: Sequence[Row]) -> float:
    return float(max(row["last_end_ns"] for row in step) - min(row["first_start_ns"] for row in step)) / 1e6


def _summary(kind: Any, own: pd.DataFrame) -> str:
    error, noise = own["error"].abs(), own["noise"].abs().dropna()
    most = f"90 % of runs within {percent(error.quantile(0.9))}"
    text = f"{kind}, {counted(len(own), 'run')}{doubts(own, 'error')}: median error {percent(error.median())}, {most}"
    return text if noise.empty else f"{text} (noise {percent(noise.median())} and {percent(noise.quantile(0.9))})"


def _draw(table: pd.DataFrame) -> Any:
    several = len(table) > 1
    figure, axes = plot.panels(1 + several, 3.0)
    scatter(axes[0], table.assign(hollow=table["disturbed"]), "kind", "measured_ms", "replayed_ms", "makespan")
    keys = [looks.thin("replayed = measured")]
    if several:
        _errors(axes[1], table)
        noise = [looks.line("noise between launches", NOISE)] * bool(table["noise"].notna().any())
        keys = [looks.line("error", "-"), *noise, looks.thin("first panel: replayed = measured; second: 1 % and 5 %")]
    plot.legend(figure, keys)
    return figure


def _errors(axis: Axes, table: pd.DataFrame) -> None:
    """Draw the cumulative shares of runs over the size of error and noise, with markers for some runs' errors."""
    for kind, look in looks.looks(sorted(table["kind"].unique())).items():
        own = table[table["kind"] == kind].sort_values("error", key=abs, kind="stable")
        sizes = (100 * own[["error", "noise"]].abs()).clip(lower=SMALLEST)
        sns.ecdfplot(x=sizes["error"], ax=axis, color=look.colour)
        if sizes["noise"].notna().any():
            sns.ecdfplot(x=sizes["noise"].dropna(), ax=axis, color=look.colour, linestyle=NOISE, linewidth=1)
        some = slice(None, None, -(-len(own) // MARKED))
        error, share = sizes["error"].to_numpy()[some], np.linspace(0, 1, len(own) + 1)[1:][some]
        axis.plot(error, share, look.marker, color=look.colour, markersize=4)
        plot.hollow(axis, error, share, own["disturbed"].to_numpy(dtype=bool)[some], look, markersize=4)
    for distance in (1, 5):
        axis.axvline(distance, **looks.THIN)
    plot.titled(axis, x="error, %", y="share of runs", own=True)
    scales.logarithmic(axis.xaxis, (SMALLEST, 60))
    axis.set_ylim(0, 1.03)


if __name__ == "__main__":
    run(__file__)
