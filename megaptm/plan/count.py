"""Parameters and operations of a model, by formula: no torch, no weights, any size in microseconds."""

# D width, S sequence

from __future__ import annotations

from collections.abc import Mapping

from megaptm.bricks import heads, layer_parameters, memory_width, runs, sublayers, widening
from megaptm.bricks.adaptive import cluster_maps, token_parameters
from megaptm.bricks.characters import word_products
from megaptm.bricks.layer import embedding_tables, final_norm, mask_decoder_table
from megaptm.bricks.patches import patch_products
from megaptm.bricks.regions import region_products
from megaptm.families.words import WordSpec
from megaptm.spec import ModelSpec


def count(spec: ModelSpec | WordSpec, *, with_heads: bool = False) -> int:
    """Parameters, each counted once, rows that pad the vocabulary left out.

    As papers count: embeddings, stacks and BERT's pooler, and an untied output table. `with_heads` adds what only
    pre-training uses: BERT's masked-token transform, its bias per word, the next-sentence classifier; ELECTRA's
    generator, and what a table differs by from the generator's.
    """
    if isinstance(spec, WordSpec):
        return spec.parameters
    stacks = {
        name: block for name, block in spec.family.stacks.items() if with_heads or name not in spec.family.scaffolds
    }
    differences = len(spec.family.gradient_disentangled) if with_heads else 0
    rows = spec.vocabulary if spec.family.has_tokens else 0
    tokens = token_parameters(spec) if spec.size.cutoffs else rows * spec.token_width
    total = tokens * (1 + differences) + embedding_tables(spec, stacks)
    for name, block in stacks.items():
        size = spec.size_of(name)
        layers = layer_parameters(block, size, range(size.layers), memory_width(spec, name))
        total += layers.divided + layers.whole + final_norm(block, size)
        total += mask_decoder_table(spec, name, range(size.layers)) if with_heads else 0
    return total + sum(head.parameters if with_heads else head.published for head in heads(spec).values())


def step_flops(
    spec: ModelSpec, *, rows: int, lengths: Mapping[str, int], num_predicted: int | None = None, regions: int = 0
) -> int:
    """Floating-point operations of a training step on `rows` rows; `lengths` are the tokens of a row of each stack.

    Matrix products only, two operations a multiply-add, backward twice forward, nothing for recomputation: what model
    FLOP utilization is reckoned from (arXiv:2104.04473, appendix). Attention counts its full square, causal or not.
    Maps of a table of distances, which are done once a pass, do not count.
    `num_predicted` is how many positions a row heads read that read only these; absent, all. `regions` are the places
    of a row that regions of an image have.
    """
    multiply_adds, of_past, hashing = 0, 0, 0
    of_pixels = sum(patch_products(spec, length) for name, length in lengths.items() if spec.family.reads_patches(name))
    of_features, of_boxes = region_products(spec) if spec.family.reads_regions else (0, 0)
    for name, block in spec.family.stacks.items():
        memory = lengths[block.cross] if block.cross else 0
        size = spec.size_of(name)
        for kind, layers in runs(block, size, range(size.layers)).items():
            for sub in sublayers(kind, size, memory_width(spec, name)):
                own, keys = lengths[name], memory if sub.name == "cross" else lengths[name]
                maps = [one for one in sub.brick.maps.values() if not (one.of_distances or one.of_marked)]
                products = sum((keys if one.of_memory else own) * one.weights for one in maps)
                multiply_adds += layers * (products + 2 * sub.brick.pairs(own, keys) * sub.brick.features)
                of_past += layers * sub.brick.past_products
                hashing += layers * sub.brick.hashing(own)
    multiply_adds += sum(lengths[name] * one.weights for name, one in widening(spec).items())
    if spec.family.reads_characters:
        multiply_adds += sum(lengths.values()) * word_products(spec)
    if spec.size.cutoffs:  # every position goes through each cluster's map
        multiply_adds += sum(lengths.values()) * sum(one.weights for one in cluster_maps(spec))
    multiply_adds += regions * of_features
    for head in heads(spec).values():
        multiply_adds += head.multiply_adds(head.positions_read(lengths[head.stack], num_predicted))
    # Keys and values of what is remembered, patches and boxes have a gradient for their map, and none for what they are
    # made of; through hashes no gradient comes.
    return 2 * rows * (3 * multiply_adds + 2 * (of_past + of_pixels + regions * of_boxes) + hashing)
