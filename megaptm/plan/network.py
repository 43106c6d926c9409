"""Time of communication on a machine's links.

Ranks are numbered tensor first, then data, then pipeline, as megatron-core does, and nodes are filled in that order: a
group's neighbors are `stride` ranks apart.
"""

from __future__ import annotations

from megaptm.plan.machine import Machine

START = 8.4
"""Microseconds to begin a collective: NCCL's own figure (src/graph/tuning.cc, the simple protocol)."""


def neighbors_inside(machine: Machine, *, ranks: int, stride: int) -> int:
    """How many of a group's ranks share a node."""
    return max(1, min(ranks, machine.devices // stride))


def collective(machine: Machine, size: float, *, ranks: int, stride: int) -> float:
    """Seconds of an all-gather or reduce-scatter of `size` bytes (the whole); an all-reduce is two of them.

    A ring: each rank passes (ranks - 1) / ranks of the whole on. Between nodes a ring enters and leaves a node once,
    and NCCL makes as many rings as the node has adapters, so ranks of one group that share a node share their adapters.
    """
    if ranks == 1:
        return 0.0
    inside = neighbors_inside(machine, ranks=ranks, stride=stride)
    fast = machine.inside.gigabytes_per_second * machine.inside.efficiency
    if inside == ranks:
        rate = fast
    else:
        slow = machine.between.gigabytes_per_second * machine.between.efficiency * inside
        rate = min(fast, slow)
    return size * (ranks - 1) / ranks / (rate * 1e9) + _latency(machine, ranks, inside)


def _latency(machine: Machine, ranks: int, inside: int) -> float:
    """Seconds that a ring takes to hand on the smallest message: every hop, as NCCL reckons (src/graph/tuning.cc)."""
    if ranks == inside:
        return (START + (ranks - 1) * machine.inside.microseconds) * 1e-6
    nodes = ranks // inside
    hops = (nodes - 1) * machine.between.microseconds + (ranks - nodes) * machine.inside.microseconds
    return (START + hops) * 1e-6


def message(machine: Machine, size: float, *, stride: int, ranks: int) -> float:
    """Seconds to hand `size` bytes to the rank `stride` further on, in a job of `ranks` processes."""
    link = machine.inside if stride * 2 <= machine.devices or ranks <= machine.devices else machine.between
    return size / (link.gigabytes_per_second * link.efficiency * 1e9) + link.microseconds * 1e-6
