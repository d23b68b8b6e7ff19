"""The time that a sweep still takes: predicted where it can be, else as the points that have ended."""

from __future__ import annotations

from microp.terminal.time_left import TimeLeft


def test_predicted_points_take_their_prediction_and_what_others_took_beyond_theirs():
    left = TimeLeft([10, 10, 100], [5.0, 50.0, 500.0])
    assert left.seconds() == 555
    assert left.seconds(elapsed=2.0, done=1) == 553
    assert left.seconds(elapsed=9.0, done=9) == 550  # the first takes longer than predicted, the others do not
    left.end(7.0)
    assert left.seconds() == 52 + 502  # two seconds to start and to end
    left.end(None)  # another process ran it
    assert left.seconds() == 502


def test_without_predictions_a_step_takes_what_steps_have_taken():
    left = TimeLeft([10, 20])
    assert left.seconds(elapsed=3.0) is None
    assert left.seconds(elapsed=4.0, done=2) == 56  # 2 s a step
    left.end(30.0)
    assert left.seconds(elapsed=6.0) == 54


def test_points_with_and_without_a_prediction():
    left = TimeLeft([10, 10, 10], [1.0])
    assert left.seconds() is None
    left.end(4.0)
    left.add(5, 2.0)
    assert left.seconds() == 4 + 4 + (2 + 3)
    for _ in range(4):
        left.end(1.0)
    assert left.seconds() == 0
