"""Planned cost of a checkpoint: bytes, time, and host memory."""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil

from megaptm.config import Config
from megaptm.plan.machine import Machine
from megaptm.plan.optimizer import checkpoint_bytes


@dataclass(frozen=True)
class CheckpointCost:
    """Planned cost of one checkpoint; every rank writes its part (train/checkpointer.py)."""

    bytes: float
    seconds: float
    """Seconds from the start of a checkpoint until it is complete."""
    stall: float
    """Seconds that training waits for a checkpoint: until it is complete, or until it is copied to host memory."""
    host_bytes: float
    """Bytes of host memory of a node for copies of a checkpoint, which stay allocated between checkpoints. The first
    node also needs those of the float32 weights while a Hugging Face copy is written (`hub.export_every`)."""

    def stall_at(self, interval: float) -> float:
        """Return the seconds that training waits at each checkpoint, if they are `interval` seconds of steps apart.

        A checkpoint waits until the one before is written.
        """
        return max(self.stall, self.seconds - interval)


def estimate_checkpoint_cost(config: Config, machine: Machine, parameters: int) -> CheckpointCost:
    """Estimate the cost of a checkpoint of `parameters` that all nodes write at once."""
    size, processes = float(checkpoint_bytes(config, parameters)), config.layout.processes
    nodes = ceil(processes / machine.devices)
    writing = size / (nodes * machine.disk_gigabytes_per_second * 1e9)
    exported = 0.0 if config.hub.export_every is None else 4.0 * parameters
    if not config.checkpoint.asynchronous:
        return CheckpointCost(size, writing, stall=writing, host_bytes=exported)
    copying = size / (processes * machine.host_gigabytes_per_second * 1e9)
    return CheckpointCost(size, copying + writing, stall=copying, host_bytes=size / nodes + exported)
