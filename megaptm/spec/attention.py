"""Kinds of attention. A record holds the options of one kind; `Block.attention` is a record, or a tuple of records.

A kind consists of its record, its costs and its module. The records of families are in their folders.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal, NamedTuple

from pydantic import Field

if TYPE_CHECKING:
    from megaptm.spec.block import Block
    from megaptm.spec.size import Size

PositiveInt = Annotated[int, Field(ge=1)]
PositiveFloat = Annotated[float, Field(gt=0.0, allow_inf_nan=False)]
DropoutRate = Annotated[float, Field(ge=0.0, lt=1.0)]
ROPE_OPTIONS = ("rope_base", "rope_factor", "rope_original_context")
"""Options of attention that only stacks with rotary positions have."""
ROPE_TURNS = (1.0, 4.0)
"""Turns of a pair of features within `rope_original_context` up to which its wavelength is stretched, and from which it
is not (Llama 3.1)."""


class RopeParameters(NamedTuple):
    """Parameters of a rotary position embedding: the fields `ROPE_OPTIONS` of `AttentionSpec`."""

    base: float
    factor: float
    original_context: int | None


@dataclass(frozen=True, kw_only=True)
class AttentionSpec:
    """Scaled dot-product attention of all pairs. Base class of all kinds."""

    kind: ClassVar[str] = "dot"
    """Name of the kind of attention."""
    costs: ClassVar[str] = "megaptm.layers.attention_costs:SelfAttentionCosts"
    """Class of its linear layers and costs: `package.module:NAME`, a subclass of `SelfAttentionCosts`. No torch."""
    module: ClassVar[str] = "megaptm.layers.attention:SelfAttention"
    """Class of its torch module, a subclass of `AttentionModule`."""
    stack: ClassVar[str] = "megaptm.layers.stack:Stack"
    """Class of stacks whose layers have it, a subclass of `Stack`."""
    options: ClassVar[tuple[str, ...]] = ("dropout", "scale_width", *ROPE_OPTIONS)
    """Fields that a config may set, under `model.attention`. The others define the family."""
    reads_global_tokens: ClassVar[bool] = False
    """Whether global tokens (batch field `global_tokens`) attend to more positions than others do."""
    takes_global_positions: ClassVar[bool] = True
    """Whether the module takes the positions of global tokens as an argument, with or without a pattern."""
    caches_keys: ClassVar[bool] = True
    """Whether text can be generated with cached keys and values."""
    fields: ClassVar[tuple[str, ...]] = ()
    """Batch fields that its stack reads, if the batch has them, besides those of the mask; without a prefix."""
    scores_distances: ClassVar[bool] = False
    """Whether scores depend on the distance of query and key."""
    caches_states: ClassVar[bool] = False
    """Whether layers also attend to a recurrence cache: their inputs in earlier sequences."""

    bias: bool | Literal["no-keys"] = True
    """Whether attention projections have a bias; `no-keys`: all but the key projection (DeBERTa)."""
    scale: Literal["sqrt", "sqrt-3", "none"] = "sqrt"
    """Divisor of the scores: square root of the head width (`sqrt`), of three times the head width (`sqrt-3`, DeBERTa:
    scores are sums of three products), or 1 (`none`, T5)."""
    dropout: bool | DropoutRate = True
    """Whether the model's dropout also applies to attention weights (not in the original Transformer), or a rate."""
    scale_width: PositiveInt | None = None
    """Head width for `scale`, if it is not that of the heads (Gemma 2 27B: that of the model divided by heads)."""
    score_cap: PositiveFloat | None = None
    """Soft cap c of scaled scores, c tanh(score / c) (Gemma 2). None: no cap."""
    qk_norm: Literal["none", "head", "width"] = "none"
    """RMSNorm of queries and keys before rotary positions: of each head, with weights that heads share (`head`, Qwen3),
    or over all heads (`width`, OLMo 2)."""
    rope_base: PositiveFloat = 10_000.0
    """For `rope` positions: base of the wavelengths; the longest is about 2 pi times the base, in positions."""
    rope_factor: Annotated[float, Field(ge=1.0)] = 1.0
    """For `rope` positions: factor that stretches wavelengths, for texts longer than those of earlier training."""
    rope_original_context: PositiveInt | None = None
    """For a `rope_factor`: length in earlier training. Wavelengths above it are stretched, those below a quarter of it
    are not, and others by a mix of both (Llama 3.1). None: all are stretched (arXiv:2306.15595)."""

    @property
    def rope(self) -> RopeParameters:
        """Return the parameters of the rotary position embedding."""
        return RopeParameters(self.rope_base, self.rope_factor, self.rope_original_context)

    def dropout_rate(self, model: float) -> float:
        """Return the dropout rate of attention weights in a model with dropout rate `model`."""
        return self.dropout * model if isinstance(self.dropout, bool) else self.dropout

    def errors(self, block: Block, size: Size) -> Iterator[str]:
        """Yield an error message for each value of the record that this kind of attention does not support, starting
        with the field."""
        yield from ()

    def for_encoding(self) -> AttentionSpec:
        """Return the attention record without the components that only pre-training uses, such as DeBERTa's mask
        decoder."""
        return self

    def with_pretraining_components(self, published: AttentionSpec) -> AttentionSpec:
        """Return the attention record of an imported model with the components that only pre-training uses, as in
        `published`, the same layer's record in the family's table."""
        return self


@dataclass(frozen=True, kw_only=True)
class BandedSpec(AttentionSpec):
    """Attention of positions less than `Size.band` apart (GPT-3, arXiv:2005.14165, 2.1)."""

    kind = "banded"
    costs = "megaptm.layers.attention_costs:BandedAttentionCosts"
    reads_global_tokens = True


@dataclass(frozen=True, kw_only=True)
class SlidingWindowSpec(AttentionSpec):
    """Attention in a sliding window (Mistral, arXiv:2310.06825; ModernBERT, arXiv:2412.13663). Layers that use it in
    turn with full attention: `Block.attention=(AttentionSpec(), SlidingWindowSpec(window=128), ...)`."""

    kind = "sliding-window"
    costs = "megaptm.layers.attention_costs:SlidingWindowCosts"
    options = (*AttentionSpec.options, "window")

    window: PositiveInt
    """Number of attended positions, that of the query included, with causal `visibility`. Otherwise half of the window
    is on each side of the query."""

    def errors(self, block: Block, size: Size) -> Iterator[str]:
        if self.window % 2 and not block.causal:
            yield f"attention.window ({self.window}) must be even: half of the window is on each side."


@dataclass(frozen=True, kw_only=True)
class PatternSpec(AttentionSpec):
    """Attention with a user-defined pattern."""

    kind = "pattern"
    costs = "megaptm.layers.attention_costs:CustomPatternCosts"
    reads_global_tokens = True
    caches_keys = False

    pattern: str
    """`package.module:NAME` of a `layers.custom_pattern.CustomPattern`."""
