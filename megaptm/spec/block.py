"""Block: the components of the layers of one stack."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from megaptm.errors import UserError

# arXiv:1910.10683, section 2.1: a learned score bias is a table of 32 distances by heads; all distances from 128 on
# share the last bucket.
BIAS_BUCKETS, BIAS_FARTHEST = 32, 128

# Fields that may be tuples: layer i uses element i modulo the length.
TURNS = ("attention", "ffn", "window", "dilation", "chunk")

# Numeric field of a block -> the kinds of attention that read it.
PATTERN_NUMBERS = {
    "window": ("window",),
    "dilation": ("window",),
    "block": ("blocks",),
    "random_blocks": ("blocks",),
    "blocks_seed": ("blocks",),
    "edge_blocks": ("blocks",),
    "chunk": ("local", "lsh"),
    "hashes": ("lsh",),
    "hash_buckets": ("lsh",),
}

# Kinds of `position` that add a learned bias to the attention scores.
SCORE_BIASES = ("t5-bias", "t5-bias-causal")


class Visibility(NamedTuple):
    """Properties of a kind of `Block.visibility`.

    Code tests these properties, never the kind itself: an unknown kind would otherwise pass for `full`.
    """

    causal: bool = False
    """Whether a position attends to none after it."""
    ordered: bool = False
    """Whether the batch's field `order` defines the attention mask."""


VISIBILITIES = {"full": Visibility(), "causal": Visibility(causal=True), "ordered": Visibility(ordered=True)}


def visibility_of(word: str) -> Visibility:
    """Return the properties of a kind of visibility. Raises `UserError` that lists the known kinds."""
    if word not in VISIBILITIES:
        raise UserError(f"Block.visibility is {word!r}, which is unknown; use one of {', '.join(VISIBILITIES)}.")
    return VISIBILITIES[word]


@dataclass(frozen=True, kw_only=True)
class Block:
    """Components of the layers of one stack. No field implies another.

    `attention`, `ffn`, `window`, `dilation` and `chunk` may be tuples: layer i uses element i modulo the length.
    """

    visibility: str = "full"
    """Attention mask within a document: `full`, `causal`, or `ordered` (by the batch's field `order`)."""
    attention: str | tuple[str, ...] = "dot"
    """Kind of attention:

    - `dot`: scaled dot product.
    - `banded`: dot product of positions less than `Size.band` apart.
    - `disentangled`: content and distance, with a distance table that the stack shares (DeBERTa).
    - `relative`: content and distance, with sinusoids and a recurrence cache (Transformer-XL).
    - `window`: nearby positions, and those that the batch's field `global_tokens` marks, which have projections of
      their own (Longformer).
    - `blocks`: neighboring, random, first and last blocks (BigBird).
    - `local`: the chunk of the query and the chunk before it.
    - `lsh`: `local` after sorting positions by hashes of shared queries and keys (Reformer).
    - `package.module:NAME`: a custom pattern (`bricks.custom_pattern.CustomPattern`).
    """
    window: int | tuple[int, ...] = 512
    """For `window`: number of attended positions besides the query's own. Half of them are on each side; with causal
    `visibility` all are before it."""
    dilation: int | tuple[int, ...] = 1
    """For `window`: step between attended positions."""
    block: int = 64
    """For `blocks`: positions per block."""
    random_blocks: int = 3
    """For `blocks`: number of random blocks that each block attends to; sampled for each layer and head."""
    blocks_seed: int = 0
    """For `blocks`: seed of the random blocks, besides layer and head. Part of the model: evaluation must use
    the blocks of training."""
    edge_blocks: bool = True
    """For `blocks`: whether the first and last block are global (BigBird-ITC). If false, only the positions that the
    batch's field `global_tokens` marks are global (BigBird-ETC)."""
    chunk: int | tuple[int, ...] = 64
    """For `local` and `lsh`: positions per chunk."""
    hashes: int = 1
    """For `lsh`: number of hash rounds, each with its own random rotations."""
    hash_buckets: int | tuple[int, ...] = 64
    """For `lsh`: number of hash buckets; a tuple of factors for a factorized hash."""
    distances: int = 512
    """For `disentangled`: largest distance to each side."""
    distance_buckets: int | None = None
    """For `disentangled`: distance buckets to each side, logarithmic for large distances. None: one per distance."""
    distance_norm: bool = False
    """For `disentangled`: whether the distance table is normalized (DeBERTa-v2)."""
    distance_maps: str = "own"
    """For `disentangled`: projections of the distance table: its `own`, or those of the `tokens`."""
    relative_biases: str = "stack"
    """For `relative`: owner of the query biases u and v: the `stack` (Transformer-XL) or each `layer` (XLNet)."""
    relative_segments: bool = False
    """For `relative`: whether scores also encode if query and key share a segment (XLNet, arXiv:1906.08237, 2.5)."""
    query_stream: bool = False
    """Whether a query stream runs beside the content stream: one query for each target position, which attends to the
    positions before it in the factorization order, itself excluded (XLNet, arXiv:1906.08237, 2.3)."""
    remembers: str = "row"
    """For `relative`: part of a sequence that enters the recurrence cache: the whole `row`, or its first `half` (XLNet,
    whose sequences overlap by half)."""
    position: str = "none"
    """Kind of position encoding:

    - `learned`: a table at the input.
    - `sinusoid`: sines and cosines at the input (arXiv:1706.03762, 3.5).
    - `axial`: two tables at the input, for the row and the column of a position (arXiv:2001.04451, section 2).
    - `t5-bias`, `t5-bias-causal`: learned bias on the scores by distance, shared by the stack; to both sides, or
      backward only.
    - `rope`: rotary embedding of queries and keys (arXiv:2104.09864).
    - `none`.
    """
    rope_base: float = 10_000.0
    """For `rope`: base of the wavelengths; the longest is about 2 pi times the base, in positions."""
    norm: str = "layer"
    """Kind of norm: `layer` (LayerNorm), `layer-no-shift` (no bias), `layer-fixed` (no weight and no bias) or `rms`."""
    norm_place: str = "pre"
    """Position of the norms: `pre` (before each sub-layer, and after the last layer), `post` (after each residual sum)
    or `parallel` (one before all sub-layers of a layer, whose outputs are summed; and after the last layer)."""
    norm_eps: float = 1e-5
    residual: str = "sum"
    """Residual connection: `sum`, or `reversible` (two residual streams; the inputs of a layer are recomputed from its
    outputs, so no activations are saved: arXiv:2001.04451, section 3). The output of a reversible stack is both
    streams, concatenated along the width."""
    ffn: str | tuple[str, ...] = "gelu"
    """Activation: `gelu` (exact), `gelu-tanh`, `quick-gelu` (CLIP), `relu`; gated: `geglu` (tanh-GELU gate), `swiglu`;
    or `package.module:NAME`, a function of a tensor."""
    attention_bias: bool | str = True
    """Whether attention projections have a bias; `no-keys`: all but the key projection (DeBERTa)."""
    ffn_bias: bool = True
    """Whether feed-forward projections have a bias."""
    scale: str = "sqrt"
    """Divisor of the scores: square root of the head width (`sqrt`), of three times the head width (`sqrt-3`, DeBERTa:
    scores are sums of three products), or 1 (`none`, T5)."""
    cross: str | None = None
    """Name of the earlier stack that cross-attention reads. None: no cross-attention."""
    attention_dropout: bool | float = True
    """Whether the model's dropout also applies to attention weights (not in the original Transformer), or a rate."""
    ffn_dropout: bool = False
    """Dropout after the activation of the feed-forward (T5)."""
    final_dropout: bool = False
    """Dropout after the last layer and its final norm, if any (T5, Transformer-XL)."""
    recurrent: str = "none"
    """Recurrent layer that replaces attention and feed-forward:

    - `none`.
    - `lstm`: LSTM with projection, and a residual connection from the second layer on (ELMo). Needs causal
      `visibility`.
    - `lstm-both-ways`: bidirectional LSTM (CoVe's encoder).
    - `lstm-attentive`: LSTM with input feeding, which also reads the attention output of the previous position (CoVe's
      decoder). Needs `cross`.
    """
    cell_clip: float = 3.0
    """For `lstm`: largest absolute value of the cell state."""
    projection_clip: float = 3.0
    """For `lstm`: largest absolute value of the projected output."""
    convolution: bool = False
    """Whether a convolution of width 3 runs beside the first layer (DeBERTa-v2)."""
    last_layer: str = "once"
    """How the last layer runs: `once`, or as DeBERTa's enhanced `mask-decoder`: twice on the output of the layer before
    it, with queries that start from that output plus a position table. Used in pre-training only: a text is encoded
    with `once`."""
    share: tuple[str, ...] = ()
    """Sub-layers (`attention`, `cross`, `ffn`) whose weights, norms included, are shared between layers."""
    groups: int = 1
    """Number of groups of consecutive layers; weights are shared within a group."""
    cycle: int = 1
    """Number of distinct layers in a group, which repeat in order."""

    @property
    def causal(self) -> bool:
        return visibility_of(self.visibility).causal

    @property
    def ordered(self) -> bool:
        return visibility_of(self.visibility).ordered

    def at(self, layer: int) -> Block:
        """Return the block of one layer, with one element of each tuple."""
        turns: dict[str, Any] = {
            name: words[layer % len(words)] for name in TURNS if isinstance(words := getattr(self, name), tuple)
        }
        if layer == 0 and self.reads_table:
            turns["recurrent"] = f"{self.recurrent}-first"
        return replace(self, **turns) if turns else self

    @property
    def words(self) -> tuple[str, ...]:
        """Return the distinct kinds of attention of the stack."""
        return tuple(dict.fromkeys((self.attention,) if isinstance(self.attention, str) else self.attention))

    def owner(self, layer: int, layers: int) -> int:
        """Return the index of the layer that owns the shared weights of a layer, in a stack of `layers`."""
        group = layer * self.groups // layers
        first = -(-group * layers // self.groups)
        return first + (layer - first) % self.cycle

    def owners(self, layers: int) -> list[int]:
        """Return the sorted indices of the layers that own shared weights."""
        return sorted({self.owner(layer, layers) for layer in range(layers)})

    def attention_rate(self, dropout: float) -> float:
        """Return the dropout rate of attention weights in a model with rate `dropout`."""
        return self.attention_dropout * dropout if isinstance(self.attention_dropout, bool) else self.attention_dropout

    @property
    def is_recurrent(self) -> bool:
        """Whether the layers are recurrent (LSTM)."""
        return self.recurrent != "none"

    @property
    def reads_table(self) -> bool:
        """Whether the input width of the first layer is that of the token table instead of the stack's."""
        return self.recurrent in ("lstm-both-ways", "lstm-attentive")

    @property
    def reversible(self) -> bool:
        """Whether the residual connection is reversible, with two residual streams."""
        return self.residual == "reversible"

    @property
    def streams(self) -> int:
        """Number of residual streams: 2 for reversible layers."""
        return 2 if self.reversible else 1

    @property
    def distance_rows(self) -> int:
        """Number of rows of the distance table; 0 if there is none."""
        if "disentangled" not in self.words:
            return 0
        return 2 * (self.distances if self.distance_buckets is None else self.distance_buckets)

    @property
    def relative(self) -> bool:
        """Whether all layers use `relative` attention."""
        return self.attention == "relative"

    @property
    def score_bias(self) -> bool:
        """Whether the stack has a learned bias table for attention scores."""
        return self.position in SCORE_BIASES
