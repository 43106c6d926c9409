"""Seconds of a training step, by part: pipeline, communication, optimizer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from megaptm.plan import costs, teacher
from megaptm.plan.costs import Passes
from megaptm.plan.machine import Machine
from megaptm.plan.network import collective, message
from megaptm.plan.stages import CountedStage, counted_stages, table_size
from megaptm.plan.workload import Workload
from megaptm.spec import Block, change


@dataclass(frozen=True)
class StepTime:
    """A step on the slowest stage, which the others wait for."""

    products: float
    attention: float
    memory: float
    tensor: float
    """Tensor-parallel communication that nothing hides."""
    recompute: float
    bubble: float
    """The pipeline fills and drains, and waits for its slowest stage."""
    pipeline: float
    """Messages between stages."""
    data: float
    """Gradients summed and weights gathered over data ranks, as far as nothing hides it."""
    optimizer: float
    flops: int
    """Of the model, on all devices."""
    hardware_flops: float
    """With what is computed again, and a teacher's."""
    devices: int
    peak: float

    @property
    def seconds(self) -> float:
        return sum(self.parts().values())

    def parts(self) -> dict[str, float]:
        """What the seconds are made of."""
        names = ("products", "attention", "memory", "tensor", "recompute", "bubble", "pipeline", "data", "optimizer")
        return {name: getattr(self, name) for name in names}

    @property
    def mfu(self) -> float:
        """Model FLOP utilization: the model's operations over what the devices could do (arXiv:2204.02311)."""
        return self.flops / (self.seconds * self.devices * self.peak)

    @property
    def hfu(self) -> float:
        """Hardware FLOP utilization: as `mfu`, with what is computed again counted too."""
        return self.hardware_flops / (self.seconds * self.devices * self.peak)


def step(machine: Machine, work: Workload, stages: Sequence[CountedStage] | None = None) -> StepTime:
    """The time of a step of `work` on enough of these machines; `stages` where they are known already."""
    layout = work.layout
    stages = counted_stages(work) if stages is None else stages
    layers: dict[tuple[str, Block], Passes] = {}
    passes = [costs.stage(machine, work, stage.chunks, layers) for stage in stages]
    totals = [one.total for one in passes]
    slowest = max(range(len(totals)), key=lambda stage: totals[stage])
    mine = passes[slowest] * work.microbatches
    compute = mine.forward + mine.backward + costs.comparison(machine, work) + teacher.seconds(machine, work)
    # The slowest stage waits for the first micro-batch to reach it, and the others end after its last one.
    bubble = (sum(totals) - totals[slowest]) / layout.virtual
    return StepTime(
        products=compute.products,
        attention=compute.attention,
        memory=compute.memory,
        tensor=compute.tensor,
        recompute=mine.again.total,
        bubble=bubble,
        pipeline=_messages(machine, work),
        data=max(_data(machine, work, stage, one) for stage, one in zip(stages, passes, strict=True))
        + _features(machine, work),
        optimizer=max(_optimizer(machine, work, stage) for stage in stages),
        flops=work.flops,
        hardware_flops=work.flops + recomputed_flops(work) + teacher.flops(work),
        devices=layout.processes,
        peak=machine.peak(work.precision),
    )


def recomputed_flops(work: Workload) -> float:
    """Operations of a step that are done a second time: the layers' forward pass, or attention's two products; and the
    whole forward pass where one goes before for features."""
    features = work.flops / 3 if work.features_pass else 0.0  # a forward pass is a third of a step
    reversible = any(block.reversible for block in work.spec.family.stacks.values())
    if work.recompute == "none" and not reversible:
        return features
    if work.recompute == "full" or reversible:
        layers = replace(work, spec=replace(work.spec, family=change(work.spec.family, heads=())))
        return features + layers.flops / 3
    sizes = {name: work.spec.size_of(name) for name in work.lengths}
    pairs = {name: length * length * sizes[name].layers for name, length in work.lengths.items()}
    return features + 4.0 * work.batch * sum(pairs[name] * size.heads * size.key_width for name, size in sizes.items())


def _messages(machine: Machine, work: Workload) -> float:
    """A micro-batch is received and sent on, forward and backward, once a chunk."""
    layout = work.layout
    if layout.pipeline == 1:
        return 0.0
    sliced = layout.tensor if work.software.sliced_boundaries else work.slice
    size = layout.microbatch * work.between * work.spec.width * work.element / sliced
    one = message(machine, size, stride=layout.tensor * layout.data, ranks=layout.processes)
    exposed = machine.efficiency.beside if work.software.boundary_overlap else 1.0
    return 2 * layout.virtual * work.microbatches * one * exposed


def _data(machine: Machine, work: Workload, stage: CountedStage, passes: Passes) -> float:
    """Gradients over data ranks, and the tied table's over the stages that hold it."""
    layout, software = work.layout, work.software
    chunks, counted = stage.chunks, stage.parameters

    def over_data_ranks(size: float) -> float:
        return collective(machine, size, ranks=layout.data, stride=layout.tensor)

    weights, gradients = counted.trained * work.element, counted.trained * software.gradient_bytes
    beside = machine.efficiency.beside
    if software.sharding is not None:
        return software.sharding.seconds(machine, work, chunks, passes)
    before, after = over_data_ranks(gradients), 0.0
    if layout.distributed_optimizer:
        after = over_data_ranks(weights)
    else:
        before *= 2
    # Interleaved chunks are done one after the other, `pipeline` micro-batches apart.
    rounds = 1 + layout.pipeline * (layout.virtual - 1) / layout.virtual
    if software.gradient_overlap:
        # Beside the backward passes: in the pass for features there are no gradients yet.
        features = passes.forward.total if work.features_pass else 0.0
        before = uncovered(before, rounds * (passes.backward.total + passes.again.total - features), beside)
    if software.parameter_overlap:
        after = uncovered(after, rounds * passes.forward.total, beside)
    tied = 0.0
    if layout.pipeline > 1 and work.spec.family.tied and any(chunk.begins or chunk.last for chunk in chunks):
        size = table_size(work.spec) / layout.tensor * software.gradient_bytes
        tied = 2 * collective(machine, size, ranks=2, stride=max(1, layout.processes // layout.pipeline))
    return before + after + tied


def _features(machine: Machine, work: Workload) -> float:
    """Float32 features of all rows gathered over data ranks and their gradient scattered, for losses that compare."""
    layout, sizes = work.layout, [4.0 * work.batch * head.features for head in work.comparing]
    return sum(2 * collective(machine, size, ranks=layout.data, stride=layout.tensor) for size in sizes)


def uncovered(communication: float, products: float, beside: float) -> float:
    """Seconds that communication adds to products that run beside it."""
    hidden = min(communication, products)
    return communication - hidden + beside * hidden


def _optimizer(machine: Machine, work: Workload, stage: CountedStage) -> float:
    """Norm, clipping and the update rule: bytes read and written."""
    trained = stage.parameters.trained
    rule = 4 * (3 + 2 * stage.remembered.total / max(1, trained))
    divided = work.layout.distributed_optimizer or work.software.sharding is not None
    mine = trained / (work.layout.data if divided else 1)
    # The norm reads a gradient, clipping reads and writes it, the rule reads it and reads and writes weights and what
    # it remembers (Adam four numbers and three), the copy to the model's format reads and writes one. All gradients are
    # set to zero. Rules that look at whole tensors pass over them once or twice more, which is left out.
    return (mine * (4 + 8 + rule + 6) + trained * 4) / machine.bandwidth
