"""What a checkpoint takes: bytes, time, and memory of the host."""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil

from megaptm.config import Config
from megaptm.plan.machine import Machine
from megaptm.plan.optimizer import checkpoint_bytes


@dataclass(frozen=True)
class Saving:
    """One checkpoint, of which every rank writes its part (train/checkpointer.py)."""

    bytes: float
    seconds: float
    """Until it counts."""
    stall: float
    """Seconds that training stands still: all of them, or those of a copy to the host's memory."""
    host_bytes: float
    """Memory of each node that copies take; it is kept from one checkpoint to the next."""

    def stall_at(self, interval: float) -> float:
        """Seconds that training stands still at each of checkpoints `interval` seconds of steps apart.

        One that begins while the one before is being written waits for it.
        """
        return max(self.stall, self.seconds - interval)


def saving(config: Config, machine: Machine, parameters: int) -> Saving:
    """A checkpoint of a model of so many parameters, from all nodes at once."""
    size, processes = float(checkpoint_bytes(config, parameters)), config.layout.processes
    nodes = ceil(processes / machine.devices)
    writing = size / (nodes * machine.disk_gigabytes_per_second * 1e9)
    if not config.checkpoint.asynchronous:
        return Saving(size, writing, stall=writing, host_bytes=0.0)
    copying = size / (processes * machine.host_gigabytes_per_second * 1e9)
    return Saving(size, copying + writing, stall=copying, host_bytes=size / nodes)
