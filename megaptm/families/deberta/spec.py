"""Options of disentangled attention (DeBERTa, arXiv:2006.03654), and the difference table of DeBERTa-v3
(arXiv:2111.09543)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Literal

from megaptm.spec import AttentionSpec, Block, InputSpec, PositiveInt, Size


@dataclass(frozen=True, kw_only=True)
class DisentangledSpec(AttentionSpec):
    """Attention with scores of content and distance, from a distance table of the stack (DeBERTa, arXiv:2006.03654)."""

    kind = "disentangled"
    costs = "megaptm.families.deberta.costs:DisentangledAttentionCosts"
    module = "megaptm.families.deberta.attention:DisentangledAttention"
    stack = "megaptm.families.deberta.stack:DisentangledStack"
    scores_distances = True

    max_distance: PositiveInt = 512
    """Maximum distance between query and key to each side in DeBERTa's attention."""
    num_distance_buckets: PositiveInt | None = None
    """Number of distance buckets to each side, logarithmic for large distances. None: one per distance."""
    norm: bool = False
    """Whether the distance table is normalized (DeBERTa-v2)."""
    projections: Literal["own", "tokens"] = "own"
    """Projections of DeBERTa's distance table: its `own`, or the projections that `tokens` use."""
    convolution: bool = False
    """Whether a convolution of width 3 runs beside the first layer (DeBERTa-v2)."""
    mask_decoder: bool = False
    """Whether the last layer is the enhanced mask decoder: it runs twice on the output of the layer before it, with
    queries that start from that output plus a position table. Used in pre-training only."""

    @property
    def table_rows(self) -> int:
        """Return the number of rows of DeBERTa's distance table."""
        return 2 * (self.max_distance if self.num_distance_buckets is None else self.num_distance_buckets)

    def for_encoding(self) -> DisentangledSpec:
        return replace(self, mask_decoder=False)

    def with_pretraining_components(self, published: AttentionSpec) -> DisentangledSpec:
        return replace(self, mask_decoder=isinstance(published, DisentangledSpec) and published.mask_decoder)

    def errors(self, block: Block, size: Size) -> Iterator[str]:
        if block.score_bias:
            yield f"position is {block.position}, but disentangled attention encodes distances itself: use none."


@dataclass(frozen=True, kw_only=True)
class DifferenceInput(InputSpec):
    """Difference between the token table of the discriminator and that of the generator, initially zero
    (gradient-disentangled embedding sharing, arXiv:2111.09543, section 3.3)."""

    name = "discriminator_difference"
    module = "megaptm.families.deberta.tables:difference_table"
    stack = "discriminator"
    adds_tokens = True
    initial_values = MappingProxyType({"weight": 0.0})
