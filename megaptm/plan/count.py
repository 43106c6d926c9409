"""Parameters and operations of a model, by formula: no torch, no weights, any size in microseconds."""

# D width, S sequence

from __future__ import annotations

from collections.abc import Mapping

from megaptm.bricks import heads, held, kinds, memory_width, sublayers, widening
from megaptm.bricks.layer import embedding_tables, final_norm
from megaptm.spec import ModelSpec


def count(spec: ModelSpec, *, with_heads: bool = False) -> int:
    """Parameters, each counted once, rows that pad the vocabulary left out.

    As papers count: embeddings, stacks and BERT's pooler, and an untied output table. `with_heads` adds what only the
    pre-training losses use: BERT's masked-token transform, its bias per word, the next-sentence classifier.
    """
    total = spec.vocabulary * spec.size.table_width + embedding_tables(spec)
    for name, block in spec.family.stacks.items():
        size = spec.size_of(name)
        layers = held(block, size, range(size.layers), memory_width(spec, name))
        total += layers.divided + layers.whole + final_norm(block, size)
    return total + sum(head.parameters if with_heads else head.published for head in heads(spec).values())


def step_flops(spec: ModelSpec, *, rows: int, lengths: Mapping[str, int], asked: int | None = None) -> int:
    """Floating-point operations of a training step on `rows` rows; `lengths` are the tokens of a row of each stack.

    Matrix products only, two operations a multiply-add, backward twice forward, nothing for recomputation: what model
    FLOP utilization is reckoned from (arXiv:2104.04473, appendix). Attention counts its full square, causal or not.
    `asked` is how many positions a row the masked-token head reads; absent, all.
    """
    multiply_adds = 0
    for name, block in spec.family.stacks.items():
        memory = lengths[block.cross] if block.cross else 0
        size = spec.size_of(name)
        for kind, layers in kinds(block, range(size.layers)).items():
            for sub in sublayers(kind, size, memory_width(spec, name)):
                own, keys = lengths[name], memory if sub.name == "cross" else lengths[name]
                maps = sub.brick.maps.values()
                products = sum((keys if one.of_memory else own) * one.weights for one in maps)
                multiply_adds += layers * (products + 2 * sub.brick.pairs(own, keys) * sub.brick.features)
    multiply_adds += sum(lengths[name] * one.weights for name, one in widening(spec).items())
    for name, head in heads(spec).items():
        multiply_adds += head.multiply_adds(asked if name == "mlm" and asked is not None else lengths[head.stack])
    return 3 * 2 * rows * multiply_adds
