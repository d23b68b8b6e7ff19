"""The devices that ranks compute on: their clocks, their memory meters and the durations of their actions.

::

    open_device ──► Cpu        a mark is a time
                    Cuda       a mark is an event in the stream
                    Emulated   a CPU whose actions last their nominal times

    meters         measure live bytes and stored activations during a step
    memory_probe   measures the memory of a model's layers before a run
    peak           measures the speed of a product of matrices
    marking        puts ranges for a profiler on torch's pipeline schedules
"""

import torch

from microp.comms import Comms
from microp.device.base import Cpu, Device, Give, Run
from microp.device.cuda import Cuda, Utilisation, gpu_of
from microp.device.emulated import Emulated
from microp.device.marking import marked
from microp.device.memory_probe import probe_layers
from microp.device.meters import ActivationMeter, MemoryMeter
from microp.device.peak import peak_gflops
from microp.job import Workload
from microp.settings import DeviceSettings, EmulatedSettings


def open_device(settings: DeviceSettings, workload: Workload, comms: Comms, local_rank: int) -> Device:
    """Return the device of one rank, opened.

    Args:
        local_rank: the rank's index on its host.
    """
    torch.set_num_threads(settings.threads)
    if isinstance(settings, EmulatedSettings):
        return Emulated(settings, workload, comms.stamps)
    if settings.name != "cuda":
        return Cpu()
    index = gpu_of(settings, local_rank)
    busy = Utilisation(f"GPU-{torch.cuda.get_device_properties(index).uuid}")
    return Cuda(index, comms.timeout_s, busy=busy)
