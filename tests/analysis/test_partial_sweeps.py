"""A sweep of which only a part was run is drawn as far as it can be; other figures are left out."""

from __future__ import annotations

from itertools import combinations_with_replacement

import pandas as pd
import pytest

from analysis import hop_latency, m_sensitivity, partition_skew
from analysis.command import answer_of
from microp.records import LAUNCH
from tests.made_cases import CASES
from tests.made_sweeps import made
from tests.made_up import Made, saves


def parts_of(rows: list[dict], keys: list[str], whole: bool):
    """Yield a part for every key and every two keys, as rows of a store in which absent columns are absent.

    A part has one value of its keys: the first of the first part, the second of the second, and so on. Without
    `whole`, every third pair of keys has a part.
    """
    seen = set()
    for number, pair in enumerate(combinations_with_replacement(keys, 2)):
        if not whole and number % 3 and pair[0] != pair[1]:
            continue
        every = list(dict.fromkeys(tuple(map(row.get, pair)) for row in rows))
        values = every[number % len(every)]
        part = [row for row in rows if tuple(map(row.get, pair)) == values]
        ids = frozenset(row["run_id"] for row in part)
        if ids not in seen:
            yield ", ".join(f"{key}={value}" for key, value in zip(pair, values, strict=True)), part
        seen.add(ids)


def said_of(experiment: str, store: Made, found: list) -> str:
    """The answer beside the figures; a sweep of a user's own has it in its exhibit."""
    return found[0].answer if experiment == "sweep" else answer_of(experiment, store)


@pytest.mark.parametrize("experiment", CASES)
def test_every_part_of_a_sweep_is_drawn_or_left_out(experiment, tmp_path, whole):
    draw, few, _, keys = CASES[experiment]
    (tmp_path / "runs").mkdir()
    rows = list(few(tmp_path / "runs"))
    every = draw(Made(rows))
    stems = {exhibit.stem for exhibit in every}
    assert stems
    assert said_of(experiment, Made(rows), every)
    smallest: list = []
    for name, part in [
        *parts_of(rows, keys, whole),
        *((f"run {row['run_id']}", [row]) for row in rows[:: len(rows) // (3 if whole else 2)]),
    ]:
        try:
            found = draw(Made(pd.DataFrame(part)))
        except Exception as error:
            raise AssertionError(f"{experiment} with only {name}: {error!r}") from error
        assert {exhibit.stem for exhibit in found} <= stems
        assert "nan" not in (said := said_of(experiment, Made(pd.DataFrame(part)), found)), said
        assert not any(exhibit.table.empty for exhibit in found), name
        smallest = found if len(part) == 1 else smallest
    saves(smallest, tmp_path / "report")


def test_nothing_is_drawn_against_one_number_of_microbatches_one_latency_or_one_position(tmp_path):
    rows = [made(tmp_path, name, 4, **{"config.device.per": ["row"], LAUNCH: 0}) for name in ("gpipe", "1f1b")]
    assert m_sensitivity.exhibits(Made(rows)) == []
    rows = [made(tmp_path, "gpipe", chunks, latency=0) for chunks in (4, 8)]
    assert [exhibit.stem for exhibit in hop_latency.exhibits(Made(rows))] == ["hop-latency-step-time"]
    skewed = {"config.partition.rank": 1.0, "config.partition.share": 0.75, "config.device.per": ["layer"]}
    rows = [made(tmp_path, "gpipe", 4, partition=[1, 3], **skewed)]
    stems = [exhibit.stem for exhibit in partition_skew.exhibits(Made(rows))]
    assert stems == ["partition-skew-throughput", "partition-skew-utilisation"]
