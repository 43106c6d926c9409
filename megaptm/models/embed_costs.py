"""Costs of the inputs of embeddings. Positions are image patches for some inputs, and words for others."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from types import MappingProxyType
from typing import Any

from megaptm.layers.costs import LinearShape, costs_class
from megaptm.layers.layer_costs import norm_parameters
from megaptm.spec import Family, ModelSpec, TokenInput


class InputCosts:
    """Linear layers and costs of an input of the embedding. Base class of all kinds. The token table is counted by
    itself."""

    def __init__(self, spec: ModelSpec, record: Any) -> None:
        """Compute the costs of an input of a model. `record`: a subclass of `spec.InputSpec`."""
        self.spec, self.record = spec, record

    @property
    def linears(self) -> tuple[LinearShape, ...]:
        """Return all linear layers of the input. A table is listed as a linear layer from its width to its rows."""
        return ()

    @property
    def num_norms(self) -> int:
        """Return the number of norms of the input, each over the width of the token table."""
        return 0

    @property
    def applied_linears(self) -> tuple[tuple[LinearShape, bool], ...]:
        """Return the linear layers that the input applies to each position, and for each whether its own input gets a
        gradient."""
        return ()

    @property
    def tied_linear(self) -> LinearShape:
        """Return the linear layer of the input whose transpose a head may use (`HeadCosts.tied_input`): the child
        `project` of the module."""
        raise NotImplementedError(f"no head can be tied to {self.record.name}")

    def multiply_adds(self, positions: int) -> tuple[int, int]:
        """Return the multiply-adds of a sequence in the linear layers of the input: in those whose own input gets a
        gradient, and in the others."""
        with_gradient, without = (
            positions
            * sum(linear.weights for linear, has_gradient in self.applied_linears if has_gradient is needs_gradient)
            for needs_gradient in (True, False)
        )
        return with_gradient, without

    def batch_bytes(self, positions: int) -> int:
        """Return the bytes of a sequence in the input's batch fields, if they are many."""
        return 0

    def saved_bytes(self, positions: int, element: int) -> int:
        """Return the bytes of a sequence that the input saves for the backward pass; `element`: bytes of an
        activation."""
        return 0


class TokenCosts(InputCosts):
    """Costs of a token table, which is not among `linears`. Base class of other kinds of token tables."""

    module: str = ""
    """Class of the token table's module, `package.module:NAME`. Empty: `layers.split.Embedding`.

    It is constructed with the model's spec and `embeds`, whether a chunk embeds tokens besides serving a tied output.
    Its output is as wide as the stack.
    """
    heads: Mapping[str, str] = MappingProxyType({})
    """Classes of the costs of heads with this token table, as `package.module:NAME`, by head. Other heads are those of
    `HEADS`."""

    @property
    def parameters(self) -> int:
        """Return the number of the token table's parameters, without vocabulary padding."""
        return self.spec.vocabulary * self.spec.token_width

    def rank_parameters(self, tensor: int, *, embeds: bool) -> int:
        """Return the number of the token table's parameters on one of `tensor` ranks."""
        return self.spec.padded_vocabulary * self.spec.token_width // tensor

    def largest_table(self, tensor: int) -> int:
        """Return the number of elements of the largest token table on one of `tensor` ranks."""
        return self.rank_parameters(tensor, embeds=True)

    def matrices(self, *, embeds: bool, projects: bool) -> list[LinearShape]:
        """Return the weight matrices of the token table. `projects`: whether the chunk has a head that projects on the
        table."""
        return [LinearShape(self.spec.token_width, self.spec.padded_vocabulary, False, "columns")]


class TableCosts(InputCosts):
    """Costs of an embedding table that is added at each position."""

    @property
    def linears(self) -> tuple[LinearShape, ...]:
        return (LinearShape(self.spec.size.table_width, self.record.rows, False),)


def input_costs(spec: ModelSpec) -> dict[str, InputCosts]:
    """Return the costs of each input of a model, by name."""
    return {record.name: costs_class(record)(spec, record) for record in spec.family.inputs}


def token_costs(spec: ModelSpec) -> TokenCosts | None:
    """Return the costs of the token table; None if the family has none."""
    record = spec.family.find_input(TokenInput)
    return None if record is None else costs_class(record)(spec, record)


def own_tables(spec: ModelSpec, stacks: Collection[str]) -> Iterator[LinearShape]:
    """Yield the shape of the token table of each of these stacks that has one of its own (`InputSpec.stack`)."""
    for stack in spec.family.own_tables.intersection(stacks):
        yield LinearShape(spec.table_width(stack), spec.padded_vocabulary, False, "columns")


def inputs_read(spec: ModelSpec, lengths: Mapping[str, int], appended: int) -> Iterator[tuple[InputCosts, int]]:
    """Yield the costs of the inputs that some stacks read, and their number of positions. `lengths`: stack -> length of
    its sequences. `appended`: number of positions after the text."""
    costs = input_costs(spec)
    for stack, length in lengths.items():
        yield costs[spec.family.token_input(stack).name], length
    for record in spec.family.inputs:
        if record.is_appended and appended and lengths:
            yield costs[record.name], appended


def embedding_tables(spec: ModelSpec, stacks: Collection[str]) -> int:
    """Return the number of parameters at the input of some stacks, without the token table."""
    family = spec.family
    norms = [
        norm_parameters(family.stacks[name], spec.table_width(name))
        for name in _by_table(family, stacks)
        if family.embedding.has_norm(name)
    ]
    for costs in input_costs(spec).values():
        norms += [norm_parameters(family.first_block, spec.size.table_width)] * costs.num_norms
    return sum(linear.replicated for linear in input_linears(spec, stacks)) + sum(norms)


def _by_table(family: Family, stacks: Collection[str]) -> list[str]:
    """Return one stack for each distinct set of input embedding tables."""
    return [*{family.tables[name]: name for name in stacks}.values()]


def input_linears(spec: ModelSpec, stacks: Collection[str]) -> Iterator[LinearShape]:
    """Yield the shapes of the linear layers at the input of some stacks, except the token table.

    They are embedding tables (inputs: width, outputs: rows), projections to the stack's width, and linear layers of
    other inputs.
    """
    family = spec.family
    for costs in input_costs(spec).values():
        yield from costs.linears
    for name in _by_table(family, stacks):
        if family.stacks[name].position == "learned":
            yield LinearShape(spec.table_width(name), spec.positions_of(name), False)
    yield from (linear for name, linear in widening_projections(spec).items() if name in stacks)


def widening_projections(spec: ModelSpec) -> dict[str, LinearShape]:
    """Return the projections of narrow embedding tables to their stacks: stack -> linear layer, if the widths
    differ."""
    if (tokens := token_costs(spec)) is not None and tokens.module:  # it has projections of its own
        return {}
    blocks = spec.family.stacks.items()
    widths = {
        stack: spec.size_of(stack).width
        for stack, block in blocks
        if block.layer is None or not block.layer.reads_table
    }
    return {
        stack: LinearShape(spec.table_width(stack), width, bias=True)
        for stack, width in widths.items()
        if width != spec.table_width(stack)
    }
