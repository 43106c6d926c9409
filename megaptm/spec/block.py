"""Block: the components of the layers of one stack."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields, is_dataclass, replace
from functools import cache
from itertools import cycle
from math import lcm
from typing import Any, ClassVar, Literal, NamedTuple, get_type_hints

from pydantic import TypeAdapter, ValidationError

from megaptm.errors import UserError
from megaptm.spec.attention import ROPE_OPTIONS, AttentionSpec
from megaptm.spec.layer import LayerSpec
from megaptm.spec.size import Size

# arXiv:1910.10683, section 2.1: a learned score bias is a table of 32 distances by heads; all distances from 128 on
# share the last bucket.
BIAS_BUCKETS, BIAS_FARTHEST = 32, 128

# Kinds of `position` that add a learned bias to the attention scores.
SCORE_BIASES = ("t5-bias", "t5-bias-causal")


class Visibility(NamedTuple):
    """Properties of a kind of `Block.visibility`.

    Code tests these properties, never the kind itself: an unknown kind would otherwise pass for `full`.
    """

    causal: bool = False
    """Whether no position attends to a later one."""
    ordered: bool = False
    """Whether the batch's field `order` defines the attention mask."""


VISIBILITIES = {"full": Visibility(), "causal": Visibility(causal=True), "ordered": Visibility(ordered=True)}


def find_visibility(word: str) -> Visibility:
    """Return the properties of a kind of attention visibility. Raises `UserError` that lists the known kinds."""
    if word not in VISIBILITIES:
        raise UserError(f"Block.visibility is {word!r}, which is unknown; use one of {', '.join(VISIBILITIES)}.")
    return VISIBILITIES[word]


@dataclass(frozen=True, kw_only=True)
class NormSpec:
    """Normalization layers of a stack."""

    kind: Literal["layer", "layer-no-shift", "layer-fixed", "rms", "rms-unit-offset"] = "layer"
    """`layer` (LayerNorm), `layer-no-shift` (no bias), `layer-fixed` (no weight and no bias), `rms` (RMSNorm) or
    `rms-unit-offset` (RMSNorm whose factor is 1 plus the weight: Gemma)."""
    position: Literal["pre", "post", "parallel", "output", "sandwich"] = "pre"
    """Position of norms:

    - `pre`: before each sub-layer.
    - `post`: after each residual sum.
    - `parallel`: one before all sub-layers of a layer, whose outputs are summed.
    - `output`: of each sub-layer's output, before the residual sum (OLMo 2).
    - `sandwich`: before each sub-layer, and of its output (Gemma 2).

    All but `post` also have one after the last layer.
    """
    eps: float = 1e-5
    first: bool = True
    """Whether the first layer of a pre-norm stack has a norm before its attention (ModernBERT, which normalizes the
    embeddings, has none)."""


@dataclass(frozen=True, kw_only=True)
class FFNSpec:
    """Feed-forward of a stack."""

    activation: str | tuple[str, ...] = "gelu"
    """Name of an activation: `gelu` (exact), `gelu-tanh`, `quick-gelu` (CLIP), `relu`; gated: `geglu` (gate of
    tanh-GELU), `geglu-exact` (gate of GELU), `swiglu`; that of a family; or `package.module:NAME`, a function of a
    tensor. A tuple: layer i uses element i modulo the length."""
    bias: bool = True
    """Whether projections have a bias."""
    dropout: bool = False
    """Dropout after the activation (T5)."""


@dataclass(frozen=True, kw_only=True)
class SharingSpec:
    """Weights that layers share."""

    sublayers: tuple[Literal["attention", "cross", "ffn"], ...] = ()
    """Sub-layers whose weights, norms included, are shared between layers."""
    groups: int = 1
    """Number of groups of consecutive layers; weights are shared within a group."""
    cycle: int = 1
    """Number of distinct layers in a group, which repeat in order."""

    def owner(self, layer: int, layers: int) -> int:
        """Return the index of the layer that owns the shared weights of a layer, in a stack of `layers`."""
        group = layer * self.groups // layers
        first = -(-group * layers // self.groups)
        return first + (layer - first) % self.cycle

    def owners(self, layers: int) -> list[int]:
        """Return the sorted indices of the layers that own shared weights."""
        return sorted({self.owner(layer, layers) for layer in range(layers)})


@dataclass(frozen=True, kw_only=True)
class ResidualSpec:
    """Residual connections of a stack: sums. Base class of all kinds."""

    kind: ClassVar[str] = "sum"
    """Name of the kind of residual connection."""
    stack: ClassVar[str] = ""
    """Class of stacks with them: `package.module:NAME`, a subclass of `layers.stack.Stack`. Empty: the attention's."""
    streams: ClassVar[int] = 1
    """Number of residual streams. The output of a stack is all streams, concatenated along the width."""
    saves_activations: ClassVar[bool] = True
    """Whether layers save activations for the backward pass. Otherwise only the output of the last layer exists."""

    def errors(self, block: Block) -> Iterator[str]:
        """Yield an error message for each field of the block that this kind does not support."""
        yield from ()


@dataclass(frozen=True, kw_only=True)
class Block:
    """Components of the layers of one stack. No field implies another."""

    visibility: Literal["full", "causal", "ordered"] = "full"
    """Attention mask within a document: `full`, `causal`, or `ordered` (by the batch's field `order`)."""
    attention: AttentionSpec | tuple[AttentionSpec, ...] = field(default=AttentionSpec())
    """Kind of attention. A tuple: layer i uses element i modulo the length."""
    cross: str | None = None
    """Name of the earlier stack that cross-attention reads. None: no cross-attention."""
    position: Literal["none", "learned", "sinusoid", "t5-bias", "t5-bias-causal", "rope"] = "none"
    """Kind of position encoding:

    - `learned`: a table at the input.
    - `sinusoid`: sines and cosines at the input (arXiv:1706.03762, 3.5).
    - `t5-bias`, `t5-bias-causal`: learned bias on the scores by distance, shared by the stack; to both sides, or
      backward only.
    - `rope`: rotary embedding of queries and keys (arXiv:2104.09864), with the parameters in `attention`.
    - `none`.
    """
    norm: NormSpec = field(default=NormSpec())
    ffn: FFNSpec = field(default=FFNSpec())
    residual: ResidualSpec = field(default=ResidualSpec())
    layer: LayerSpec | None = None
    """Record of layers of another kind, which replace attention and feed-forward."""
    final_dropout: bool = False
    """Dropout after the last layer and its final norm, if any (T5, Transformer-XL)."""
    sharing: SharingSpec = field(default=SharingSpec())

    @property
    def causal(self) -> bool:
        return find_visibility(self.visibility).causal

    @property
    def ordered(self) -> bool:
        return find_visibility(self.visibility).ordered

    @property
    def attentions(self) -> tuple[AttentionSpec, ...]:
        """Return the kinds of attention that layers of the block use in turn."""
        return (self.attention,) if isinstance(self.attention, AttentionSpec) else self.attention

    @property
    def kinds(self) -> tuple[str, ...]:
        """Return the names of the distinct kinds of attention of the stack."""
        return tuple(dict.fromkeys(record.kind for record in self.attentions))

    def attention_at(self, layer: int) -> AttentionSpec:
        """Return the kind of attention of one layer of the stack."""
        return self.attentions[layer % len(self.attentions)]

    def at(self, layer: int) -> Block:
        """Return the block of one layer of the stack, with one kind of attention and one activation."""
        changes: dict[str, Any] = {}
        if isinstance(self.attention, tuple):
            changes["attention"] = self.attention_at(layer)
        if isinstance(activation := self.ffn.activation, tuple):
            changes["ffn"] = replace(self.ffn, activation=activation[layer % len(activation)])
        if layer and not self.norm.first:
            changes["norm"] = replace(self.norm, first=True)
        if self.layer is not None and (record := self.layer.at(layer)) != self.layer:
            changes["layer"] = record
        return replace(self, **changes) if changes else self

    @property
    def caches_states(self) -> bool:
        """Whether layers of the block have a recurrence cache."""
        return (
            any(record.caches_states for record in self.attentions) if self.layer is None else self.layer.caches_states
        )

    def cache_shape(self, size: Size, length: int) -> tuple[int, int]:
        """Return positions and width of a layer's recurrence cache in this block; `length`: the configured number of
        positions."""
        return (length, size.width) if self.layer is None else self.layer.cache_shape(size, length)

    @property
    def for_encoding(self) -> Block:
        """Return the block without the components that only pre-training uses, such as DeBERTa's mask decoder."""
        records = tuple(record.for_encoding() for record in self.attentions)
        return replace(self, attention=records[0] if isinstance(self.attention, AttentionSpec) else records)

    def with_pretraining_components(self, published: Block) -> Block:
        """Return the block of an imported model with the components that only pre-training uses, as in `published`,
        the same stack's block in the family's table."""
        # A model may have other kinds of attention in turn than the published one.
        pairs = zip(self.attentions, cycle(published.attentions), strict=False)
        records = tuple(record.with_pretraining_components(other) for record, other in pairs)
        return replace(self, attention=records[0] if isinstance(self.attention, AttentionSpec) else records)

    @property
    def score_bias(self) -> bool:
        """Whether the stack has a learned bias table for attention scores."""
        return self.position in SCORE_BIASES


def with_attention_options(block: Block, options: Mapping[str, Any]) -> Block:
    """Return a block with changed options of its kinds of attention: field -> value, or values that layers use in turn.

    An option applies to the kinds that have it. Raises `ValidationError` for an invalid value.
    """
    for name, value in options.items():
        having = [record for record in block.attentions if name in _options(block, record)]
        if not having:
            continue
        values = _in_turn(having[0], name, value)
        records = block.attentions
        changed = tuple(
            replace(record, **{name: values[turn % len(values)]}) if name in record.options else record
            for turn in range(lcm(len(records), len(values)))
            for record in [records[turn % len(records)]]
        )
        block = replace(block, attention=changed[0] if len(set(changed)) == 1 else changed)
    return block


def attention_options(block: Block) -> dict[str, Any]:
    """Return the options of a block's kinds of attention, as `with_attention_options` reads them."""
    options: dict[str, Any] = {}
    for name in dict.fromkeys(name for record in block.attentions for name in _options(block, record)):
        having = [getattr(record, name) for record in block.attentions if name in record.options]
        values = tuple(getattr(record, name, having[0]) for record in block.attentions)
        options[name] = having[0] if len(set(having)) == 1 else values
    return options


def _options(block: Block, record: AttentionSpec) -> tuple[str, ...]:
    """Return the options that a kind of attention has in this block."""
    return tuple(name for name in record.options if block.position == "rope" or name not in ROPE_OPTIONS)


def _in_turn(record: AttentionSpec, name: str, value: Any) -> tuple[Any, ...]:
    """Return the values of an attention option that layers use in turn; one if the value is valid for all layers."""
    adapter = _field_validators(record.__class__)[name]  # type: ignore[arg-type]
    value = tuple(value) if isinstance(value, list) else value
    try:
        return (adapter.validate_python(value, strict=True),)
    except ValidationError:
        if not isinstance(value, tuple) or not value:
            raise
    return tuple(adapter.validate_python(element, strict=True) for element in value)


@cache
def _field_validators(kind: Any) -> dict[str, TypeAdapter[Any]]:
    """Return the validators of a record's fields: field -> validator of its values."""
    hints = get_type_hints(kind, include_extras=True)
    return {entry.name: TypeAdapter(hints[entry.name]) for entry in fields(kind)}


def block_value_errors(record: Any, prefix: str = "") -> Iterator[str]:
    """Yield an error message for each field of a block, or of a record in it, that has an unknown value."""
    for name, adapter in _field_validators(record.__class__).items():
        value = getattr(record, name)
        try:
            adapter.validate_python(value, strict=True)
        except ValidationError as error:
            problem = error.errors()[0]["msg"]
            yield f"{prefix}{name} is {value!r}: {problem[:1].lower()}{problem[1:]}."
            continue
        for nested in value if isinstance(value, tuple) else (value,):
            if is_dataclass(nested):
                yield from block_value_errors(nested, f"{prefix}{name}.")
