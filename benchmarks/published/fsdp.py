"""What full sharding costs (ZeRO-3, FSDP): published runs had it, this engine does not.

Each layer is a unit, and what is no layer is one more. A unit's weights are gathered before its forward pass and again
before its backward pass, the next unit's beside it, and its gradient is scattered after it.
"""

from __future__ import annotations

from megaptm.bricks import ModelChunk
from megaptm.plan.costs import Passes
from megaptm.plan.machine import Machine
from megaptm.plan.network import collective
from megaptm.plan.software import Sharding
from megaptm.plan.stages import parameters
from megaptm.plan.step import uncovered
from megaptm.plan.workload import Workload


class FullSharding(Sharding):
    """Weights, gradients and moments are divided over data ranks and gathered layer by layer."""

    def seconds(self, machine: Machine, work: Workload, chunks: list[ModelChunk], passes: Passes) -> float:
        # Gathered for the forward pass and again for the backward pass, scattered after it, beside the products.
        sizes = _units(work, chunks)
        gather = sum(_over_data_ranks(machine, work, size * work.element) for size in sizes)
        scatter = sum(_over_data_ranks(machine, work, size * work.software.gradient_bytes) for size in sizes)
        beside = machine.efficiency.beside
        forward = uncovered(gather, passes.forward.total, beside)
        backward = uncovered(gather + scatter, passes.backward.total + passes.again.total, beside)
        return (forward + backward) * work.microbatches

    def gathered_bytes(self, work: Workload, chunks: list[ModelChunk]) -> tuple[float, float]:
        # Weights of two layers and of what is no layer; gradients of one layer and of that.
        *layers, rest = _units(work, chunks)
        largest = max(layers, default=0.0)
        return (2 * largest + rest) * work.element, (largest + rest) * work.element


def _units(work: Workload, chunks: list[ModelChunk]) -> list[float]:
    """Parameters of each unit; the last is what is no layer."""
    heads = tuple(head for chunk in chunks for head in chunk.heads)
    alone = ModelChunk(layers={}, first=chunks[0].first, last=chunks[-1].last, finals=chunks[-1].finals, heads=heads)
    rest = parameters(work, [alone]).trained
    layers = sum(len(span) for chunk in chunks for span in chunk.layers.values())
    return [(parameters(work, chunks).trained - rest) / layers] * layers + [rest]


def _over_data_ranks(machine: Machine, work: Workload, size: float) -> float:
    return collective(machine, size, ranks=work.layout.data, stride=work.layout.tensor)
