"""Layers and numbers of parameters of each rank of a pipeline stage."""

# T tensor ranks

from __future__ import annotations

from dataclasses import dataclass

from megaptm.layers.layer_costs import (
    final_norm,
    layer_parameters,
    layers_by_kind,
    memory_width,
    pretraining_table,
    sublayers,
)
from megaptm.models.chunk import ModelChunk, model_chunks
from megaptm.models.embed_costs import embedding_tables, input_costs, own_tables, token_costs
from megaptm.plan.optimizer import StateSize, count_state
from megaptm.plan.workload import Workload
from megaptm.spec import ModelSpec


@dataclass(frozen=True)
class Parameters:
    """Number of parameters of one rank, including vocabulary padding."""

    trained: int
    frozen: int = 0
    """Number of parameters that no loss trains, so that they have no gradients and no moments."""
    largest: int = 0
    """Number of parameters of the largest weight matrix, whose gradient is held temporarily."""
    in_layers: int = 0
    """Number of trained parameters that belong to one layer only, which full sharding frees between uses."""
    largest_layer: int = 0
    """Number of parameters of the largest layer."""


@dataclass(frozen=True)
class CountedStage:
    """Contents of each rank of a pipeline stage, as far as they do not depend on the batch."""

    chunks: list[ModelChunk]
    parameters: Parameters
    state: StateSize


def stage_chunks(work: Workload) -> list[list[ModelChunk]]:
    """Return the chunks of each pipeline stage: chunk c of stage p is chunk c * pipeline + p of the model
    (`parallel.stage.rank_chunks`)."""
    layout = work.layout
    cut = model_chunks(work.spec, layout.pipeline * layout.virtual, layout.layers_by_chunk)
    return [cut[stage :: layout.pipeline] for stage in range(layout.pipeline)]


def count_stages(work: Workload) -> list[CountedStage]:
    """Return the pipeline stages with their parameters and optimizer state per rank."""
    return [_count_stage(work, local) for local in stage_chunks(work)]


def _count_stage(work: Workload, local: list[ModelChunk]) -> CountedStage:
    count = count_rank_parameters(work, local)
    known = count_state(work.optimizer, work.spec, local, count.trained, work.trained_heads, tensor=work.layout.tensor)
    return CountedStage(local, count, known)


def count_rank_parameters(work: Workload, local: list[ModelChunk]) -> Parameters:
    """Return the number of parameters of one tensor rank of a pipeline stage with these chunks."""
    spec, tensor = work.spec, work.layout.tensor
    trained, frozen, tables, largest, in_layers, largest_layer = 0, 0, 0, 0, 0, 0
    tokens = token_costs(spec)
    for chunk in local:
        for name, layers in chunk.layers.items():
            block = spec.family.stacks[name]
            size, memory = spec.size_of(name), memory_width(spec, name)
            layer_counts = layer_parameters(block, size, layers, memory)
            table = pretraining_table(spec, name, layers)
            trained += layer_counts.divided // tensor + layer_counts.replicated + (table.weights if table else 0)
            if layers and not block.sharing.sublayers:
                in_layers += layer_counts.divided // tensor + layer_counts.replicated
                of_each = [layer_parameters(block, size, range(layer, layer + 1), memory) for layer in layers]
                largest_layer = max(largest_layer, *(own.divided // tensor + own.replicated for own in of_each))
            subs = [sub for kind in layers_by_kind(block, layers) for sub in sublayers(kind, size, memory)]
            largest = max([largest, *(linear.weights for sub in subs for linear in sub.costs.linears.values())])
        trained += sum(final_norm(spec.family.stacks[name], spec.size_of(name)) for name in chunk.final_stacks)
        local_heads = {name: head for name, head in work.heads.items() if name in chunk.heads}
        projects = any(head.projects for head in local_heads.values())
        if chunk.embedded_stacks:
            table_parameters = 0 if tokens is None else tokens.rank_parameters(tensor, embeds=True)
            table_parameters += sum(table.weights // tensor for table in own_tables(spec, chunk.embedded_stacks))
            trained += table_parameters + embedding_tables(spec, chunk.embedded_stacks)
        elif spec.family.output.tied and projects and tokens is not None:
            trained += tokens.rank_parameters(tensor, embeds=False)
        tied_inputs = {head.tied_input for head in local_heads.values()} - {""}
        trained += sum(input_costs(spec)[name].tied_linear.weights for name in tied_inputs if not chunk.embedded_stacks)
        if (chunk.embedded_stacks or projects) and tokens is not None:
            tables = tokens.largest_table(tensor)
        for name, head in local_heads.items():
            if work.trained_heads is None or name in work.trained_heads:
                trained += head.rank_parameters(tensor)
            else:
                frozen += head.rank_parameters(tensor)
    return Parameters(trained, frozen, max(tables, largest // tensor), in_layers, largest_layer)


def table_size(spec: ModelSpec) -> int:
    """Return the number of elements of the model's token table with padding; 0 if the family has none."""
    return spec.padded_vocabulary * spec.token_width if spec.family.has_tokens else 0
