"""Options of ELMo's inputs and layers (arXiv:1802.05365)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from types import MappingProxyType
from typing import NamedTuple

from megaptm.spec import Block, InputSpec, LayerSpec, ModelSpec, Size

MAX_WORD_LENGTH = 50
"""Maximum number of characters of a word in ELMo's input, marks included; longer words are cut."""


@dataclass(frozen=True, kw_only=True)
class ProjectedLSTMSpec(LayerSpec):
    """Record of ELMo's LSTM layers with projection, and a residual connection from the second layer on."""

    kind = "projected-lstm"
    costs = "megaptm.families.elmo.costs:ProjectedLSTMCosts"
    stack = "megaptm.families.elmo.stack:ProjectedLSTMStack"
    reason = "is recurrent"
    block_fields = ("visibility",)
    caches_states = True

    cell_clip: float = 3.0
    """Maximum absolute value of the cell state of ELMo's LSTM."""
    projection_clip: float = 3.0
    """Maximum absolute value of the projected output of ELMo's LSTM."""

    def cache_shape(self, size: Size, length: int) -> tuple[int, int]:
        """Return the shape of one state of ELMo's LSTM: output and cell."""
        return min(length, 1), size.width + size.ffn

    def errors(self, block: Block, size: Size) -> Iterator[str]:
        if not block.causal:
            yield f"visibility is {block.visibility}, but an LSTM attends to no later position: use causal."

    def size_errors(self, size: Size) -> Iterator[str]:
        if size.cached_positions > 1:
            yield f"memory ({size.cached_positions}) must be 0 or 1: a recurrent layer keeps one state."


class CharacterSizes(NamedTuple):
    """Sizes of ELMo's character-based word embeddings."""

    filters: tuple[tuple[int, int], ...]
    """Width and number of filters of each convolution over characters (ELMo)."""
    highway: int
    """Number of highway layers after the convolutions over characters (ELMo)."""
    width: int
    """Width of a character embedding."""


def character_sizes(size: Size) -> CharacterSizes:
    """Return the sizes of ELMo's character-based word embeddings."""
    return CharacterSizes(*({**CharacterInput.size_defaults, **size.inputs}[key] for key in CharacterInput.size_keys))


@dataclass(frozen=True, kw_only=True)
class CharacterInput(InputSpec):
    """Input of words embedded from their characters (arXiv:1508.06615)."""

    name = "token"
    costs = "megaptm.families.elmo.character_costs:CharacterCosts"
    module = "megaptm.families.elmo.characters:CharacterWords"
    fields = ("characters",)
    replaces_tokens = True
    zero_first = ("characters.weight",)
    # Carry gates of highway layers start mostly open (arXiv:1505.00387, 2.1).
    initial_values = MappingProxyType({r"highway\.\d+\.carry\.bias": -2.0})
    size_keys = ("filters", "highway", "character_width")
    size_defaults = MappingProxyType({"filters": (), "highway": 0, "character_width": 16})
    absence = "reads token ids, not characters"
    excluded_keys = ("embedding", "stacks")
    reason = "has one width throughout"

    def errors(self, spec: ModelSpec) -> Iterator[str]:
        filters = character_sizes(spec.size).filters
        if not filters:
            yield f"model.size custom of {spec.name} needs model.filters, such as [[1, 32], [2, 32], [3, 64]]."
        if (widest := max((characters for characters, _ in filters), default=0)) > MAX_WORD_LENGTH:
            yield (
                f"model.filters has a filter of {widest} characters, and words have at most {MAX_WORD_LENGTH}: narrow "
                "it."
            )
