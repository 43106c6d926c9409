"""Inputs of embeddings. A record holds the options of one input; `Family.inputs` is a tuple of records.

An input consists of its record, its costs and its module. The records of families are in their folders.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, ClassVar

if TYPE_CHECKING:
    from megaptm.spec.model import ModelSpec
    from megaptm.spec.size import Size


@dataclass(frozen=True, kw_only=True)
class InputSpec:
    """Record of an input of the embedding. Base class of all inputs.

    By default it is added to the embedding of each position. With `replaces_tokens` it is the embedding, and with
    `is_appended` it has positions of its own.
    """

    name: ClassVar[str]
    """Name of the child module in `models.embed.Embed`."""
    costs: ClassVar[str] = "megaptm.models.embed_costs:InputCosts"
    """Class of its linear layers and costs: `package.module:NAME`, a subclass of `models.embed_costs.InputCosts`. No
    torch."""
    module: ClassVar[str] = ""
    """Class of the input's torch module, constructed with the model's spec and the record: see `models.embed.Embed`,
    which has the modules of the records of this file."""
    fields: ClassVar[tuple[str, ...]] = ()
    """Batch fields that the input reads besides `tokens`, without the prefix of a stream. The objective's `Field` of
    each has `is_input`. The first has an entry per position on its first axis if the input `is_appended`."""
    stack: ClassVar[str] = ""
    """Only stack that reads the input; empty: all. The input is then a token table of this stack, which has its own
    norms."""
    adds_tokens: ClassVar[bool] = False
    """Whether the token table of `stack` is the sum of this one and of the common one, which gets no gradient from the
    stack. Otherwise it is this one alone."""
    sample_fields: ClassVar[tuple[str, ...]] = ()
    """Batch fields with one entry per sample that its module reads after `fields`; None if the batch lacks them. They
    have no prefix. The objective's `Field` of each has `is_input`."""
    replaces_tokens: ClassVar[bool] = False
    """Whether the input embeds positions instead of the token table. With a `TokenInput` in the family, only the first
    stack does so: the others read tokens."""
    is_appended: ClassVar[bool] = False
    """Whether the positions of the input follow those of the text in the same sequence. They have no
    learned positions."""
    adds_queries: ClassVar[bool] = False
    """Whether the module adds a position after the text for each target position of the batch. The module then gets
    only the target positions, `masked_positions` [B, A]. A batch without target positions gets no further position."""
    initial_values: ClassVar[Mapping[str, float]] = MappingProxyType({})
    """Initial value of all elements of the module's parameters, if it is not random, by pattern of the parameters'
    names."""
    zero_first: ClassVar[tuple[str, ...]] = ()
    """Parameters of the module whose first row is initialized with zeros."""
    reads_text: ClassVar[bool] = True
    """Whether the positions of the input are those of a text."""
    size_keys: ClassVar[tuple[str, ...]] = ()
    """Keys of the section `model` of a config whose values are in `Size.inputs`, because sizes differ in them."""
    fits_context: ClassVar[bool] = False
    """Whether the published values of `size_keys` are only for the published context."""
    reads_positions: ClassVar[bool] = False
    """Whether the module reads positions, at most the model's context, instead of token ids: [S, B], or [S, 1] if they
    are the same in each sample."""
    initial_std: ClassVar[float | None] = None
    """Standard deviation of the input's initial weights in families whose `init.rule` is `normal`. None: the
    family's."""
    size_defaults: ClassVar[Mapping[str, Any]] = MappingProxyType({})
    """Values of `size_keys` for a size that does not set them."""
    options: ClassVar[Mapping[str, str]] = MappingProxyType({})
    """Key of the section `model` of a config -> field of the record that it sets. Other fields define the family."""

    absence: ClassVar[str] = ""
    """Statement about models without the input, for error messages about its keys: `reads no images`."""
    excluded_keys: ClassVar[tuple[str, ...]] = ()
    """Keys of the section `model` that models with the input do not use."""
    reason: ClassVar[str] = ""
    """Statement about models with the input, for error messages: `reads images`."""

    def errors(self, spec: ModelSpec) -> Iterator[str]:
        """Yield an error message for each value of the section `model` that the input does not support."""
        yield from ()

    def config_errors(self, config: Any, spec: ModelSpec) -> Iterator[str]:
        """Yield an error message for each other value of a config that the input does not support."""
        yield from ()

    def derived_sizes(self, spec: ModelSpec) -> Mapping[str, Any]:
        """Return the values of the input's `size_keys` that follow from the model if its size does not set them."""
        return {}


@dataclass(frozen=True, kw_only=True)
class TokenInput(InputSpec):
    """Record of the token table. A family may have another kind, with costs that name its module and its head."""

    name = "token"
    costs = "megaptm.models.embed_costs:TokenCosts"

    def key_needing_sorted_ids(self, size: Size) -> str:
        """Return the key of the section `model` that needs token ids sorted by frequency. Empty: ids may have any
        order."""
        return ""


@dataclass(frozen=True, kw_only=True)
class SampledInput:
    """Input of a stack: tokens sampled from a head of an earlier stack during the pass. Base class of all kinds."""

    sampler: ClassVar[str]
    """Class of the sampling, `package.module:NAME`, a subclass of `models.sample.InputSampler`."""

    head: str
    """Name of the head that is sampled from."""


@dataclass(frozen=True, kw_only=True)
class SegmentInput(InputSpec):
    """Record of the segment table: which text of a pair a token belongs to (BERT)."""

    name = "segment"
    costs = "megaptm.models.embed_costs:TableCosts"

    rows: int
    """Number of segment ids."""
