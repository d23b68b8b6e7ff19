"""A time between two measured numbers of rows is not on the line between them."""

from __future__ import annotations

import pytest
from profiled import profile

from microp.planner import numbers_of_rows, read_plain, row_factors, to_plain
from microp.schedule import spread
from microp.settings import MlpSettings

MODEL = MlpSettings("mlp", 8, 64, "float32")


@pytest.mark.parametrize("batch", [1, 7, 48, 240])
def test_every_microbatch_of_a_batch_is_among_them(batch):
    found = numbers_of_rows(batch)
    assert found == sorted(set(found))
    assert set(found) == {rows for chunks in range(1, batch + 1) for rows in spread(batch, chunks)}


def test_the_factor_is_what_a_line_misses():
    rows, ms = [8, 10, 11, 16, 20, 32], [1.0, 1.25, 1.5, 2.0, 2.75, 4.0]
    found = row_factors(rows, {"forward": ms}, [8.0, 16.0, 32.0, 64.0])["forward"]
    assert found == pytest.approx((1, 1, 1.5 / 1.375, 1, 2.75 / 2.5, 1))


def test_below_the_first_place_the_line_goes_on():
    found = row_factors([2, 8, 16], {"full": [1.0, 2.0, 3.0]}, [8.0, 16.0])["full"]
    assert found == pytest.approx((1 / 1.25, 1, 1))


def test_one_place_gives_no_line():
    assert row_factors([2, 8], {"full": [1.0, 2.0]}, [8.0, 16.0]) == {}


def test_a_profile_uses_the_factors_between_its_rows():
    """Its forward takes 1 + 0.1 per row at 8 and 64 rows; what is recomputed takes as much."""
    factors = {"forward": (1.0, 1.1, 1.2, 1.0)}
    given = profile(MODEL, after={}, fine_rows=(8.0, 20.0, 30.0, 64.0), row_factors=factors)
    given = read_plain(to_plain(given), "file")
    for rows, factor in ((8, 1.0), (20, 1.1), (25, 1.15), (30, 1.2), (64, 1.0), (70, 1.0), (4, 1.0)):
        times = given.layer_times(1, rows, {})
        assert times.forward == times.recompute == pytest.approx((1 + 0.1 * rows) * factor)
        assert times.full == pytest.approx(2 * (1 + 0.1 * rows))


def test_factors_without_their_rows_are_refused():
    plain = to_plain(profile(MODEL, fine_rows=(8.0, 64.0), row_factors={"forward": (1.0, 1.0)}))
    with pytest.raises(ValueError, match="one value for each of fine_rows"):
        read_plain({**plain, "fine_rows": [8.0]}, "file")
