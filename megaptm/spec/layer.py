"""Kinds of layers other than those of a transformer. A record holds the options of one kind (`Block.layer`).

A kind consists of its record, its costs and its stack, which are in the folder of a family.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

if TYPE_CHECKING:
    from megaptm.spec.block import Block
    from megaptm.spec.size import Size


@dataclass(frozen=True, kw_only=True)
class LayerSpec:
    """Record of layers that replace attention and feed-forward. Base class of all kinds. They are trained with data
    parallelism only."""

    kind: ClassVar[str]
    """Name of the kind of layer."""
    costs: ClassVar[str]
    """Class of its linear layers and costs: `package.module:NAME`, a subclass of `layers.costs.LayerCosts`. No
    torch."""
    stack: ClassVar[str]
    """Class of stacks with such layers, a subclass of `layers.stack.BaseStack`."""
    reason: ClassVar[str]
    """Property that error messages give as their reason: `is recurrent`."""
    block_fields: ClassVar[tuple[str, ...]] = ()
    """Fields of a block that these layers use. The others keep their defaults."""
    caches_states: ClassVar[bool] = False
    """Whether layers continue from a cache of their states in earlier sequences (`StackRecurrenceCache`)."""
    reads_table: ClassVar[bool] = False
    """Whether the input width of the first layer is that of the token table instead of the stack's."""

    def at(self, layer: int) -> LayerSpec:
        """Return the record of one layer of a stack."""
        return self

    def cache_shape(self, size: Size, length: int) -> tuple[int, int]:
        """Return the number of positions and the width of the recurrence cache of a layer of this kind. `length`: the
        configured number of positions."""
        return length, size.width

    def errors(self, block: Block, size: Size) -> Iterator[str]:
        """Yield an error message for each value of the record that this kind of layer does not support, starting with
        the field."""
        yield from ()

    def size_errors(self, size: Size) -> Iterator[str]:
        """Yield an error message for each key of the config's section `model` that this kind of layer does not
        support."""
        yield from ()
