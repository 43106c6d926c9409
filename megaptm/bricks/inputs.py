"""Costs of the inputs of embeddings. Positions are image patches for some inputs, and words for others."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cache
from typing import Any

from megaptm.bricks.brick import LinearShape
from megaptm.plugins import load_plugin
from megaptm.spec import InputSpec, ModelSpec


class InputBrick:
    """Linear layers and costs of an input. Base class of all. The token table is counted by itself."""

    def __init__(self, spec: ModelSpec, record: Any) -> None:
        """`record`: a subclass of `spec.InputSpec`."""
        self.spec, self.record = spec, record

    @property
    def maps(self) -> tuple[LinearShape, ...]:
        """All linear layers; a table counts as one from its width to its rows."""
        return ()

    @property
    def num_norms(self) -> int:
        """Number of norms, over the width of the token table."""
        return 0

    @property
    def products(self) -> tuple[tuple[LinearShape, bool], ...]:
        """Linear layers that are applied to each position, and whether their input gets a gradient."""
        return ()

    @property
    def tied_map(self) -> LinearShape:
        """Linear layer whose transpose a head may use (`HeadBrick.tied_input`): the child `project` of the module."""
        raise NotImplementedError(f"no head can be tied to {self.record.name}")

    def multiply_adds(self, positions: int) -> tuple[int, int]:
        """Return the multiply-adds of a sequence: with a gradient of the input, and without."""
        with_gradient, without = (
            positions * sum(linear.weights for linear, has_gradient in self.products if has_gradient is needs_gradient)
            for needs_gradient in (True, False)
        )
        return with_gradient, without

    def batch_bytes(self, positions: int) -> int:
        """Return the bytes of a sequence in the batch, if they are many."""
        return 0

    def saved_bytes(self, positions: int, element: int) -> int:
        """Return the bytes of a sequence that the backward pass needs; `element`: bytes of an activation."""
        return 0


class TableBrick(InputBrick):
    """Embedding table that is added at each position."""

    @property
    def maps(self) -> tuple[LinearShape, ...]:
        return (LinearShape(self.spec.size.table_width, self.record.rows, False),)


@cache
def _costs(record: InputSpec) -> Any:
    return load_plugin(record.costs, f"{type(record).__name__}.costs", "class")


def input_bricks(spec: ModelSpec) -> dict[str, InputBrick]:
    """Return the costs of each input of a model, by name."""
    return {record.name: _costs(record)(spec, record) for record in spec.family.inputs}


def inputs_read(spec: ModelSpec, lengths: Mapping[str, int], appended: int) -> Iterator[tuple[InputBrick, int]]:
    """Yield the costs of the inputs of some stacks, and their number of positions. `lengths`: stack -> length of its
    sequences. `appended`: number of positions after the text."""
    bricks = input_bricks(spec)
    for stack, length in lengths.items():
        yield bricks[spec.family.token_input(stack).name], length
    for record in spec.family.inputs:
        if record.is_appended and appended and lengths:
            yield bricks[record.name], appended
