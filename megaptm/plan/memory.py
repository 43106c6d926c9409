"""Memory of one rank, by part."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields

from megaptm.bricks import ModelChunk, past_width
from megaptm.plan import activations, teacher
from megaptm.plan.optimizer import Remembered
from megaptm.plan.stages import CountedStage, counted_stages
from megaptm.plan.workload import Workload


@dataclass(frozen=True)
class Memory:
    """Bytes of one rank of a stage at the fullest moment of a step."""

    weights: float
    gradients: float
    optimizer: float
    activations: float
    logits: float
    workspace: float
    """What a layer's backward pass needs for a moment, beyond the memory that the logits had."""
    buffers: float
    compared: float = 0.0
    """What a comparison of all rows needs for a moment, beyond the memory that the pass after it takes."""
    remembered: float = 0.0
    """What layers remember of rows before: in training, what a step adds until it is done, and in validation."""
    teacher: float = 0.0
    """Weights of a teacher, and what of it is compared."""

    @property
    def total(self) -> float:
        return sum(getattr(self, field.name) for field in fields(self))

    def parts(self) -> dict[str, float]:
        return {field.name: getattr(self, field.name) for field in fields(self)}


def memory(work: Workload, stages: Sequence[CountedStage] | None = None) -> list[Memory]:
    """Stage -> what each of its ranks holds; `stages` where they are known already."""
    stages = counted_stages(work) if stages is None else stages
    return [_rank(work, number, stage) for number, stage in enumerate(stages)]


def fullest(stages: list[Memory]) -> int:
    """The stage that decides whether a run fits."""
    return max(range(len(stages)), key=lambda stage: stages[stage].total)


def _rank(work: Workload, number: int, stage: CountedStage) -> Memory:
    chunks, counted = stage.chunks, stage.parameters
    weights, gradients, optimizer = states(work, counted.trained, counted.frozen, stage.remembered)
    logits = activations.logits(work) if any(chunk.last or chunk.heads for chunk in chunks) else 0.0
    buffers = activations.buffers(work) + activations.given(work)
    workspace = activations.workspace(work, counted.largest)
    if work.software.sharding is not None:
        whole_weights, whole_gradients = work.software.sharding.gathered_bytes(work, chunks)
        buffers, workspace = buffers + whole_weights, workspace + whole_gradients
    # The layers' backward passes begin when the loss has given its memory back.
    workspace = max(0.0, workspace - logits)
    saved = activations.stage(work, number, chunks)
    compared = activations.compared(work) if any(chunk.last for chunk in chunks) else 0.0
    if work.features_pass:  # between the two passes, when nothing else is held
        compared = max(0.0, compared - saved - logits - workspace - buffers)
    return Memory(
        weights=weights,
        gradients=gradients,
        optimizer=optimizer,
        activations=saved,
        logits=logits,
        workspace=workspace,
        buffers=buffers,
        compared=compared,
        remembered=3.0 * remembered(work, chunks),
        teacher=teacher.memory(work),
    )


def remembered(work: Workload, chunks: Sequence[ModelChunk]) -> float:
    """Bytes that the layers of some chunks remember of a data rank's rows, on each tensor rank
    (`parallel.memory.RowMemory`)."""
    sizes = {name: work.spec.size_of(name) for name in work.spec.family.stacks}
    numbers = sum(
        len(layers) * sizes[name].remembered * past_width(work.spec.family.stacks[name], sizes[name])
        for chunk in chunks
        for name, layers in chunk.layers.items()
    )
    return float(work.own * numbers * work.element)


def states(
    work: Workload, trained: int, frozen: int = 0, known: Remembered | None = None
) -> tuple[float, float, float]:
    """Bytes of weights, gradients and optimizer of `trained` parameters of a rank.

    As megatron-core holds them (parallel/engine.py, parallel/optimizers): gradients of all micro-batches are summed in
    float32; the optimizer has what its rule remembers (two moments where it is not told), and a float32 copy of weights
    that are not; the distributed optimizer divides these over data ranks, and nothing else.
    """
    known = Remembered(2 * trained) if known is None else known
    copies = 0 if work.precision == "fp32" else trained
    weights, gradients = float(work.element * (trained + frozen)), float(work.software.gradient_bytes * trained)
    optimizer, factors = 4.0 * (known.elements + copies), 4.0 * known.factors
    if work.software.sharding is not None:
        return weights / work.layout.data, gradients / work.layout.data, optimizer / work.layout.data + factors
    return weights, gradients, optimizer / (work.layout.data if work.layout.distributed_optimizer else 1) + factors
