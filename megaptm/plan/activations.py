"""What the forward pass of one micro-batch leaves in memory for the backward pass.

Counted from the operations of `layers/`: a linear map keeps its input, a norm its input, a nonlinearity its input (the
rectifier its output), dropout a byte an element, fused attention queries, keys, values, output and one float a query.
For a decoder of width D, feed-forward 4 D, dropout and bfloat16 that is (10 + 24 / T) bytes a token and width on T
tensor ranks, and 34 / T with sequence parallelism: arXiv:2205.05198, equations 2 and 4, without the scores, which fused
attention does not keep.
"""

# D width, A = heads x key width, F feed-forward features, T tensor ranks

from __future__ import annotations

from megaptm.plan.stages import Chunk
from megaptm.plan.work import Work
from megaptm.spec import Block


def layer(work: Work, stack: str, *, recompute: str | None = None) -> float:
    """Bytes that one layer of a stack keeps for one micro-batch on one rank."""
    recompute = work.recompute if recompute is None else recompute
    block: Block = getattr(work.spec.family, stack)
    tokens = work.layout.microbatch * work.lengths[stack]
    width, element = work.spec.size.width, work.element
    if recompute == "full":
        return tokens * width * element / work.slice
    masks = 1 if work.spec.dropout else 0
    sublayers = 3 if block.cross else 2
    # Each sub-layer: the norm's input, the norm's output (the next linear map's input), the dropout's mask.
    residual = sublayers * tokens * width * (2 * element + masks) / work.slice
    kept = residual + _feed_forward(work, block, tokens) + _attention(work, stack, stack, recompute)
    if block.cross:
        kept += _attention(work, stack, next(iter(work.lengths)), recompute)
    return kept


def _attention(work: Work, queries: str, keys: str, recompute: str) -> float:
    """Queries, keys, values and the output, and what lies between them."""
    size, layout, element = work.spec.size, work.layout, work.element
    inner, rows = size.heads * size.key_width, layout.microbatch
    asking, asked = work.lengths[queries], work.lengths[keys]
    kept = rows * (2 * asking + 2 * asked) * inner * element
    pairs = rows * asking * asked
    if work.software.attention == "materialized":
        if recompute != "selective":
            # Softmax, dropout's mask, and what is left after dropout: 5 bytes a score in bfloat16.
            kept += pairs * size.heads * (2 * element + 1 if work.spec.dropout else element)
        return kept / layout.tensor
    # One float32 a query and head.
    kept += rows * asking * size.heads * 4
    # Without a learned bias, each layer turns the booleans into numbers of its own, which the heads share.
    block: Block = getattr(work.spec.family, queries)
    shared = pairs * element if work.masked and block.bias_table == "none" else 0
    return kept / layout.tensor + shared


def _feed_forward(work: Work, block: Block, tokens: int) -> float:
    features, element = work.spec.size.ffn, work.element
    if block.gated:
        copies = 4 * element  # gate and value, the gate's answer, their product
    elif block.ffn == "relu":
        copies = element  # the rectifier keeps its output, which is the next map's input
    else:
        copies = 2 * element
    if block.ffn_dropout and work.spec.dropout:
        copies += 1 + (element if block.ffn == "relu" else 0)
    return tokens * features * copies / work.layout.tensor


def chunk(work: Work, held: Chunk) -> float:
    """Bytes of one micro-batch in one chunk: its layers, the stack's bias, the embedding's mask."""
    total = 0.0
    rows, size, element = work.layout.microbatch, work.spec.size, work.element
    for name, layers in held.layers.items():
        total += layers * layer(work, name)
        if layers and getattr(work.spec.family, name).bias_table != "none":
            total += rows * work.lengths[name] ** 2 * size.heads / work.layout.tensor * element
    stream = rows * work.stream * size.width
    if held.first and work.spec.dropout:
        total += stream / work.slice
    # The closing norm keeps its input; what it gives is the head's.
    total += sum(rows * work.lengths[name] * size.width * element / work.slice for name in held.finals)
    return total


def in_flight(work: Work, stage: int) -> int:
    """Passes through one chunk that stage holds at once, at most.

    1F1B: the first stage is `pipeline` micro-batches ahead, the last one ahead of itself. Interleaved
    (arXiv:2104.04473, section 2.2): twice the distance to the last stage and a round of the other chunks besides, which
    makes layers x (1 + (p - 1) / (p v)) on the first stage.
    """
    layout = work.layout
    if layout.virtual == 1:
        return min(layout.pipeline - stage, work.microbatches)
    ahead = 2 * (layout.pipeline - stage - 1) + (layout.virtual - 1) * layout.pipeline + 1
    return min(ahead, layout.virtual * work.microbatches)


def held(work: Work, stage: int, chunks: list[Chunk]) -> float:
    """Bytes of all micro-batches that a stage holds at its fullest."""
    passes, sizes = in_flight(work, stage), [chunk(work, one) for one in chunks]
    rounds, rest = divmod(passes, len(chunks) * work.layout.pipeline)
    total = rounds * work.layout.pipeline * sum(sizes)
    for size in sizes:  # micro-batches enter a chunk in groups of `pipeline`, the first chunk first
        total += min(rest, work.layout.pipeline) * size
        rest -= min(rest, work.layout.pipeline)
    return total


def logits(work: Work) -> float:
    """Bytes at the peak of projection and loss on the last stage (losses/token.py, parallel/split.py)."""
    spec, tensor = work.spec, work.layout.tensor
    rows, width, element = work.layout.microbatch, spec.size.width, work.element
    length = work.lengths[spec.family.stacks[-1]]
    places = rows * (length if work.asked is None else work.asked)
    vocabulary = spec.padded_vocabulary
    hidden = 2 * places * width * element  # the closing norm's output, gathered, and its gradient
    if "lm" not in spec.family.heads and "mlm" not in spec.family.heads:
        return hidden
    if work.software.chunked_logits and tensor == 1:
        chunked = min(places, 1024)
        table = 4 if places > 1024 else element
        return hidden + chunked * vocabulary * (element + 4) + vocabulary * width * table
    # Float32 logits, which become their softmax and its gradient in place, beside logits and then gradient in the
    # model's format.
    return hidden + places * vocabulary / tensor * (4 if element == 4 else element + 4)


def workspace(work: Work, largest: int) -> float:
    """What a backward pass needs for a moment: gradients of activations, of one weight, of a layer computed again."""
    spec, element = work.spec, work.element
    longest = max(work.lengths, key=lambda name: work.lengths[name])
    tokens = work.layout.microbatch * work.lengths[longest]
    block: Block = getattr(spec.family, longest)
    up = 2 if block.gated else 1
    gradients = tokens * element * (2 * up * spec.size.ffn / work.layout.tensor + 2 * spec.size.width)
    again = layer(work, longest, recompute="none") if work.recompute == "full" else 0.0
    return gradients + largest * element + again


def buffers(work: Work) -> float:
    """Received from and sent to other stages, and the gathered input of a sequence-parallel layer."""
    stream = work.layout.microbatch * work.stream * work.spec.size.width * work.element
    passed = 4 * stream / work.slice if work.layout.pipeline > 1 else 0.0
    gathered = stream if work.layout.sequence_parallel else 0.0
    return passed + gathered
