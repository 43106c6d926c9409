"""What full sharding costs (ZeRO-3, FSDP): published runs had it, this engine does not.

Each layer is a unit, and what is no layer is one more. A unit's weights are gathered before its forward pass and again
before its backward pass, the next unit's beside it, and its gradient is scattered after it.
"""

from __future__ import annotations

from megaptm.bricks import ModelChunk
from megaptm.plan.machine import Machine
from megaptm.plan.network import collective
from megaptm.plan.stages import parameters
from megaptm.plan.workload import Workload


def units(work: Workload, held: list[ModelChunk]) -> list[float]:
    """Parameters of each unit; the last is what is no layer."""
    heads = tuple(head for chunk in held for head in chunk.heads)
    alone = ModelChunk(layers={}, first=held[0].first, last=held[-1].last, finals=held[-1].finals, heads=heads)
    rest = parameters(work, [alone]).trained
    layers = sum(len(span) for chunk in held for span in chunk.layers.values())
    return [(parameters(work, held).trained - rest) / layers] * layers + [rest]


def gather(machine: Machine, work: Workload, held: list[ModelChunk]) -> float:
    """Seconds to gather all units once."""
    return sum(_over_data_ranks(machine, work, size * work.element) for size in units(work, held))


def scatter(machine: Machine, work: Workload, held: list[ModelChunk]) -> float:
    """Seconds to sum and divide the gradients of all units once."""
    return sum(_over_data_ranks(machine, work, size * work.software.gradient_bytes) for size in units(work, held))


def gathered_bytes(work: Workload, held: list[ModelChunk]) -> tuple[float, float]:
    """Whole weights and whole gradients on a rank at once: two layers and what is no layer, and of one layer."""
    *layers, rest = units(work, held)
    largest = max(layers, default=0.0)
    return (2 * largest + rest) * work.element, (largest + rest) * work.element


def _over_data_ranks(machine: Machine, work: Workload, size: float) -> float:
    return collective(machine, size, ranks=work.layout.data, stride=work.layout.tensor)
