"""Planned activation memory that the forward pass of a micro-batch leaves for the backward pass.

Derived from the operations of `layers/`: a linear layer saves its input, a norm its input, an activation its input
(ReLU its output), dropout one byte per element, fused attention queries, keys, values, output and one float per query.
For a decoder of width D, feed-forward 4 D, dropout and bfloat16 this is (10 + 24 / T) bytes per token and width on T
tensor ranks, and 34 / T with sequence parallelism: arXiv:2205.05198, equations 2 and 4, without scores, which fused
attention does not save.
"""

# D width, A = heads x key width, F feed-forward features, T tensor ranks

from __future__ import annotations

from megaptm.layers.attention_costs import MAX_LOGITS
from megaptm.layers.costs import LayerCosts
from megaptm.layers.feedforward_costs import ROWS_FED
from megaptm.layers.layer_costs import SubLayer, layers_by_kind, memory_width, passes_by_kind, sublayers
from megaptm.layers.pattern import MAX_SCORES
from megaptm.losses.token_costs import LOGIT_BYTES, LossBytes
from megaptm.models.chunk import ModelChunk
from megaptm.models.embed_costs import inputs_read
from megaptm.models.head_costs import HeadCosts
from megaptm.plan.workload import Workload
from megaptm.spec import Block


def layer_bytes(work: Workload, stack: str, block: Block | None = None, *, recompute: str | None = None) -> float:
    """Return the activation bytes that one layer of a stack saves for one micro-batch on one rank.

    `block`: the block of this layer; None: that of the first layer. A layer that saves no activations saves only its
    hash buckets.
    """
    block = work.spec.family.stacks[stack].at(0) if block is None else block
    recompute = work.recompute if recompute is None else recompute
    size, element = work.spec.size_of(stack), work.element_bytes
    subs = sublayers(block, size, memory_width(work.spec, stack))
    if not block.residual.saves_activations:
        return work.layout.microbatch * subs[0].costs.chosen_pairs_bytes(work.own_lengths[stack]) / work.layout.tensor
    if recompute == "full":
        return work.layout.microbatch * work.own_lengths[stack] * size.width * element / work.sequence_parts
    return sum(_sublayer_bytes(work, stack, block, sub, recompute) for sub in subs)


def _sublayer_bytes(work: Workload, stack: str, block: Block, sub: SubLayer, recompute: str) -> float:
    tokens, element, mask_bytes = (
        work.layout.microbatch * work.own_lengths[stack],
        work.element_bytes,
        1 if work.spec.dropout else 0,
    )
    # Input of the norm, its output (which is the next linear layer's input), or input and output of the sub-layer; the
    # dropout mask.
    copies = (3 if sub.has_output_norm else 2) * element + mask_bytes
    saved = tokens * work.spec.size_of(stack).width * copies / work.sequence_parts
    if recompute == "attention" and sub.is_attention:
        return saved
    keys = block.cross if sub.name == "cross" and block.cross else stack
    saved_costs = sub.costs.saved_bytes(element, dropout=bool(work.spec.dropout))
    key_tokens = work.layout.microbatch * work.lengths[keys]
    saved += (tokens * saved_costs.own + key_tokens * saved_costs.memory) / work.layout.tensor
    # Keys and values of the recurrence cache. The cache itself is counted elsewhere.
    saved += work.layout.microbatch * sub.costs.cached_positions * 2 * sub.costs.features * element / work.layout.tensor
    if sub.costs.features:
        # Chunks of context ranks are attended apart, and their outputs joined in a copy.
        saved += tokens * sub.costs.features * element / work.layout.tensor if work.layout.context > 1 else 0.0
        saved += _score_bytes(work, sub.costs, stack, keys, recompute)
    return saved


def _score_bytes(work: Workload, costs: LayerCosts, queries: str, keys: str, recompute: str) -> float:
    """Return the activation bytes that attention saves between its inputs (queries, keys, values) and its output."""
    size, layout, element = work.spec.size_of(queries), work.layout, work.element_bytes
    query_positions, rows = work.own_lengths[queries], layout.microbatch
    pairs = rows * costs.pairs(work.lengths[queries], work.lengths[keys]) / layout.context
    if work.software.attention == "materialized":
        if recompute == "selective":
            return 0.0
        # Softmax, dropout mask and result of dropout: 5 bytes per score in bfloat16.
        drops = costs.block.attentions[0].dropout_rate(work.spec.dropout) > 0
        return pairs * size.heads * (2 * element + 1 if drops else element) / layout.tensor
    if costs.computes_only_tiles(work.lengths[queries]):
        return 0.0
    # Without a learned bias each layer converts the boolean mask to numbers, which heads share.
    if costs.scored:
        # The sum of bias and mask, for every layer and head.
        key_positions = work.lengths[keys] + costs.cached_positions
        added = rows * query_positions * key_positions * size.heads * element / layout.tensor
        return rows * query_positions * size.heads * 4 / layout.tensor + added
    shared = (
        pairs * element
        if (work.has_mask or costs.takes_mask(work.lengths[queries]))
        and not work.spec.family.stacks[queries].score_bias
        else 0
    )
    # One float32 per query and head.
    return rows * query_positions * size.heads * 4 / layout.tensor + shared


def chunk_bytes(work: Workload, model_chunk: ModelChunk) -> float:
    """Return the activation bytes of one micro-batch in one chunk of a pipeline stage: layers, score bias and embedding
    dropout mask."""
    total = 0.0
    rows, spec, element = work.layout.microbatch, work.spec, work.element_bytes
    for name, layers in model_chunk.layers.items():
        block = work.spec.family.stacks[name]
        total += sum(
            number * layer_bytes(work, name, kind, recompute=recompute)
            for recompute, part in work.by_recompute(layers).items()
            for kind, number in passes_by_kind(block, spec.size_of(name), part).items()
        )
        if layers and block.score_bias:
            pairs = work.own_lengths[name] * work.lengths[name]
            total += rows * pairs * spec.size_of(name).heads / work.layout.tensor * element
    if work.spec.dropout:
        embedded = rows * sum(work.own_lengths[name] * spec.size_of(name).width for name in model_chunk.embedded_stacks)
        total += embedded / work.sequence_parts
    embedded_lengths = {name: work.own_lengths[name] for name in model_chunk.embedded_stacks}
    total += rows * sum(
        costs.saved_bytes(number, element) for costs, number in inputs_read(spec, embedded_lengths, work.appended)
    )
    # The final norm saves its input; its output belongs to the head.
    total += sum(
        rows * work.own_lengths[name] * spec.output_width(name) * element / work.sequence_parts
        for name in model_chunk.final_stacks
    )
    # Reversible stacks save their output: two float32 streams.
    stacks = (name for name, layers in model_chunk.layers.items() if layers)
    outputs = (name for name in stacks if not spec.family.stacks[name].residual.saves_activations)
    total += sum(rows * work.own_lengths[name] * spec.output_width(name) * 4 / work.sequence_parts for name in outputs)
    return total


def count_passes_in_flight(work: Workload, stage: int) -> int:
    """Return the largest number of forward passes whose activations a pipeline stage holds at once.

    1F1B: the first stage is `pipeline` micro-batches ahead, the last stage one. Interleaved (arXiv:2104.04473, section
    2.2): twice the distance to the last stage plus one round of the other chunks, which is layers x (1 + (p - 1) / (p
    v)) on the first stage.
    """
    layout = work.layout
    if layout.virtual == 1:
        return min(layout.pipeline - stage, work.microbatches)
    ahead = 2 * (layout.pipeline - stage - 1) + (layout.virtual - 1) * layout.pipeline + 1
    return min(ahead, layout.virtual * work.microbatches)


def stage_bytes(work: Workload, number: int, chunks: list[ModelChunk]) -> float:
    """Return the peak activation bytes of all micro-batches of a pipeline stage."""
    passes, sizes = count_passes_in_flight(work, number), [chunk_bytes(work, model_chunk) for model_chunk in chunks]
    rounds, remainder = divmod(passes, len(chunks) * work.layout.pipeline)
    total = rounds * work.layout.pipeline * sum(sizes)
    for size in sizes:  # micro-batches enter chunks in groups of `pipeline`, first chunk first
        total += min(remainder, work.layout.pipeline) * size
        remainder -= min(remainder, work.layout.pipeline)
    return total


def input_bytes(work: Workload) -> float:
    """Return the bytes of a step's samples in device memory, which each pipeline stage receives before its first pass.
    Tokens are negligible."""
    inputs = inputs_read(work.spec, work.own_lengths, work.appended)
    return float(work.samples_per_rank * sum(costs.batch_bytes(positions) for costs, positions in inputs))


def logits_bytes(work: Workload) -> float:
    """Return the peak bytes of logits, vocabulary projection and loss, on the last pipeline stage (losses/token.py)."""
    losses = {head: _loss_bytes(work, head) for head in work.heads.values()}
    if not losses:  # output and gradient of the final norm
        last = next(reversed(work.spec.family.stacks))
        return 2 * work.layout.microbatch * work.own_lengths[last] * work.spec.output_width(last) * work.element_bytes
    projecting = [bytes_ for head, bytes_ in losses.items() if head.projects] or [*losses.values()][-1:]
    return sum(loss.saved for loss in projecting) + max(loss.transient for loss in projecting)


def _loss_bytes(work: Workload, head: HeadCosts) -> LossBytes:
    positions = work.layout.microbatch * head.positions_read(work.own_lengths[head.stack], work.own_predicted)
    element, software = work.element_bytes, work.software
    logit_bytes = element if software.fused_loss else LOGIT_BYTES[element]
    return head.loss_bytes(
        positions, element, tensor=work.layout.tensor, logit_bytes=logit_bytes if software.chunked_logits else None
    )


def comparison_bytes(work: Workload) -> float:
    """Return the peak bytes of the largest contrastive comparison, between the two passes of a step
    (`parallel.contrast`)."""
    return max(
        (float(head.compare_bytes(work.samples_per_rank, work.batch)) for head in work.contrastive_heads), default=0.0
    )


def workspace_bytes(work: Workload, largest: int) -> float:
    """Return the temporary bytes of a backward pass: gradients of activations, the gradient of one weight, and a
    recomputed layer."""
    spec, element = work.spec, work.element_bytes
    longest = max(work.own_lengths, key=lambda name: work.own_lengths[name])
    tokens = work.layout.microbatch * work.own_lengths[longest]
    size = spec.size_of(longest)
    blocks = layers_by_kind(spec.family.stacks[longest], range(size.layers))
    inner = [sub.costs for block in blocks for sub in sublayers(block, size) if sub.name in ("ffn", "layer")]
    outputs = max(linear.outputs for costs in inner for linear in costs.linears.values() if linear.split != "rows")
    gradients = tokens * element * (2 * outputs / work.layout.tensor + 2 * size.width)
    recomputed = 0.0
    if spec.family.stacks[longest].residual.saves_activations:
        attended = _attention_backward_bytes(work, longest) + 2 * tokens * element * size.width
        gradients = max(gradients, attended)
    if not spec.family.stacks[longest].residual.saves_activations:
        # The feed-forward runs in pieces; both streams and their gradients are float32.
        share = min(1.0, ROWS_FED / tokens)
        gradients = tokens * 4 * 2 * 2 * size.width / work.sequence_parts + share * gradients
        recomputed = max(_sublayer_bytes(work, longest, kind, sublayers(kind, size)[0], "none") for kind in blocks)
    elif work.recompute == "full":
        recomputed = max(layer_bytes(work, longest, kind, recompute="none") for kind in blocks)
    elif work.recompute == "attention":
        recomputed = max(
            layer_bytes(work, longest, kind, recompute="none") - layer_bytes(work, longest, kind, recompute="attention")
            for kind in blocks
        )
    # Keys and values of all context ranks, as gathered and in order; or their gradients.
    keys = max(sub.costs.saved_bytes(element, dropout=False).memory for kind in blocks for sub in sublayers(kind, size))
    gathered = 2 * work.layout.microbatch * work.lengths[longest] * keys / work.layout.tensor
    return gradients + largest * element + recomputed + (gathered if work.layout.context > 1 else 0.0)


def _attention_backward_bytes(work: Workload, stack: str) -> float:
    """Return the temporary bytes of the backward pass of a stack's attention, besides those of the residual stream.

    Kernels sum the gradient of queries in float32 (`dq_accum` of FlashAttention-2, with offsets of documents too). The
    bias has a gradient, and each of its terms two tensors with as many distances as twice the keys. Tiles hold weights
    and gradients of the scores that are computed at once, and sum the gradients of keys and values in float32.
    """
    size, layout, element = work.spec.size_of(stack), work.layout, work.element_bytes
    block, length, largest = work.spec.family.stacks[stack], work.own_lengths[stack], 0.0
    dropout = work.spec.dropout
    if work.software.attention == "materialized":
        return largest
    for kind in layers_by_kind(block, range(size.layers)):
        for costs in (sub.costs for sub in sublayers(kind, size) if sub.is_attention and sub.costs.features):
            saved = costs.saved_bytes(element, dropout=False)
            total = layout.microbatch * length * (saved.own + saved.memory + 4 * costs.features)
            if costs.scored:
                pairs = layout.microbatch * length * (work.lengths[stack] + costs.cached_positions)
                total += (1 + 2 * costs.score_terms) * pairs * size.heads * element
            elif costs.computes_only_tiles(length) and not kind.causal and kind.attentions[0].dropout_rate(dropout):
                # FlexAttention has no dropout. FlashAttention computes windows of a decoder.
                scores = layout.microbatch * costs.pairs(length, length) * size.heads
                total += 4 * min(scores, MAX_SCORES * layout.tensor) * element
                total += layout.microbatch * length * 4 / element * saved.memory
            largest = max(largest, total / layout.tensor)
    return largest


def measurement_bytes(work: Workload) -> float:
    """Return the temporary bytes of a layer whose largest attention logit is measured: normalized input, queries, keys
    and values before and after rotation, queries and keys in float32, and the logits of some queries."""
    largest = 0.0
    for stack in work.spec.family.stacks if work.measures_logits else ():
        size, rows = work.spec.size_of(stack), work.layout.microbatch
        queries, keys = rows * work.own_lengths[stack], rows * work.lengths[stack]
        heads = size.heads / work.layout.tensor
        features = heads * size.key_width
        logits = min(max(MAX_LOGITS, heads * keys), queries * heads * work.lengths[stack])
        projected = work.element_bytes * queries * (size.width + 5 * features)
        largest = max(largest, projected + 4 * features * (queries + keys) + 4 * logits)
    return largest


def buffer_bytes(work: Workload) -> float:
    """Return the bytes of messages between pipeline stages, and of the gathered input of a sequence-parallel layer."""
    width = work.layout.microbatch * work.spec.width * work.element_bytes / work.layout.context
    stream, between = width * work.tokens_per_sample, width * work.stage_positions
    passed = 4 * between / work.sequence_parts if work.layout.pipeline > 1 else 0.0
    gathered = stream if work.layout.sequence_parallel else 0.0
    return passed + gathered
