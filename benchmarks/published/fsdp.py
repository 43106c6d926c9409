"""Memory and step time of full sharding (ZeRO-3, FSDP), which published runs used and megaptm does not have.

Weights, gradients and moments are divided over data ranks. Each layer is a unit, and everything outside layers is one
more. The weights of a unit are gathered before its forward pass and again before its backward pass, while the previous
unit computes; its gradient is scattered after the backward pass.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from megaptm.models.chunk import ModelChunk
from megaptm.plan import activations, costs
from megaptm.plan.costs import PassTimes
from megaptm.plan.machine import Machine
from megaptm.plan.memory import Memory, estimate_memory
from megaptm.plan.network import collective_seconds
from megaptm.plan.stages import count_rank_parameters, count_stages
from megaptm.plan.step import StepTime, estimate_step, exposed_seconds
from megaptm.plan.workload import Workload


def sharded_memory(work: Workload) -> Iterator[Memory]:
    """Yield the memory of each stage's ranks."""
    work, ranks = _with_divided_moments(work), work.layout.data
    for planned, stage in zip(estimate_memory(work), count_stages(work), strict=True):
        *layers, outside = _units(work, stage.chunks)
        largest = max(layers, default=0.0)
        # Weights of two layers and of the unit outside layers; gradients of one layer and of that unit.
        gathered_weights = (2 * largest + outside) * work.element_bytes
        gathered_gradients = (largest + outside) * work.element_bytes
        workspace = activations.workspace_bytes(work, stage.parameters.largest) + gathered_gradients
        yield replace(
            planned,
            weights=planned.weights / ranks,
            gradients=planned.gradients / ranks,
            buffers=planned.buffers + gathered_weights,
            workspace=max(0.0, workspace - planned.logits),
        )


def sharded_step(machine: Machine, work: Workload) -> StepTime:
    """Return the time of a step."""
    work = _with_divided_moments(work)
    stages = [stage.chunks for stage in count_stages(work)]
    data = max(_seconds(machine, work, chunks, costs.time_stage(machine, work, chunks)) for chunks in stages)
    return replace(estimate_step(machine, work), data=data)


def _with_divided_moments(work: Workload) -> Workload:
    return replace(work, layout=work.layout.model_copy(update={"distributed_optimizer": True}))


def _seconds(machine: Machine, work: Workload, chunks: list[ModelChunk], passes: PassTimes) -> float:
    """Return the seconds of communication over data ranks that do not overlap with computation."""
    sizes, slowdown = _units(work, chunks), machine.efficiency.overlap_slowdown
    gather = sum(_over_data_ranks(machine, work, size * work.element_bytes) for size in sizes)
    scatter = sum(_over_data_ranks(machine, work, size * work.software.gradient_bytes) for size in sizes)
    forward = exposed_seconds(gather, passes.forward.total, slowdown)
    backward = exposed_seconds(gather + scatter, passes.backward.total + passes.recompute.total, slowdown)
    return (forward + backward) * work.microbatches


def _units(work: Workload, chunks: list[ModelChunk]) -> list[float]:
    """Return the number of parameters of each unit, that outside layers last."""
    heads = tuple(head for chunk in chunks for head in chunk.heads)
    alone = ModelChunk(
        layers={}, first=chunks[0].first, last=chunks[-1].last, final_stacks=chunks[-1].final_stacks, heads=heads
    )
    outside = count_rank_parameters(work, [alone]).trained
    layers = sum(len(span) for chunk in chunks for span in chunk.layers.values())
    return [(count_rank_parameters(work, chunks).trained - outside) / layers] * layers + [outside]


def _over_data_ranks(machine: Machine, work: Workload, size: float) -> float:
    return collective_seconds(machine, size, ranks=work.layout.data, stride=work.layout.tensor)
