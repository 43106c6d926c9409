"""Parameters and operations of a model, by formula: no torch, no weights, any size in microseconds."""

# D width, F feed-forward features, A = heads x key width, L layers, V vocabulary, S sequence, T target sequence

from __future__ import annotations

from megaptm.spec import BIAS_BUCKETS, Block, ModelSpec, Size


def count(spec: ModelSpec, *, with_heads: bool = False) -> int:
    """Parameters, each counted once, rows that pad the vocabulary left out.

    As papers count: embeddings, stacks and BERT's pooler, and an untied output table. `with_heads` adds what only the
    pre-training losses use: BERT's masked-token transform, its bias per word, the next-sentence classifier.
    """
    family, size = spec.family, spec.size
    total = _embedding(spec) + sum(_stack(block, size) for block in _blocks(spec))
    if "lm" in family.heads and not family.tied:
        total += spec.vocabulary * size.width
    if "next-sentence" in family.heads:
        total += size.width * size.width + size.width
    if with_heads:
        total += _pretraining_heads(spec)
    return total


def step_flops(spec: ModelSpec, *, rows: int, sequence: int, target_sequence: int = 0, asked: int | None = None) -> int:
    """Floating-point operations of a training step on `rows` rows of `sequence` tokens (and `target_sequence`).

    Matrix products only, two operations a multiply-add, backward twice forward, nothing for recomputation: what model
    FLOP utilization is reckoned from (arXiv:2104.04473, appendix). Attention counts its full square, causal or not.
    `asked` is how many positions a row the masked-token head reads; absent, all.
    """
    family, size = spec.family, spec.size
    width, inner = size.width, size.heads * size.key_width
    lengths = dict(zip(family.stacks, (sequence, target_sequence), strict=False))
    multiply_adds = 0
    for name, length in lengths.items():
        block: Block = getattr(family, name)
        up = 2 if block.gated else 1
        layer = length * (4 * width * inner + (up + 1) * width * size.ffn) + 2 * length * length * inner
        if block.cross:
            layer += 2 * length * width * inner + 2 * sequence * width * inner + 2 * length * sequence * inner
        multiply_adds += size.layers * layer
    last = lengths[family.stacks[-1]]
    if "lm" in family.heads:
        multiply_adds += last * width * spec.vocabulary
    if "mlm" in family.heads:
        multiply_adds += (last if asked is None else asked) * (width * width + width * spec.vocabulary)
    if "next-sentence" in family.heads:
        multiply_adds += width * width + 2 * width
    return 3 * 2 * rows * multiply_adds


def _blocks(spec: ModelSpec) -> list[Block]:
    return [getattr(spec.family, name) for name in spec.family.stacks]


def _embedding(spec: ModelSpec) -> int:
    family, width = spec.family, spec.size.width
    rows = {"token": spec.vocabulary, "position": spec.context, "segment": family.segments}
    norm = _norm(_blocks(spec)[0], spec.size) if family.embedding_norm else 0
    return sum(rows[name] for name in family.inputs) * width + norm


def _stack(block: Block, size: Size) -> int:
    width, inner, bias = size.width, size.heads * size.key_width, int(block.bias)
    attention = 4 * width * inner + bias * (3 * inner + width)
    features = size.ffn * (2 if block.gated else 1)
    ffn = width * features + size.ffn * width + bias * (features + width)
    sublayers = 3 if block.cross else 2
    layer = attention * (sublayers - 1) + ffn + _norm(block, size) * sublayers
    table = BIAS_BUCKETS * size.heads if block.bias_table != "none" else 0
    final = _norm(block, size) if block.norm == "pre" else 0
    return size.layers * layer + table + final


def _norm(block: Block, size: Size) -> int:
    return size.width * (2 if block.normalizer == "layer" else 1)


def _pretraining_heads(spec: ModelSpec) -> int:
    width, total = spec.size.width, 0
    if "mlm" in spec.family.heads:
        total += width * width + width + _norm(_blocks(spec)[-1], spec.size) + spec.vocabulary
    if "next-sentence" in spec.family.heads:
        total += 2 * width + 2
    return total
