"""The points of a command: planned, run, resumed, on this machine, with torchrun, or as jobs of Slurm.

::

    run_app ─► SweepCallback checks and plans all points ─► run_point ─► an attempt on disk ─► a table
"""

from microp.sweep.hydra_app import run_app
from microp.sweep.hydra_callbacks import Point, PointsCallback
from microp.sweep.next_commands import used_words
from microp.sweep.points import board, run_attempt, run_point
