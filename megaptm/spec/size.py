"""Size: one row of a paper's table of sizes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

# arXiv:2005.14165 does not publish the width of GPT-3's bands. GPT-Neo, a replication, uses 256.
BAND = 256


@dataclass(frozen=True, kw_only=True)
class Size:
    """One row of a paper's table of sizes."""

    layers: int
    """Number of layers of each stack."""
    width: int
    heads: int
    ffn: int
    """Inner width of the feed-forward, or of a recurrent layer's cell."""
    head_width: int | None = None
    """Width of one head. None: width / heads. T5-3B, T5-11B and GPT-3 13B (as printed) differ."""
    kv_heads: int | None = None
    """Number of heads of keys and values (PaLM: 1). None: as many as query heads."""
    band: int | None = None
    """For `banded` attention: attended positions to each side, the query's own included. None: 256."""
    memory: int | None = None
    """Length of the recurrence cache for `relative` attention, in positions. For recurrent layers 1 (the state after
    the previous sequence) or 0. None: 0."""
    embedding: int | None = None
    """Width of the token embedding, at the input and in tied heads (ALBERT, ELECTRA). None: width."""
    tied: bool | None = None
    """Whether the output projection is the token table, if sizes of the family differ in this. None: as in the
    family."""

    inputs: Mapping[str, Any] = field(default_factory=dict, hash=False)
    """Values of inputs that differ among sizes, by key of the section `model` of a config (`InputSpec.size_keys`)."""
    context: int | None = None
    """Number of learned positions, if sizes of the family differ in it. None: the family's."""

    stacks: dict[str, Size] = field(default_factory=dict, hash=False)
    """Sizes of the stacks that differ from the others, by stack."""

    @property
    def table_width(self) -> int:
        """Return the width of the token embedding of this size."""
        return self.width if self.embedding is None else self.embedding

    @property
    def key_heads(self) -> int:
        """Return the number of heads of keys and values of self-attention of this size."""
        return self.heads if self.kv_heads is None else self.kv_heads

    @property
    def band_width(self) -> int:
        """Return the width of the band of `banded` attention of this size."""
        return BAND if self.band is None else self.band

    @property
    def cached_positions(self) -> int:
        """Return the length of the recurrence cache of this size in positions; 0 without a cache."""
        return self.memory or 0

    @property
    def key_width(self) -> int:
        """Return the width of the query, key and value of one head of this size."""
        return self.width // self.heads if self.head_width is None else self.head_width
