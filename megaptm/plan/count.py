"""Parameter and FLOP counts by formula: no torch, no weights, microseconds for any size."""

# D width, S sequence

from __future__ import annotations

from collections.abc import Mapping

from megaptm.layers.layer_costs import final_norm, layer_parameters, memory_width, passes_by_kind, pretraining_table
from megaptm.models.embed_costs import embedding_tables, own_tables, token_costs
from megaptm.models.head_costs import head_costs
from megaptm.models.model_costs import MultiplyAdds, input_multiply_adds, layer_multiply_adds
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
    tables = own_tables(spec, spec.family.own_tables if with_heads else spec.family.separate_tables)
    tokens = token_costs(spec)
    total = (0 if tokens is None else tokens.parameters) + embedding_tables(spec, stacks)
    total += sum(spec.vocabulary * table.inputs for table in tables)
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
    total = input_multiply_adds(spec, lengths, appended)
    for name, block in spec.family.stacks.items():
        size = spec.size_of(name)
        for kind, layers in passes_by_kind(block, size, range(size.layers)).items():
            total += layer_multiply_adds(spec, name, kind, lengths) * layers
    for head in head_costs(spec).values():
        total += MultiplyAdds(head.multiply_adds(head.positions_read(lengths[head.stack], num_predicted)))
    return 2 * rows * total.step
