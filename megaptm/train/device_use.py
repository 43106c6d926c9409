"""Peak memory and peak FLOP/s of the devices of a run."""

from __future__ import annotations

import resource

import torch

from megaptm.config import Config
from megaptm.plan.machine import machine_of_device


def peak_memory_bytes() -> int:
    """Return the peak memory of this process so far: allocated by torch on its GPU, or resident on a CPU."""
    if torch.cuda.is_available():
        return torch.cuda.max_memory_allocated()
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024  # kilobytes on Linux


def peak_flops(config: Config) -> float | None:
    """Return the peak FLOP/s of all devices of a run, by the machine file of this process's GPU. None without such a
    file, and on CPUs."""
    machine = machine_of_device(torch.cuda.get_device_name()) if torch.cuda.is_available() else None
    if machine is None or config.train.precision not in machine.teraflops:
        return None
    return machine.peak_flops(config.train.precision) * config.layout.processes
