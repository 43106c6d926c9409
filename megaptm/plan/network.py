"""Planned time of communication on a machine's links.

Ranks are numbered tensor first, then data, then pipeline, as in megatron-core, and fill nodes in that order. Neighbors
of a group are `stride` ranks apart.
"""

from __future__ import annotations

from megaptm.plan.machine import Machine

START_MICROSECONDS = 8.4
"""Microseconds to start a collective: NCCL's value for the simple protocol (src/graph/tuning.cc)."""


def neighbors_inside(machine: Machine, *, ranks: int, stride: int) -> int:
    """Return the number of ranks of a communication group that share a node."""
    return max(1, min(ranks, machine.devices // stride))


def collective_seconds(machine: Machine, size: float, *, ranks: int, stride: int) -> float:
    """Return the seconds of an all-gather or reduce-scatter of `size` bytes in total; an all-reduce is two of them.

    In a ring each rank passes (ranks - 1) / ranks of the bytes on. A ring enters and leaves each node once. NCCL builds
    as many rings as the node has adapters, so ranks of a group that share a node share its adapters.
    """
    if ranks == 1:
        return 0.0
    inside = neighbors_inside(machine, ranks=ranks, stride=stride)
    fast = machine.intra_node.gigabytes_per_second * machine.intra_node.efficiency
    if inside == ranks:
        rate = fast
    else:
        slow = machine.inter_node.gigabytes_per_second * machine.inter_node.efficiency * inside
        rate = min(fast, slow)
    return size * (ranks - 1) / ranks / (rate * 1e9) + _ring_latency(machine, ranks, inside)


def _ring_latency(machine: Machine, ranks: int, inside: int) -> float:
    """Return the seconds of the smallest message around a ring of ranks, hop by hop, as NCCL estimates it
    (src/graph/tuning.cc)."""
    if ranks == inside:
        return (START_MICROSECONDS + (ranks - 1) * machine.intra_node.microseconds) * 1e-6
    nodes = ranks // inside
    hops = (nodes - 1) * machine.inter_node.microseconds + (ranks - nodes) * machine.intra_node.microseconds
    return (START_MICROSECONDS + hops) * 1e-6


def message_seconds(machine: Machine, size: float, *, stride: int, ranks: int) -> float:
    """Return the seconds to send `size` bytes to the rank that is `stride` ahead, in a job of `ranks` processes."""
    link = machine.intra_node if stride * 2 <= machine.devices or ranks <= machine.devices else machine.inter_node
    return size / (link.gigabytes_per_second * link.efficiency * 1e9) + link.microseconds * 1e-6
