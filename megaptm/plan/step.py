"""Planned seconds of a training step by part: computation, pipeline, communication, optimizer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from statistics import NormalDist

from megaptm.layers.layer_costs import memory_width, sublayers
from megaptm.plan import costs
from megaptm.plan.costs import PassTimes
from megaptm.plan.machine import Machine
from megaptm.plan.network import collective_seconds, message_seconds, neighbors_inside
from megaptm.plan.optimizer import orthogonalization_flops
from megaptm.plan.stages import CountedStage, count_stages, table_size
from megaptm.plan.workload import Workload
from megaptm.spec import Block, change

PARTS = {
    "products": "matrix products",
    "attention": "attention",
    "memory": "memory-bound operations",
    "tensor": "tensor communication",
    "context": "context communication",
    "recompute": "recomputation",
    "bubble": "pipeline bubble",
    "pipeline": "pipeline communication",
    "data": "data communication",
    "optimizer": "optimizer",
    "host": "waiting for the host",
}
"""Part of a step -> its title."""


@dataclass(frozen=True)
class StepTime:
    """Planned seconds of a step on the slowest pipeline stage, for which the others wait."""

    products: float
    attention: float
    memory: float
    tensor: float
    """Planned seconds of tensor-parallel communication that does not overlap with computation."""
    context: float
    """Planned seconds of gathering keys and values over context ranks."""
    recompute: float
    bubble: float
    """Planned seconds of filling and draining the pipeline, and of waiting for its slowest stage."""
    pipeline: float
    """Planned seconds of messages between pipeline stages."""
    data: float
    """Planned seconds in which data ranks sum gradients and gather weights without overlap with computation."""
    optimizer: float
    host: float
    """Seconds that devices wait for the host to launch kernels."""
    flops: int
    """Model FLOPs of a step on all devices."""
    hardware_flops: float
    """FLOPs of a step including recomputation and extra costs."""
    devices: int
    peak: float
    stages: tuple[float, ...]
    """Planned seconds of a micro-batch on each pipeline stage, forward and backward."""

    @property
    def seconds(self) -> float:
        return sum(self.parts().values())

    def parts(self) -> dict[str, float]:
        """Return the planned seconds of a step by part."""
        return {name: getattr(self, name) for name in PARTS}

    @property
    def mfu(self) -> float:
        """Return the model FLOP utilization of the step: model FLOPs over the peak of the devices
        (arXiv:2204.02311)."""
        return self.flops / (self.seconds * self.devices * self.peak)

    @property
    def hfu(self) -> float:
        """Return the hardware FLOP utilization of the step: as `mfu`, with recomputation included."""
        return self.hardware_flops / (self.seconds * self.devices * self.peak)


def estimate_step(machine: Machine, work: Workload, stages: Sequence[CountedStage] | None = None) -> StepTime:
    """Estimate the time of a training step of `work` on enough of these machines. `stages`: result of `count_stages`,
    if known."""
    layout = work.layout
    stages = count_stages(work) if stages is None else stages
    layers: dict[tuple[str, Block, str], PassTimes] = {}
    slowdown = 1 + machine.efficiency.device_spread * expected_maximum(layout.processes)
    passes = [costs.time_stage(machine, work, stage.chunks, layers) for stage in stages]
    totals = [stage_passes.total * slowdown for stage_passes in passes]
    slowest = max(range(len(totals)), key=lambda stage: totals[stage])
    slowest_passes = passes[slowest] * (work.microbatches * slowdown)
    compute = slowest_passes.forward + slowest_passes.backward + costs.time_comparison(machine, work)
    for extra in work.extra_costs:
        compute = compute + extra.seconds(machine, work)
    # The host launches kernels while devices compute; it is slower if kernels are short.
    launches = work.microbatches * costs.count_launches(work, stages[slowest].chunks)
    launching = launches * machine.efficiency.launch_microseconds * 1e-6
    # The slowest stage waits until the first micro-batch reaches it, and the others end after its last one.
    bubble = (sum(totals) - totals[slowest]) / layout.virtual
    return StepTime(
        products=compute.products,
        attention=compute.attention,
        memory=compute.memory,
        tensor=compute.tensor,
        context=compute.context,
        recompute=slowest_passes.recompute.total,
        bubble=bubble,
        pipeline=_message_seconds(machine, work),
        data=max(
            _data_seconds(machine, work, stage, stage_passes)
            for stage, stage_passes in zip(stages, passes, strict=True)
        )
        + _contrastive_seconds(machine, work),
        optimizer=max(_optimizer_seconds(machine, work, stage) for stage in stages),
        host=max(0.0, launching - compute.total - slowest_passes.recompute.total),
        flops=work.flops,
        hardware_flops=work.flops + recomputed_flops(work) + sum(extra.flops(work) for extra in work.extra_costs),
        devices=layout.processes,
        peak=machine.peak_flops(work.precision),
        stages=tuple(totals),
    )


@lru_cache(maxsize=4096)
def expected_maximum(number: int) -> float:
    """Return the expected maximum of some standard normal values (Blom's approximation, 1958)."""
    return NormalDist().inv_cdf((number - 0.375) / (number + 0.25))


def recomputed_flops(work: Workload) -> float:
    """Return the FLOPs of a step that are computed twice: forward pass of the layers or of attention, and the whole
    forward pass before a features pass."""
    features = work.flops / 3 if work.needs_features_pass else 0.0  # a forward pass is a third of a step
    recomputes = any(not block.residual.saves_activations for block in work.spec.family.stacks.values())
    if work.recompute == "none" and not recomputes:
        return features
    if work.recompute == "full" or recomputes:
        layers = replace(work, spec=replace(work.spec, family=change(work.spec.family, heads=())))
        return features + layers.flops / 3 * (1.0 if recomputes else _recomputed_share(work))
    if work.recompute == "attention":
        return features + _attention_flops(work)
    sizes = {name: work.spec.size_of(name) for name in work.lengths}
    pairs = {name: length * length * sizes[name].layers for name, length in work.lengths.items()}
    return features + 4.0 * work.batch * sum(pairs[name] * size.heads * size.key_width for name, size in sizes.items())


def _recomputed_share(work: Workload) -> float:
    """Return the share of a stack's layers that are recomputed."""
    layers = [range(work.spec.size_of(name).layers) for name in work.lengths]
    return sum(len(work.layout.recomputed(own)) for own in layers) / max(1, sum(map(len, layers)))


def _attention_flops(work: Workload) -> float:
    """Return the FLOPs of a forward pass of the recomputed attention, with its projections."""
    total = 0.0
    for name, length in work.lengths.items():
        block, size = work.spec.family.stacks[name], work.spec.size_of(name)
        for number in work.layout.recomputed(range(size.layers)):
            for sub in sublayers(block.at(number), size, memory_width(work.spec, name)):
                if not sub.is_attention:
                    continue
                keys = work.lengths[block.cross if sub.name == "cross" and block.cross else name]
                for linear in sub.costs.linears.values():
                    total += 2.0 * (keys if linear.reads_memory else length) * linear.inputs * linear.outputs
                total += 4.0 * sub.costs.pairs(length, keys) * size.heads * size.key_width
    return work.batch * total


def _message_seconds(machine: Machine, work: Workload) -> float:
    """Return the planned seconds of messages between pipeline stages: each chunk receives and sends each micro-batch,
    forward and backward."""
    layout = work.layout
    if layout.pipeline == 1:
        return 0.0
    sliced = layout.tensor if work.software.sliced_boundaries else work.sequence_parts
    size = layout.microbatch * work.stage_positions * work.spec.width * work.element_bytes / sliced / layout.context
    seconds = message_seconds(machine, size, stride=layout.tensor * layout.replicas, ranks=layout.processes)
    exposed = machine.efficiency.overlap_slowdown if work.software.boundary_overlap else 1.0
    # A stage between others receives and sends in both passes. What it sends and receives at once takes one message's
    # time.
    messages = 4 if work.software.blocking_boundaries and layout.pipeline > 2 else 2
    return messages * layout.virtual * work.microbatches * seconds * exposed


def _data_seconds(machine: Machine, work: Workload, stage: CountedStage, passes: PassTimes) -> float:
    """Return the planned seconds of summing gradients over data ranks, and those of a tied table over its stages."""
    layout, software = work.layout, work.software
    chunks, counted = stage.chunks, stage.parameters

    if layout.full_sharding:
        return _sharded_seconds(machine, work, stage, passes)
    weights, gradients = counted.trained * work.element_bytes, counted.trained * software.gradient_bytes
    slowdown = machine.efficiency.overlap_slowdown
    before, after = collective_seconds(machine, gradients, ranks=layout.replicas, stride=layout.tensor), 0.0
    group = _sharding_ranks(machine, work)
    if layout.distributed_optimizer:
        after = collective_seconds(machine, weights, ranks=group, stride=layout.tensor)
    if not layout.distributed_optimizer or group < layout.replicas:
        before *= 2
    # Interleaved chunks end one after the other, `pipeline` micro-batches apart.
    rounds = 1 + layout.pipeline * (layout.virtual - 1) / layout.virtual
    if software.gradient_overlap:
        # Overlaps with backward passes; the features pass has no gradients.
        features = passes.forward.total if work.needs_features_pass else 0.0
        before = _exposed_seconds(
            before, rounds * (passes.backward.total + passes.recompute.total - features), slowdown
        )
    if software.parameter_overlap:
        after = _exposed_seconds(after, rounds * passes.forward.total, slowdown)
    tied = 0.0
    if (
        layout.pipeline > 1
        and work.spec.family.output.tied
        and any(chunk.embedded_stacks or chunk.last for chunk in chunks)
    ):
        size = table_size(work.spec) / layout.tensor * software.gradient_bytes
        tied = 2 * collective_seconds(machine, size, ranks=2, stride=max(1, layout.processes // layout.pipeline))
    return before + after + tied


def _sharded_seconds(machine: Machine, work: Workload, stage: CountedStage, passes: PassTimes) -> float:
    """Return the seconds that full sharding adds.

    Weights of layers are gathered in both passes of each micro-batch and their gradients summed once, while other
    layers are computed; everything else once a step. Each layer has collectives of its own, whose latency grows with
    the ranks.
    """
    counted, software, group = stage.parameters, work.software, _sharding_ranks(machine, work)
    layers = max(1, sum(len(span) for chunk in stage.chunks for span in chunk.layers.values()))

    def over_group(size: float, pieces: int = 1) -> float:
        return pieces * collective_seconds(machine, size / pieces, ranks=group, stride=work.layout.tensor)

    root = counted.trained - counted.in_layers
    gather = over_group(counted.in_layers * work.element_bytes, layers * software.layer_gathers)
    scatter = over_group(counted.in_layers * software.gradient_bytes, layers * software.layer_gathers)
    hidden_scatter = scatter if software.gradient_overlap else 0.0
    slowdown = machine.efficiency.overlap_slowdown
    backward = passes.backward.total + passes.recompute.total
    if software.gather_overlap:
        overlapped = _exposed_seconds(gather, passes.forward.total, slowdown)
        overlapped += _exposed_seconds(gather + hidden_scatter, backward, slowdown)
    else:
        overlapped = 2 * gather + _exposed_seconds(hidden_scatter, backward, slowdown)
    overlapped += scatter - hidden_scatter
    once = over_group(root * (work.element_bytes + software.gradient_bytes))
    # Copies on other nodes sum the gradients of their shards.
    shard = counted.trained * software.gradient_bytes / group
    copies = 2 * collective_seconds(
        machine, shard, ranks=work.layout.replicas // group, stride=work.layout.tensor * group
    )
    return work.microbatches * overlapped + once + _exposed_seconds(copies, backward, slowdown)


def _sharding_ranks(machine: Machine, work: Workload) -> int:
    """Return the number of data ranks that divide state among themselves."""
    layout = work.layout
    if work.software.sharding_group == "all":
        return layout.replicas
    return neighbors_inside(machine, ranks=layout.replicas, stride=layout.tensor)


def _contrastive_seconds(machine: Machine, work: Workload) -> float:
    """Return the planned seconds to gather float32 features of all samples over data ranks, and to scatter their
    gradient, for contrastive losses."""
    layout, sizes = work.layout, [4.0 * work.batch * head.features for head in work.contrastive_heads]
    return sum(2 * collective_seconds(machine, size, ranks=layout.data, stride=layout.tensor) for size in sizes)


def _exposed_seconds(communication: float, products: float, slowdown: float) -> float:
    """Return the seconds that communication adds to the matrix products that it overlaps."""
    hidden = min(communication, products)
    return communication - hidden + slowdown * hidden


def _optimizer_seconds(machine: Machine, work: Workload, stage: CountedStage) -> float:
    """Return the planned seconds of the optimizer: norm, clipping and update rule, bytes read and written."""
    trained, layout = stage.parameters.trained, work.layout
    rule = 4 * (3 + 2 * stage.state.total / max(1, trained))
    updated = trained / (layout.replicas if layout.divides_optimizer else 1)
    # The norm reads a gradient; clipping reads and writes it. The rule reads it, and reads and writes weights and state
    # (Adam reads four values and writes three). The copy to the model's format reads and writes one value. All
    # gradients are set to zero. Rules that look at full tensors read them once or twice more, which is neglected.
    seconds = (updated * (4 + 8 + rule + 6) + trained * 4) / machine.bandwidth
    if work.offloads_moments:  # moments are copied from the host and back
        return seconds + 16 * updated / (machine.host_gigabytes_per_second * 1e9)
    if work.optimizer is None or work.optimizer.name != "muon":
        return seconds
    # Data and tensor ranks divide the products of Muon; each matrix goes to its owner and comes back.
    flops = orthogonalization_flops(work.optimizer, work.spec, stage.chunks) / (layout.tensor * layout.replicas)
    traffic = 2 * collective_seconds(machine, trained * work.element_bytes, ranks=layout.replicas, stride=layout.tensor)
    return seconds + flops / (machine.peak_flops(work.precision) * machine.efficiency.matmul) + traffic
