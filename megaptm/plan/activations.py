"""What the forward pass of one micro-batch leaves in memory for the backward pass.

Counted from the operations of `layers/`: a linear map keeps its input, a norm its input, a nonlinearity its input (the
rectifier its output), dropout a byte an element, fused attention queries, keys, values, output and one float a query.
For a decoder of width D, feed-forward 4 D, dropout and bfloat16 that is (10 + 24 / T) bytes a token and width on T
tensor ranks, and 34 / T with sequence parallelism: arXiv:2205.05198, equations 2 and 4, without the scores, which fused
attention does not keep.
"""

# D width, A = heads x key width, F feed-forward features, T tensor ranks

from __future__ import annotations

from megaptm.bricks import Brick, ModelChunk, SubLayer, kinds, memory_width, runs, sublayers
from megaptm.bricks.feedforward import ROWS_FED
from megaptm.bricks.head import HeadBrick, LossBytes
from megaptm.bricks.patches import patch_map
from megaptm.bricks.regions import given_bytes, region_bytes
from megaptm.plan.workload import Workload
from megaptm.spec import Block


def layer(work: Workload, stack: str, block: Block | None = None, *, recompute: str | None = None) -> float:
    """Bytes that one layer of a stack keeps for one micro-batch on one rank.

    `block` is that `at` the layer; absent: the first's. A reversible one keeps numbers of buckets alone.
    """
    block = work.spec.family.stacks[stack].at(0) if block is None else block
    recompute = work.recompute if recompute is None else recompute
    size, element = work.spec.size_of(stack), work.element
    subs = sublayers(block, size, memory_width(work.spec, stack))
    if block.reversible:
        return work.layout.microbatch * subs[0].brick.chosen_bytes(work.lengths[stack]) / work.layout.tensor
    if recompute == "full":
        return work.layout.microbatch * work.lengths[stack] * size.width * element / work.slice
    return sum(_sublayer(work, stack, block, sub, recompute) for sub in subs)


def _sublayer(work: Workload, stack: str, block: Block, sub: SubLayer, recompute: str) -> float:
    tokens, element, masks = work.layout.microbatch * work.lengths[stack], work.element, 1 if work.spec.dropout else 0
    # The norm's input, the norm's output (the next linear map's input), the dropout's mask.
    saved = tokens * work.spec.size_of(stack).width * (2 * element + masks) / work.slice
    keys = block.cross if sub.name == "cross" and block.cross else stack
    of_brick = sub.brick.saved_bytes(element, dropout=bool(work.spec.dropout))
    key_tokens = work.layout.microbatch * work.lengths[keys]
    saved += (tokens * of_brick.own + key_tokens * of_brick.memory) / work.layout.tensor
    # Keys and values of what is remembered; of that itself, which the step holds anyway, nothing more.
    saved += work.layout.microbatch * sub.brick.remembered * 2 * sub.brick.features * element / work.layout.tensor
    if sub.brick.features:
        saved += _scores(work, sub.brick, stack, keys, recompute)
    return saved


def _scores(work: Workload, brick: Brick, queries: str, keys: str, recompute: str) -> float:
    """What lies between queries, keys, values and the output."""
    size, layout, element = work.spec.size_of(queries), work.layout, work.element
    query_positions, rows = work.lengths[queries], layout.microbatch
    pairs = rows * brick.pairs(query_positions, work.lengths[keys])
    if work.software.attention == "materialized":
        if recompute == "selective":
            return 0.0
        # Softmax, dropout's mask, and what is left after dropout: 5 bytes a score in bfloat16.
        drops = brick.block.attention_rate(work.spec.dropout) > 0
        return pairs * size.heads * (2 * element + 1 if drops else element) / layout.tensor
    if brick.tiled(query_positions):
        return 0.0
    # Without a learned bias, each layer turns the booleans into numbers of its own, which the heads share.
    if brick.scored:
        # The sum of what is added, which every layer and head has of its own.
        key_positions = work.lengths[keys] + brick.remembered
        added = rows * query_positions * key_positions * size.heads * element / layout.tensor
        return rows * query_positions * size.heads * 4 / layout.tensor + added
    shared = (
        pairs * element
        if (work.masked or brick.masked(query_positions)) and not work.spec.family.stacks[queries].score_bias
        else 0
    )
    # One float32 a query and head.
    return rows * query_positions * size.heads * 4 / layout.tensor + shared


def chunk(work: Workload, here: ModelChunk) -> float:
    """Bytes of one micro-batch in one chunk: its layers, the stack's bias, the embedding's mask."""
    total = 0.0
    rows, spec, element = work.layout.microbatch, work.spec, work.element
    for name, layers in here.layers.items():
        block = work.spec.family.stacks[name]
        total += sum(
            number * layer(work, name, kind) for kind, number in runs(block, spec.size_of(name), layers).items()
        )
        if layers and block.score_bias:
            total += rows * work.lengths[name] ** 2 * spec.size_of(name).heads / work.layout.tensor * element
    if work.spec.dropout:
        embedded = rows * sum(work.lengths[name] * spec.size_of(name).width for name in here.begins)
        total += embedded / work.slice
    if spec.family.reads_images:  # pixels, for the gradient of their map
        patches = rows * sum(work.lengths[name] - 1 for name in here.begins if spec.family.reads_patches(name))
        total += patches * patch_map(spec).inputs * element
    if here.begins and work.regions:
        total += rows * work.regions * region_bytes(spec, element)
    # The closing norm keeps its input; what it gives is the head's.
    total += sum(rows * work.lengths[name] * spec.output_width(name) * element / work.slice for name in here.finals)
    # Reversible layers are computed back from what the last one gave, two streams in float32.
    reversible = (name for name, layers in here.layers.items() if layers and spec.family.stacks[name].reversible)
    total += sum(rows * work.lengths[name] * spec.output_width(name) * 4 / work.slice for name in reversible)
    return total


def in_flight(work: Workload, stage: int) -> int:
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


def stage(work: Workload, number: int, chunks: list[ModelChunk]) -> float:
    """Bytes of all micro-batches that a stage holds at its fullest."""
    passes, sizes = in_flight(work, number), [chunk(work, one) for one in chunks]
    rounds, rest = divmod(passes, len(chunks) * work.layout.pipeline)
    total = rounds * work.layout.pipeline * sum(sizes)
    for size in sizes:  # micro-batches enter a chunk in groups of `pipeline`, the first chunk first
        total += min(rest, work.layout.pipeline) * size
        rest -= min(rest, work.layout.pipeline)
    return total


def given(work: Workload) -> float:
    """Bytes of a step's rows, which each stage is sent before its first pass: pixels, a byte each, and what a detector
    says of regions. Words, beside these, are little."""
    spec = work.spec
    a_row = work.regions * given_bytes(spec) if work.regions else 0
    if spec.family.reads_images:
        patches = sum(length - 1 for name, length in work.lengths.items() if spec.family.reads_patches(name))
        a_row += patches * patch_map(spec).inputs
    return float(work.own * a_row)


def logits(work: Workload) -> float:
    """Bytes at the peak of projection and loss on the last stage (losses/token.py, parallel/split.py)."""
    known = {head: _loss(work, head) for head in work.heads.values()}
    if not known:  # the closing norm's output and its gradient
        last = next(reversed(work.spec.family.stacks))
        return 2 * work.layout.microbatch * work.lengths[last] * work.spec.output_width(last) * work.element
    projecting = [bytes_ for head, bytes_ in known.items() if head.projects] or [*known.values()][-1:]
    return sum(one.saved for one in projecting) + max(one.transient for one in projecting)


def _loss(work: Workload, head: HeadBrick) -> LossBytes:
    positions = work.layout.microbatch * head.positions_read(work.lengths[head.stack], work.num_predicted)
    chunked = work.software.chunked_logits
    return head.loss_bytes(positions, work.element, tensor=work.layout.tensor, chunked=chunked)


def compared(work: Workload) -> float:
    """Bytes of the largest comparison of all rows, between the two passes (`parallel.contrast`)."""
    return max((float(head.compare_bytes(work.own, work.batch)) for head in work.comparing), default=0.0)


def workspace(work: Workload, largest: int) -> float:
    """What a backward pass needs for a moment: gradients of activations, of one weight, of a layer computed again."""
    spec, element = work.spec, work.element
    longest = max(work.lengths, key=lambda name: work.lengths[name])
    tokens = work.layout.microbatch * work.lengths[longest]
    size = spec.size_of(longest)
    blocks = kinds(spec.family.stacks[longest], range(size.layers))
    inner = [sub.brick for block in blocks for sub in sublayers(block, size) if sub.name in ("ffn", "recurrent")]
    up = max(one.outputs for brick in inner for one in brick.maps.values() if one.split != "rows")
    gradients = tokens * element * (2 * up / work.layout.tensor + 2 * size.width)
    again = 0.0
    if spec.family.stacks[longest].reversible:
        # Its feed-forward is done in pieces; beside it stand both streams and their gradients, in float32.
        fed = min(1.0, ROWS_FED / tokens)
        gradients = tokens * 4 * 2 * 2 * size.width / work.slice + fed * gradients
        again = max(_sublayer(work, longest, kind, sublayers(kind, size)[0], "none") for kind in blocks)
    elif work.recompute == "full":
        again = max(layer(work, longest, kind, recompute="none") for kind in blocks)
    return gradients + largest * element + again


def buffers(work: Workload) -> float:
    """Received from and sent to other stages, and the gathered input of a sequence-parallel layer."""
    stream = work.layout.microbatch * work.stream * work.spec.width * work.element
    between = work.layout.microbatch * work.between * work.spec.width * work.element
    passed = 4 * between / work.slice if work.layout.pipeline > 1 else 0.0
    gathered = stream if work.layout.sequence_parallel else 0.0
    return passed + gathered
