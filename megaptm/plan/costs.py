"""Planned seconds of the operations of a layer on one rank, forward and backward.

A matrix product takes its FLOPs at the rate of a large product, plus the memory traffic of its operands. The traffic
makes small products slow: it shrinks less than the FLOPs. Operations between products take the bytes that they read and
write. Both follow from the code in `layers/` and megatron-core's linear layers; the machine's file gives the rates.
"""

# N tokens of a micro-batch, D width, A = heads x key width, F feed-forward features, T tensor ranks

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from math import ceil

from megaptm.layers.costs import LayerCosts, MemoryTraffic
from megaptm.layers.layer_costs import SubLayer, memory_width, passes_by_kind, sublayers
from megaptm.models.chunk import ModelChunk
from megaptm.models.embed_costs import input_costs
from megaptm.models.head_costs import HeadCosts
from megaptm.plan.machine import Machine
from megaptm.plan.network import collective_seconds
from megaptm.plan.software import Software
from megaptm.plan.workload import Workload
from megaptm.spec import Block


@dataclass(frozen=True)
class OperationTime:
    """Planned seconds of one forward or backward pass, by kind of operation."""

    products: float = 0.0
    attention: float = 0.0
    memory: float = 0.0
    """Planned seconds of norms, activations, dropout, sums, and between kernels."""
    tensor: float = 0.0
    """Planned seconds of tensor-parallel communication that does not overlap with computation."""
    context: float = 0.0
    """Planned seconds of the gather of keys and values over context ranks."""

    @property
    def total(self) -> float:
        return self.products + self.attention + self.memory + self.tensor + self.context

    def __add__(self, other: OperationTime) -> OperationTime:
        # Written out because a search adds several hundred thousand of these.
        return OperationTime(
            self.products + other.products,
            self.attention + other.attention,
            self.memory + other.memory,
            self.tensor + other.tensor,
            self.context + other.context,
        )

    def __mul__(self, times: float) -> OperationTime:
        return OperationTime(
            self.products * times,
            self.attention * times,
            self.memory * times,
            self.tensor * times,
            self.context * times,
        )


@dataclass(frozen=True)
class PassTimes:
    """Planned seconds of the forward pass, the backward pass, and recomputation (for the backward pass, or after a
    features pass)."""

    forward: OperationTime
    backward: OperationTime
    recompute: OperationTime = OperationTime()

    def __add__(self, other: PassTimes) -> PassTimes:
        return PassTimes(self.forward + other.forward, self.backward + other.backward, self.recompute + other.recompute)

    def __mul__(self, times: float) -> PassTimes:
        return PassTimes(self.forward * times, self.backward * times, self.recompute * times)

    @property
    def total(self) -> float:
        return self.forward.total + self.backward.total + self.recompute.total


def _time_product(machine: Machine, work: Workload, rows: float, inputs: float, outputs: float) -> float:
    """Return the planned seconds of the matrix product [rows, inputs] @ [inputs, outputs]."""
    rate = machine.peak_flops(work.precision) * machine.efficiency.matmul
    operations = 2 * rows * inputs * outputs / (rate * tile_efficiency(rows, outputs, machine.multiprocessors))
    traffic = work.element_bytes * (rows * inputs + inputs * outputs + rows * outputs) / machine.bandwidth
    return operations + traffic + machine.efficiency.kernel_microseconds * 1e-6


LAUNCHES_OUTSIDE_LAYERS = 25.0
"""Number of kernels of embedding, head, loss and optimizer (tests/cuda/launches.yaml: GPT-2 has 531, and 24
sub-layers)."""
TILES = ((256, 128, 1.0), (128, 256, 1.0), (128, 128, 0.92), (64, 256, 0.85), (128, 64, 0.75))
"""Rows and columns of the result that a multiprocessor computes at a time, and rate relative to the largest: tiles of
cuBLAS on an A100 (NVIDIA's guide "Matrix Multiplication Background", figure 6, read off)."""

RMS_NORM_KERNELS = 8
"""Number of kernels of an RMSNorm of single operations: cast, square, mean, epsilon, inverse root, scale, cast, weight
(`LlamaRMSNorm` of transformers; Meta's `RMSNorm` of Llama has as many)."""


@lru_cache(maxsize=65536)
def tile_efficiency(rows: float, columns: float, multiprocessors: int) -> float:
    """Return the share of the rate of a large product that a result of this shape leaves.

    All multiprocessors compute a tile each, then the next wave of tiles. The last wave and the tiles at the edges are
    not full, which narrow products of tensor ranks suffer from. 0 multiprocessors: a CPU, without tiles.
    """
    if not multiprocessors:
        return 1.0
    return max(
        rate
        * rows
        * columns
        / (ceil(ceil(rows / high) * ceil(columns / wide) / multiprocessors) * multiprocessors * high * wide)
        for high, wide, rate in TILES
    )


def time_stage(
    machine: Machine,
    work: Workload,
    chunks: list[ModelChunk],
    layers: dict[tuple[str, Block, str], PassTimes] | None = None,
) -> PassTimes:
    """Return the planned seconds of one micro-batch in all chunks of a pipeline stage.

    `layers`: cache of layers that other stages have too; layers of this stage are added to it.
    """
    total = PassTimes(OperationTime(), OperationTime())
    layers = {} if layers is None else layers
    for chunk in chunks:
        for name, span in chunk.layers.items():
            for recompute, part in work.by_recompute(span).items():
                for kind, number in passes_by_kind(
                    work.spec.family.stacks[name], work.spec.size_of(name), part
                ).items():
                    if (name, kind, recompute) not in layers:
                        layers[name, kind, recompute] = time_layer(machine, work, name, kind, recompute=recompute)
                    total += layers[name, kind, recompute] * number
        if chunk.embedded_stacks:
            total += _time_embedding(machine, work, chunk.embedded_stacks)
        for head in work.heads.values():
            if head.name in chunk.heads:
                total += _time_head(machine, work, head)
    return (
        total
        if not work.needs_features_pass
        else total + PassTimes(OperationTime(), OperationTime(), recompute=total.forward)
    )


def time_layer(
    machine: Machine, work: Workload, stack: str, block: Block | None = None, *, recompute: str | None = None
) -> PassTimes:
    """Return the planned seconds of one layer of a stack for one micro-batch. `block`: block of that layer; None: the
    first layer's. `recompute`: None for `work.recompute`."""
    recompute = work.recompute if recompute is None else recompute
    block = work.spec.family.stacks[stack].at(0) if block is None else block
    passes, core, again = PassTimes(OperationTime(), OperationTime()), OperationTime(), OperationTime()
    subs = sublayers(block, work.spec.size_of(stack), memory_width(work.spec, stack))
    for sub in subs:
        keys = block.cross if sub.name == "cross" and block.cross else stack
        own = _linear_seconds(machine, work, sub, stack, keys)
        if sub.costs.features:
            attention = _attention_seconds(machine, work, sub.costs, stack, keys)
            if hashing := sub.costs.hash_multiply_adds(work.own_lengths[stack]):
                seconds = 2 * work.layout.microbatch * hashing / work.layout.tensor / machine.peak_flops(work.precision)
                own += PassTimes(OperationTime(attention=seconds / machine.efficiency.matmul), OperationTime())
            own += attention + _gather_seconds(machine, work, sub, keys)
            if sub.costs.scored:
                own += _score_seconds(machine, work, sub.costs, stack, keys)
            if sub.name == "attention":
                core = attention.forward
        passes += own
        if sub.is_attention:
            again += own.forward + _communication_seconds(machine, work, 1, stack).forward
    passes += _elementwise_seconds(machine, work, subs, stack)
    passes += _communication_seconds(machine, work, len(subs), stack)
    if recompute == "full" or not block.residual.saves_activations:
        return PassTimes(passes.forward, passes.backward, passes.forward)
    if recompute == "selective":
        return PassTimes(passes.forward, passes.backward, core)
    if recompute == "attention":
        return PassTimes(passes.forward, passes.backward, again)
    return passes


def _linear_seconds(machine: Machine, work: Workload, sub: SubLayer, stack: str, keys: str) -> PassTimes:
    tensor, forward, backward = work.layout.tensor, 0.0, 0.0
    for linear in sub.costs.linears.values():
        tokens = work.layout.microbatch * work.own_lengths[keys if linear.reads_memory else stack]
        if linear.reads_distances:
            tokens = 2 * work.own_lengths[stack]
        inputs = linear.inputs / tensor if linear.split == "rows" else linear.inputs
        outputs = linear.outputs / tensor if linear.split == "columns" else linear.outputs
        times = work.own_lengths[stack] if linear.sequential else 1
        forward += times * _time_product(machine, work, tokens / times, inputs, outputs)
        backward += times * _time_product(machine, work, tokens / times, outputs, inputs)
        backward += times * _time_product(machine, work, inputs, tokens / times, outputs)
    return PassTimes(OperationTime(products=forward), OperationTime(products=backward))


def _attention_seconds(machine: Machine, work: Workload, costs: LayerCosts, queries: str, keys: str) -> PassTimes:
    """Return the planned seconds of attention scores, softmax, dropout and weighted values, fused in one kernel or
    computed one by one."""
    size, rows = work.spec.size_of(queries), work.layout.microbatch
    pairs = rows * size.heads / work.layout.tensor * costs.pairs(work.lengths[queries], work.lengths[keys])
    pairs /= work.layout.context
    if work.software.attention == "materialized":
        drops = costs.block.attentions[0].dropout_rate(work.spec.dropout) > 0
        return _time_materialized(machine, work, pairs, size.key_width, drops=drops)
    query_positions = work.lengths[queries]
    is_unmasked = not (work.has_mask or costs.takes_mask(query_positions) or costs.computes_only_tiles(query_positions))
    causal = costs.block.causal and queries == keys and is_unmasked
    operations = 4 * pairs * size.key_width * (0.5 if causal else 1.0)
    rate = machine.peak_flops(work.precision) * machine.efficiency.attention
    # The first fused kernels had half the rate of their successors (arXiv:2307.08691, abstract).
    seconds = operations / (rate if work.software.attention == "fused" else rate / 2)
    kernel = machine.efficiency.kernel_microseconds * 1e-6
    # The backward pass recomputes the scores: five products instead of two.
    return PassTimes(OperationTime(attention=seconds + kernel), OperationTime(attention=2.5 * seconds + 2 * kernel))


def _score_seconds(machine: Machine, work: Workload, costs: LayerCosts, queries: str, keys: str) -> PassTimes:
    """Return the planned seconds of score terms that are computed outside of attention and given to it as a bias.

    A term has twice as many distances as keys. It is written, and read with another stride into the sum, which is
    written and which attention reads. Backward, attention reads the sum and writes its gradient. For each term this is
    read and written among zeros, which two products read (layers/positions.py).

    Gathered terms: sums, layout changes and zeros read and write 8 times forward and 14 times backward, and adding by
    index takes 1.8 times as long as gathering (profile of DeBERTa-base, docs/results.md, 2026-11-26).
    """
    scores = work.layout.microbatch * work.own_lengths[queries] * (work.lengths[keys] + costs.cached_positions)
    elements, terms = scores * work.spec.size_of(queries).heads / work.layout.tensor, costs.score_terms
    traffic = elements * work.element_bytes / machine.bandwidth
    if not work.software.gathered_scores:
        return PassTimes(
            OperationTime(memory=(3 * terms + 2) * traffic), OperationTime(memory=(7 * terms + 2) * traffic)
        )
    gather = elements * machine.efficiency.gather_picoseconds * 1e-12
    return PassTimes(
        OperationTime(memory=terms * (8 * traffic + gather)),
        OperationTime(memory=terms * (14 * traffic + 1.8 * gather)),
    )


def count_launches(work: Workload, chunks: Sequence[ModelChunk]) -> float:
    """Return the number of kernels that the host launches for a micro-batch in the chunks of a stage."""
    total = LAUNCHES_OUTSIDE_LAYERS
    for chunk in chunks:
        for name, span in chunk.layers.items():
            size, memory = work.spec.size_of(name), memory_width(work.spec, name)
            for kind, number in passes_by_kind(work.spec.family.stacks[name], size, span).items():
                subs = sublayers(kind, size, memory)
                total += number * (len(subs) * work.software.launches + sum(sub.costs.launches for sub in subs))
    return total


def _time_materialized(machine: Machine, work: Workload, pairs: float, key: int, *, drops: bool) -> PassTimes:
    element = work.element_bytes
    rate = machine.peak_flops(work.precision) * machine.efficiency.matmul
    products = 4 * pairs * key / rate
    # Softmax, and dropout with its mask, read and write the scores; the product with values reads them.
    dropped = (2 * element + 1) if drops else 0
    # Separate scaling and masking read and write twice more; in the backward pass only scaling does.
    separate = 0 if work.software.fused_softmax else 2 * element
    forward = pairs * (element + 2 * separate + 2 * element + dropped + element) / machine.bandwidth
    backward = pairs * (element + dropped + 3 * element + separate + 3 * element) / machine.bandwidth
    kernel = machine.efficiency.kernel_microseconds * 1e-6
    return PassTimes(
        OperationTime(attention=products + forward + 4 * kernel),
        OperationTime(attention=2 * products + backward + 6 * kernel),
    )


def _gather_seconds(machine: Machine, work: Workload, sub: SubLayer, keys: str) -> PassTimes:
    """Return the planned seconds of the gather of keys and values over context ranks, and of the sum of their
    gradients. The gathered parts are reordered, which reads and writes them once more."""
    layout = work.layout
    if layout.context == 1:
        return PassTimes(OperationTime(), OperationTime())
    key_bytes = sub.costs.saved_bytes(work.element_bytes, dropout=False).memory
    size = layout.microbatch * work.lengths[keys] * key_bytes / layout.tensor
    seconds = collective_seconds(machine, size, ranks=layout.context, stride=layout.tensor)
    once = OperationTime(memory=2 * size / machine.bandwidth, context=seconds)
    return PassTimes(once, once)


def _elementwise_seconds(machine: Machine, work: Workload, subs: Sequence[SubLayer], stack: str) -> PassTimes:
    """Return the planned seconds of operations between matrix products: bytes read and written at memory bandwidth."""
    size, tensor, element = work.spec.size_of(stack), work.layout.tensor, work.element_bytes
    block, software = work.spec.family.stacks[stack], work.software
    tokens = work.layout.microbatch * work.own_lengths[stack]
    mask = 1 if work.spec.dropout else 0
    residual = len(subs) * tokens * size.width / work.sequence_parts
    output_norms = sum(sub.has_output_norm for sub in subs) / len(subs)
    norm = _norm_traffic(software, element, is_rms=block.norm.kind == "rms")
    stream = 4 if software.autocast and not software.compiled else element  # float32 in the residual stream
    # Residual sum: read twice, write. Separate dropout: read, write. A compiled sum is one kernel with dropout and the
    # norm, which need not read it.
    drop = (2 * element if mask and not (software.fused_residual or software.compiled) else 0) + mask
    forward = residual * (
        (1 + output_norms) * norm.forward + element + 2 * stream + drop - (element if software.compiled else 0)
    )
    # Sum as forward; dropout; bias.
    drop = mask * (1 if software.compiled else 2 * element + 1)
    backward = residual * (
        (1 + output_norms) * norm.backward + (2 if software.compiled else 3) * stream + drop + element
    )
    for sub in subs:
        traffic = sub.costs.memory_traffic(element)
        if sub.name == "ffn" and not (software.fused_activation or software.compiled):
            # Tanh-GELU in 8 operations of float32, and their gradients.
            forward += 18 * 4 * tokens * size.ffn / tensor
            backward += 34 * 4 * tokens * size.ffn / tensor
        forward += tokens * traffic.forward / tensor
        backward += tokens * traffic.backward / tensor
    # A weight gradient is added to its float32 sum, which is read and written; the product already counts one write.
    weights = sum(linear.weights for sub in subs for linear in sub.costs.linears.values()) / tensor
    backward += weights * (2 * software.gradient_bytes + (-element if software.fused_gradient_sum else element))
    if software.autocast and not work.layout.full_sharding:
        forward += weights * (4 + element)
    kernel = machine.efficiency.kernel_microseconds * 1e-6
    kernels = (5 + output_norms) * len(subs) + work.own_lengths[stack] * sum(sub.costs.kernels for sub in subs)
    if block.norm.kind == "rms" and not (software.fused_norm or software.compiled):
        kernels += (RMS_NORM_KERNELS - 1) * (1 + output_norms) * len(subs)
    return PassTimes(
        OperationTime(memory=forward / machine.bandwidth + kernels * kernel),
        OperationTime(memory=backward / machine.bandwidth + 2 * kernels * kernel),
    )


def _norm_traffic(software: Software, element: int, *, is_rms: bool) -> MemoryTraffic:
    """Return the bytes that a norm reads and writes per feature of a token.

    One kernel reads and writes; backward it reads gradient and input, writes the gradient, and reads both again for its
    weights. Autocast casts the input to float32 and the output back. The operations of an RMSNorm in float32 (cast,
    square, mean, scale, cast, weight) read and write 28 bytes and four elements; their gradients 72 bytes and ten.
    """
    if is_rms and not (software.fused_norm or software.compiled):
        return MemoryTraffic(forward=28 + 4 * element, backward=72 + 10 * element)
    if software.autocast and not software.compiled:
        return MemoryTraffic(forward=16 + 2 * element, backward=28 + 2 * element)
    return MemoryTraffic(forward=2 * element, backward=(4 if software.compiled else 5) * element)


def _communication_seconds(machine: Machine, work: Workload, sublayers: int, stack: str) -> PassTimes:
    """Return the planned seconds of tensor-parallel communication of a layer that do not overlap with products.

    Each sub-layer sums its output over ranks in the forward pass and the gradient of its input in the backward pass.
    With sequence parallelism each sum is a reduce-scatter and an all-gather, and the backward pass gathers the saved
    input once more.
    """
    layout = work.layout
    if layout.tensor == 1:
        return PassTimes(OperationTime(), OperationTime())
    tokens = layout.microbatch * work.own_lengths[stack]
    size = tokens * work.spec.size_of(stack).width * work.element_bytes
    seconds = collective_seconds(machine, size, ranks=layout.tensor, stride=1)  # one all-gather or reduce-scatter
    slowdown, overlap = machine.efficiency.overlap_slowdown, work.software.tensor_overlap
    forward, backward, hidden = 2 * seconds * sublayers, 2 * seconds * sublayers, 0.0
    if layout.sequence_parallel and overlap == "none":
        backward += seconds * sublayers  # the saved input is gathered once more
    if overlap == "pieces":
        # Each collective is split into as many pieces as ranks; only one piece does not overlap with a product.
        hidden, forward, backward = (forward + backward) * (1 - 1 / layout.tensor), forward / layout.tensor, 0.0
        backward = forward
    elif overlap == "backward":
        # The sum of the input gradient overlaps with the weight gradient. With sequence parallelism its scatter and the
        # gather of the saved input do; the gather of the output gradient does not.
        hidden, backward = backward, (seconds * sublayers if layout.sequence_parallel else 0.0)
    return PassTimes(OperationTime(tensor=forward), OperationTime(tensor=backward + slowdown * hidden))


def _time_embedding(machine: Machine, work: Workload, stacks: Sequence[str]) -> PassTimes:
    """Return the planned seconds of embedding lookups of some stacks, their sum and dropout, and the update of table
    gradients."""
    added = work.spec.family.own_tables - work.spec.family.separate_tables  # besides the common one
    positions = sum(work.own_lengths[name] * (2 if name in added else 1) for name in stacks)
    size = work.layout.microbatch * positions * work.spec.width * work.element_bytes
    seconds = size * 6 / machine.bandwidth + 6 * machine.efficiency.kernel_microseconds * 1e-6
    summed = collective_seconds(machine, size, ranks=work.layout.tensor, stride=1) * (
        1 if work.layout.sequence_parallel else 2
    )
    passes = PassTimes(OperationTime(memory=seconds, tensor=summed), OperationTime(memory=2 * seconds))
    return passes + _time_appended(machine, work) if work.appended else passes


def _time_appended(machine: Machine, work: Workload) -> PassTimes:
    """Return the planned seconds of projections of positions after the text."""
    positions = work.layout.microbatch * work.appended
    products = [
        (_time_product(machine, work, positions, linear.inputs, linear.outputs), has_gradient)
        for costs in input_costs(work.spec).values()
        if costs.record.is_appended
        for linear, has_gradient in costs.applied_linears
    ]
    forward = sum(seconds for seconds, _ in products)
    backward = sum(seconds * (1 + has_gradient) for seconds, has_gradient in products)
    return PassTimes(OperationTime(products=forward), OperationTime(products=backward))


def _time_head(machine: Machine, work: Workload, costs: HeadCosts) -> PassTimes:
    """Return the planned seconds of a head's projections and, if it projects on the vocabulary, of that and the
    cross-entropy."""
    tensor, rows = work.layout.tensor, work.layout.microbatch
    length = work.own_lengths[costs.stack]
    positions = costs.positions_read(length, work.own_predicted)
    mapped_positions = rows * costs.num_transformed_positions(positions)
    linear_time = sum(
        _time_product(machine, work, mapped_positions, linear.inputs, linear.outputs)
        for linear in costs.linears.values()
    )
    if not costs.projects:
        return PassTimes(OperationTime(products=linear_time), OperationTime(products=2 * linear_time))
    vocabulary = costs.rank_vocabulary(tensor)
    forward = linear_time + sum(
        _time_product(machine, work, rows * positions, *product) for product in costs.rank_projections(tensor)
    )
    passes = rows * positions * vocabulary / machine.bandwidth
    stream = rows * length * costs.width * work.element_bytes
    gathered = collective_seconds(machine, stream, ranks=tensor, stride=1)
    # Float32 copy, maximum, exponentials, their sum, division; backward: the gradient and its copy.
    return PassTimes(
        OperationTime(products=forward, memory=30 * passes, tensor=gathered),
        OperationTime(products=2 * forward, memory=16 * passes, tensor=gathered),
    )


def time_comparison(machine: Machine, work: Workload) -> OperationTime:
    """Return the planned seconds of a step's contrastive losses, in float32: each data rank compares its samples with
    all samples, forward and backward."""
    rate = machine.peak_flops("fp32" if "fp32" in machine.teraflops else work.precision) * machine.efficiency.matmul
    operations = sum(
        3 * 2 * head.compare_multiply_adds(work.samples_per_rank, work.batch) for head in work.contrastive_heads
    )
    # Scores are written, masked, read for the softmax and written, and the same backward: ten times 4 bytes, for each
    # of both directions.
    traffic = 2 * 40 * work.samples_per_rank * work.batch * len(work.contrastive_heads)
    return OperationTime(products=operations / rate, memory=traffic / machine.bandwidth)
