"""Costs of character-based word embeddings (arXiv:1508.06615, as in arXiv:1802.05365): character vectors, convolutions
with max pooling, highway layers, and a projection to the hidden states."""

from __future__ import annotations

from collections.abc import Iterator

from megaptm.families.elmo.spec import MAX_WORD_LENGTH, character_sizes
from megaptm.families.elmo.spelling import NUM_CHARACTERS
from megaptm.layers.costs import LinearShape
from megaptm.models.embed_costs import InputCosts
from megaptm.spec import Size


def convolution_shapes(size: Size) -> list[LinearShape]:
    """Return the linear layers of ELMo's character convolutions, over the vectors of neighboring characters."""
    sizes = character_sizes(size)
    return [LinearShape(characters * sizes.width, filters, True) for characters, filters in sizes.filters]


def word_shapes(size: Size) -> Iterator[LinearShape]:
    """Yield the linear layers of ELMo's character-based word embedding: two per highway layer, and a projection."""
    wide = sum(filters for _, filters in character_sizes(size).filters)
    yield from [LinearShape(wide, wide, True)] * (2 * character_sizes(size).highway)
    yield LinearShape(wide, size.table_width, True)


class CharacterCosts(InputCosts):
    """Linear layers and costs of ELMo's word embeddings from characters."""

    @property
    def linears(self) -> tuple[LinearShape, ...]:
        """Return all linear layers of ELMo's character-based word embeddings. The character table counts as one from
        its width to its rows."""
        size = self.spec.size
        return (
            LinearShape(character_sizes(size).width, NUM_CHARACTERS, False),
            *convolution_shapes(size),
            *word_shapes(size),
        )

    def multiply_adds(self, positions: int) -> tuple[int, int]:
        size = self.spec.size
        starts = [MAX_WORD_LENGTH - characters + 1 for characters, _ in character_sizes(size).filters]
        along = sum(many * linear.weights for many, linear in zip(starts, convolution_shapes(size), strict=True))
        return positions * (along + sum(linear.weights for linear in word_shapes(size))), 0
