"""Sizes of optimizer state, in elements of four bytes (parallel/optimizers)."""

# T tensor ranks

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import prod

from megaptm.config import Config, OptimizerConfig, resolve_model
from megaptm.config.custom_optimizer import STEP, load_custom_rule
from megaptm.layers.costs import LinearShape
from megaptm.layers.layer_costs import linears_outside_layers, memory_width, own_sublayers, pretraining_table
from megaptm.models.chunk import ModelChunk, model_chunks
from megaptm.models.embed_costs import input_costs, input_linears, own_tables, token_costs
from megaptm.models.head_costs import head_costs
from megaptm.spec import ModelSpec


@dataclass(frozen=True)
class StateSize:
    """Number of optimizer state elements of the weights that a rank trains."""

    elements: int
    """Number of optimizer state elements that data ranks may divide among themselves."""
    factors: int = 0
    """Number of row and column means of factored optimizers (Adafactor), replicated on data ranks."""

    @property
    def total(self) -> int:
        return self.elements + self.factors


def count_state(
    optimizer: OptimizerConfig | None,
    spec: ModelSpec,
    local: Sequence[ModelChunk],
    trained: int,
    heads: Sequence[str] | None = None,
    *,
    tensor: int = 1,
) -> StateSize:
    """Count the optimizer state of `trained` weights of these chunks on one of T ranks, with these heads or all.

    Without an `optimizer`: two moments per weight.
    """
    if optimizer is not None and optimizer.ema_decay is not None:
        rule = optimizer.model_copy(update={"ema_decay": None})
        size = count_state(rule, spec, local, trained, heads, tensor=tensor)
        return StateSize(size.elements + trained, size.factors)
    if optimizer is None or optimizer.name in ("adamw", "stable-adamw", "lamb"):
        return StateSize(2 * trained)
    if optimizer.is_custom:
        return StateSize(len({*load_custom_rule(optimizer.name).state_tensors} - {STEP}) * trained)
    if optimizer.name == "adagrad":
        return StateSize(trained)
    if optimizer.name == "muon":  # one momentum for the matrices of layers, two moments for the rest
        matrices = (matrix for matrix in _layer_matrices(spec, local) if matrix.split != "heads")
        return StateSize(2 * trained - sum(prod(_local_shape(matrix, tensor)) for matrix in matrices))
    momentum = trained if optimizer.momentum else 0
    if optimizer.name == "sgd":
        return StateSize(momentum)
    min_size, squares, factors = optimizer.adafactor.min_dim_size_to_factor, trained, 0
    for matrix in _all_matrices(spec, local, heads) if min_size is not None else ():
        if min(matrix.outputs // matrix.matrices, matrix.inputs) >= (min_size or 0):
            rows, columns = _local_shape(matrix, tensor)
            squares, factors = squares - rows * columns, factors + rows + matrix.matrices * columns
    return StateSize(momentum + squares, factors)


def orthogonalization_flops(optimizer: OptimizerConfig, spec: ModelSpec, local: Sequence[ModelChunk]) -> float:
    """Return the FLOPs of one step of Muon for the matrices of these chunks, which the ranks of a stage divide."""
    flops = 0.0
    for matrix in _layer_matrices(spec, local):
        long, short = sorted((matrix.outputs // matrix.matrices, matrix.inputs), reverse=True)
        flops += matrix.matrices * (4.0 * short * short * long + 2.0 * short**3)
    return optimizer.muon.ns_steps * flops


def _local_shape(matrix: LinearShape, tensor: int) -> tuple[int, int]:
    rows = matrix.outputs // (tensor if matrix.split == "columns" else 1)
    return rows, matrix.inputs // (tensor if matrix.split in ("rows", "heads") else 1)


def checkpoint_bytes(config: Config, parameters: int) -> int:
    """Return the bytes of a checkpoint of a model with `parameters`: float32 weights, optimizer state, recurrence
    caches."""
    spec = resolve_model(config)
    sizes = [spec.size_of(stack) for stack in spec.family.stacks]
    rows = config.train.batch * sum(
        size.layers * prod(block.cache_shape(size, size.cached_positions))
        for size, block in zip(sizes, spec.family.stacks.values(), strict=True)
    )
    return 4 * (rows + parameters + count_state(config.optimizer, spec, model_chunks(spec, 1), parameters).total)


def _all_matrices(spec: ModelSpec, local: Sequence[ModelChunk], trained: Sequence[str] | None) -> Iterator[LinearShape]:
    """Yield the weights with two axes in these chunks of a model; `outputs` is their number of rows."""
    tokens = token_costs(spec)
    for chunk in local:
        yield from _layer_matrices(spec, [chunk])
        for name, layers in chunk.layers.items():
            if table := pretraining_table(spec, name, layers):
                yield table
        local_heads = {name: head for name, head in head_costs(spec).items() if name in chunk.heads}
        embeds, projects = bool(chunk.embedded_stacks), any(head.projects for head in local_heads.values())
        if tokens is not None and (embeds or (spec.family.output.tied and projects)):
            yield from tokens.matrices(embeds=embeds, projects=projects)
            yield from own_tables(spec, chunk.embedded_stacks)
        if chunk.embedded_stacks:
            yield from input_linears(spec, chunk.embedded_stacks)
        else:
            tied_inputs = {head.tied_input for head in local_heads.values()} - {""}
            yield from (input_costs(spec)[name].tied_linear for name in tied_inputs)
        for head in (head for name, head in local_heads.items() if trained is None or name in trained):
            yield from head.linears.values()
            if head.rows > 1:
                yield LinearShape(head.rows, spec.padded_vocabulary, False, "columns")


def _layer_matrices(spec: ModelSpec, local: Sequence[ModelChunk]) -> Iterator[LinearShape]:
    """Yield the weight matrices of the layers of chunks. Shared weights count once."""
    for chunk in local:
        for name, layers in chunk.layers.items():
            block, size = spec.family.stacks[name], spec.size_of(name)
            for sub in own_sublayers(block, size, layers, memory_width(spec, name)):
                yield from sub.costs.linears.values()
            yield from linears_outside_layers(block, size, layers)
