"""Parameter and FLOP counts by formula: no torch, no weights, microseconds for any size."""

# D width, S sequence

from __future__ import annotations

from collections.abc import Mapping

from megaptm.layers.layer_costs import final_norm, layer_parameters, memory_width, pretraining_table, runs, sublayers
from megaptm.models.embed_costs import embedding_tables, inputs_read, token_costs, widening_projections
from megaptm.models.head_costs import head_costs
from megaptm.spec import LayerlessSpec, ModelSpec


def count_parameters(spec: ModelSpec | LayerlessSpec, *, with_heads: bool = False) -> int:
    """Return the number of parameters of a model, shared ones once, vocabulary padding excluded.

    As in papers: embeddings, stacks, BERT's pooler and an untied output table. `with_heads` adds pre-training parts:
    BERT's masked-token transform, vocabulary bias and next-sentence classifier; ELECTRA's generator and difference
    tables.
    """
    if isinstance(spec, LayerlessSpec):
        return spec.parameters
    stacks = {
        name: block
        for name, block in spec.family.stacks.items()
        if with_heads or name not in spec.family.sampling_only_stacks
    }
    own_tables = len(spec.family.own_tables) if with_heads else 0
    tokens = token_costs(spec)
    total = (0 if tokens is None else tokens.parameters) * (1 + own_tables) + embedding_tables(spec, stacks)
    for name, block in stacks.items():
        size = spec.size_of(name)
        layers = layer_parameters(block, size, range(size.layers), memory_width(spec, name))
        total += layers.divided + layers.replicated + final_norm(block, size)
        if with_heads and (table := pretraining_table(spec, name, range(size.layers))):
            total += table.weights
    return total + sum(head.parameters if with_heads else head.published for head in head_costs(spec).values())


def step_flops(
    spec: ModelSpec, *, rows: int, lengths: Mapping[str, int], num_predicted: int | None = None, appended: int = 0
) -> int:
    """Return the FLOPs of a training step on `rows` sequences. `lengths`: stack -> sequence length.

    Matrix products only, 2 FLOPs per multiply-add, backward twice forward, no recomputation: the basis of model FLOP
    utilization (arXiv:2104.04473, appendix). Attention counts its full square, causal or not. Projections of a distance
    table, once per pass, are not counted. `num_predicted`: target positions per sequence for heads that read only
    these; None: all. `appended`: positions after the text of a sequence.
    """
    multiply_adds, cache_multiply_adds, input_products, hashing = 0, 0, 0, 0
    for name, block in spec.family.stacks.items():
        memory = lengths[block.cross] if block.cross else 0
        size = spec.size_of(name)
        for kind, layers in runs(block, size, range(size.layers)).items():
            for sub in sublayers(kind, size, memory_width(spec, name)):
                own, keys = lengths[name], memory if sub.name == "cross" else lengths[name]
                linears = [
                    linear
                    for linear in sub.costs.linears.values()
                    if not (linear.reads_distances or linear.global_only)
                ]
                products = sum((keys if linear.reads_memory else own) * linear.weights for linear in linears)
                multiply_adds += layers * (products + 2 * sub.costs.pairs(own, keys) * sub.costs.features)
                cache_multiply_adds += layers * sub.costs.cache_multiply_adds
                hashing += layers * sub.costs.hash_multiply_adds(own)
    multiply_adds += sum(lengths[name] * linear.weights for name, linear in widening_projections(spec).items())
    for costs, positions in inputs_read(spec, lengths, appended):
        with_gradient, without = costs.multiply_adds(positions)
        multiply_adds += with_gradient
        input_products += without
    for head in head_costs(spec).values():
        multiply_adds += head.multiply_adds(head.positions_read(lengths[head.stack], num_predicted))
    # Keys and values of the recurrence cache, and some inputs, have weight gradients but no input gradients. Hashes
    # have no gradients.
    return 2 * rows * (3 * multiply_adds + 2 * (cache_multiply_adds + input_products) + hashing)
