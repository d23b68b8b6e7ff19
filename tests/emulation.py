"""Emulated devices to try: their settings, and what they run."""

from conftest import CHECKPOINTING

from microp.comms import thread_comms
from microp.device import Device, open_device
from microp.job import Workload
from microp.schedule.builders import gpipe
from microp.settings import EmulatedSettings


def settings(**changes) -> EmulatedSettings:
    given = {"forward_ms": 2.0, "backward_ms": 6.0, "weight_ms": None, "recompute_ms": None}
    return EmulatedSettings(
        **{"name": "emulated", "threads": 1, **given, "latency_ms": 0.0, "reduce_ms": None, "per": [], **changes}
    )


def workload(schedule=None, layers=(3, 2, 1), rows=(4, 4, 3), checkpointing="never") -> Workload:
    return Workload(schedule or gpipe(3, 3), layers, rows, CHECKPOINTING[checkpointing])


def opened(work: Workload, stamps: bool = True, **changes) -> Device:
    """An emulated device, beside a transport that stamps its messages or does not."""
    [comms] = thread_comms(1)
    comms.stamps = stamps
    return open_device(settings(**changes), work, comms, 0)
