"""Planned memory of one rank, by purpose."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from math import prod

from megaptm.config.sections.optimizer import UPDATE_BATCH
from megaptm.models.chunk import ModelChunk
from megaptm.plan import activations
from megaptm.plan.optimizer import StateSize
from megaptm.plan.stages import CountedStage, Parameters, count_stages
from megaptm.plan.workload import Workload


@dataclass(frozen=True)
class Memory:
    """Planned peak memory of one rank of a stage in a step, in bytes."""

    weights: float
    gradients: float
    optimizer: float
    activations: float
    logits: float
    workspace: float
    """Temporary bytes of a layer's backward pass, or of a measurement of its attention logits, beyond those of
    `logits`."""
    buffers: float
    comparison: float = 0.0
    """Temporary bytes of a contrastive comparison, in addition to those of the pass after it."""
    recurrence_cache: float = 0.0
    """Bytes of the recurrence cache: the current and the next one in training, and the one of validation."""
    update: float = 0.0
    """Temporary bytes of the update of the weights, beyond those of the passes, which are free then."""
    extra: Mapping[str, float] = field(default_factory=dict)
    """Bytes of each of the workload's extra costs, by name."""

    @property
    def total(self) -> float:
        return sum(self.parts().values())

    def parts(self) -> dict[str, float]:
        own = {part.name: getattr(self, part.name) for part in fields(self) if part.name != "extra"}
        return own | dict(self.extra)


def estimate_memory(work: Workload, stages: Sequence[CountedStage] | None = None) -> list[Memory]:
    """Return the planned memory of each stage's ranks. `stages`: counted stages, if already computed."""
    stages = count_stages(work) if stages is None else stages
    return [_rank_memory(work, number, stage) for number, stage in enumerate(stages)]


def fullest_stage(stages: list[Memory]) -> int:
    """Return the pipeline stage with the largest memory."""
    return max(range(len(stages)), key=lambda stage: stages[stage].total)


def _rank_memory(work: Workload, number: int, stage: CountedStage) -> Memory:
    chunks, counted = stage.chunks, stage.parameters
    state = StateSize(stage.state.total - 2 * counted.trained) if work.offloads_moments else stage.state
    weights, gradients, optimizer = state_bytes(work, counted.trained, counted.frozen, state)
    if work.layout.full_sharding:
        weights, gradients = _full_sharding_bytes(work, counted)
    logits = activations.logits_bytes(work) if any(chunk.last or chunk.heads for chunk in chunks) else 0.0
    buffers = activations.buffer_bytes(work) + activations.input_bytes(work)
    workspace = max(activations.workspace_bytes(work, counted.largest), activations.measurement_bytes(work))
    # Backward passes of layers start after the loss has freed its memory, and measurements end before it.
    workspace = max(0.0, workspace - logits)
    saved = activations.stage_bytes(work, number, chunks)
    comparison = activations.comparison_bytes(work) if any(chunk.last for chunk in chunks) else 0.0
    if work.needs_features_pass:  # between the two passes nothing else is allocated
        comparison = max(0.0, comparison - saved - logits - workspace - buffers)
    return Memory(
        weights=weights,
        gradients=gradients,
        optimizer=optimizer,
        activations=saved,
        logits=logits,
        workspace=workspace,
        buffers=buffers,
        comparison=comparison,
        recurrence_cache=3.0 * cache_bytes(work, chunks),
        update=max(0.0, _update_bytes(work, counted.trained) - saved - logits - workspace),
        extra={costs.name: costs.bytes(work) for costs in work.extra_costs},
    )


def _update_bytes(work: Workload, trained: int) -> float:
    """Return the temporary bytes of an update of a rank's weights: a copy of them, if norms are measured, and the
    tensors of the update rule."""
    name = "adamw" if work.optimizer is None else work.optimizer.name
    held = trained / (work.layout.replicas if work.layout.divides_optimizer else 1)
    rule = 8.0 * min(held, UPDATE_BATCH) if name == "stable-adamw" else 0.0
    if name == "muon":  # its own parts, sent and received, and the matrices that it changes
        owned = trained / work.layout.replicas
        rule = 2.0 * work.element_bytes * (min(held, UPDATE_BATCH) + min(owned, UPDATE_BATCH))
    if work.offloads_moments:  # moments of two batches
        rule = 8.0 * min(held, 2 * UPDATE_BATCH)
    return 4.0 * held * work.measures_norms + rule


def cache_bytes(work: Workload, chunks: Sequence[ModelChunk]) -> float:
    """Return the bytes of the recurrence cache of some chunks, per tensor rank (`RecurrenceCache`)."""
    sizes = {name: work.spec.size_of(name) for name in work.spec.family.stacks}
    numbers = sum(
        len(layers) * prod(work.spec.family.stacks[name].cache_shape(sizes[name], sizes[name].cached_positions))
        for chunk in chunks
        for name, layers in chunk.layers.items()
    )
    return float(work.samples_per_rank * numbers * work.element_bytes)


def state_bytes(
    work: Workload, trained: int, frozen: int = 0, known: StateSize | None = None
) -> tuple[float, float, float]:
    """Return the bytes of weights, gradients and optimizer state for `trained` parameters of a rank.

    As in megatron-core (parallel/engine.py, parallel/optimizers): gradients of all micro-batches are summed in float32.
    The optimizer has the state of its rule (`known`; None: two moments) and float32 copies of other weights. The
    distributed optimizer splits only these over data ranks.
    """
    known = StateSize(2 * trained) if known is None else known
    copies = 0 if work.precision == "fp32" else trained
    weights, gradients = float(work.element_bytes * (trained + frozen)), float(work.software.gradient_bytes * trained)
    optimizer, factors = 4.0 * (known.elements + copies), 4.0 * known.factors
    return weights, gradients, optimizer / (work.layout.replicas if work.layout.divides_optimizer else 1) + factors


def _full_sharding_bytes(work: Workload, counted: Parameters) -> tuple[float, float]:
    """Return the bytes of weights and of gradients of a rank with full sharding (`parallel.full_sharding`). A rank
    holds its shards, all parameters outside of layers, and two complete layers: one is gathered or summed while the
    other is computed."""
    gathered = counted.trained - counted.in_layers + 2 * counted.largest_layer
    shard = counted.trained / work.layout.replicas
    weights = work.element_bytes * (shard + gathered + counted.frozen)
    return weights, work.software.gradient_bytes * (shard + gathered)
