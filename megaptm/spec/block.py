"""Block: which brick goes into each slot of the layers of a stack."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from megaptm.errors import UserError

# arXiv:1910.10683, section 2.1: a learned score bias is a table of 32 distances by heads; all distances from 128 on
# share the last bucket.
BIAS_BUCKETS, BIAS_FARTHEST = 32, 128

# Slots in which layers may take words in turn.
TURNS = ("attention", "ffn", "window", "dilation", "chunk")

# Numbers of a block -> the words of `attention` that read them.
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

# Words for positions as a learned bias on the scores.
SCORE_BIASES = ("t5-bias", "t5-bias-causal")


class Visibility(NamedTuple):
    """What a word of `Block.visibility` says. Who must know asks this, never the word: a new word that nobody has
    thought of would pass for one that lets all be seen."""

    causal: bool = False
    """Whether a place sees none after it."""
    ordered: bool = False
    """Whether the batch's field `order` says whom it sees."""


VISIBILITIES = {"full": Visibility(), "causal": Visibility(causal=True), "ordered": Visibility(ordered=True)}


def visibility_of(word: str) -> Visibility:
    """A `UserError` that names the words there are, if it is none of them."""
    if word not in VISIBILITIES:
        raise UserError(f"Block.visibility is {word!r}, which is unknown; use one of {', '.join(VISIBILITIES)}.")
    return VISIBILITIES[word]


@dataclass(frozen=True, kw_only=True)
class Block:
    """One stack of layers: which brick goes into each slot of the transformer layer. No slot implies another.

    A word of `attention` or `ffn` may be a tuple of words, and `window`, `dilation` or `chunk` one of numbers: the
    layers take them in turn.
    """

    visibility: str = "full"
    """Who sees whom, always within one document: `full`, `causal`, or `ordered` (as the batch's field `order` says)."""
    attention: str | tuple[str, ...] = "dot"
    """How scores come about: `dot` (scaled dot product), `banded` (the same, of places less than `Size.band` apart),
    `disentangled` (by content and by distance, from a table that the stack shares: DeBERTa), `relative` (by content and
    by distance, from sines, and with what the layer remembers of the rows before: Transformer-XL), `window` (of places
    near each other, and those that the batch's field `global_tokens` marks, by maps of their own: Longformer), `blocks`
    (of blocks near each other, some drawn ones, the first and the last: BigBird), `local` (of a place's own chunk and
    the one before), `lsh` (the same, once places are sorted by hashes of what they ask for, which is also what they
    answer to: Reformer); or `package.module:NAME`, a pattern of the user's own
    (`bricks.custom_pattern.CustomPattern`)."""
    window: int | tuple[int, ...] = 512
    """Of `window`: places that are seen besides oneself, half to a side; where `visibility` is causal, all before."""
    dilation: int | tuple[int, ...] = 1
    """Of `window`: how many places from one that is seen to the next."""
    block: int = 64
    """Of `blocks`: places of a block."""
    random_blocks: int = 3
    """Of `blocks`: that each sees of those drawn for it, others in each layer and head."""
    blocks_seed: int = 0
    """Of `blocks`: by which they are drawn, besides layer and head; the model's, as it must see what it saw in
    training."""
    edge_blocks: bool = True
    """Of `blocks`: whether the first and the last see, and are seen by, all (BigBird's ITC); or only what the batch's
    field `global_tokens` marks is (ETC)."""
    chunk: int | tuple[int, ...] = 64
    """Of `local` and `lsh`: places of a chunk."""
    hashes: int = 1
    """Of `lsh`: how often places are hashed and sorted, each time by other rotations."""
    hash_buckets: int | tuple[int, ...] = 64
    """Of `lsh`: what a hash tells apart; several numbers: as many hashes, whose product it is."""
    distances: int = 512
    """Of `disentangled`: distances to a side that are told apart."""
    distance_buckets: int | None = None
    """Rows of the table of distances to a side, where far ones share a row; absent: one for each."""
    distance_norm: bool = False
    """Whether the table passes through a norm (DeBERTa-v2)."""
    distance_maps: str = "own"
    """What makes keys and queries of distances: maps of their `own`, or those of `tokens`."""
    relative_biases: str = "stack"
    """Of `relative`: whose are the two vectors that a head adds to queries, u and v: the `stack`'s, which all layers
    have in common (Transformer-XL), or each `layer`'s own (XLNet)."""
    relative_segments: bool = False
    """Of `relative`: whether scores also say if a key is of the query's own segment (XLNet, arXiv:1906.08237, 2.5)."""
    query_stream: bool = False
    """Whether a second stream of queries runs beside the text, one for each place that is asked about, which see what
    is before it in the rows' order and not the place itself (XLNet, arXiv:1906.08237, 2.3)."""
    remembers: str = "row"
    """Of `relative` with a memory: what later rows attend to, the whole `row` or its first `half` (XLNet, whose rows
    begin where the half of the row before ended)."""
    position: str = "none"
    """How places are known: `learned` (a table at the input), `sinusoid` (sines and cosines at the input,
    arXiv:1706.03762, 3.5), `axial` (two short tables at the input, of rows and columns of a rectangle in which places
    lie, arXiv:2001.04451, section 2), `t5-bias` or `t5-bias-causal` (a learned bias on the
    scores by distance, shared by the stack; to both sides, or back only), `rope` (queries and keys turned by an angle
    that grows with their place, arXiv:2104.09864), `none`."""
    rope_base: float = 10_000.0
    """Of `rope`: the slowest pair of features turns once in 2 pi times nearly as many places."""
    norm: str = "layer"
    """`layer` (LayerNorm), `layer-no-shift` (with a scale only), `layer-fixed` (with neither), or `rms` (root mean
    square, a scale only)."""
    norm_place: str = "pre"
    """`pre` (before each sub-layer, and once at the end), `post` (after each residual sum), or `parallel` (one before
    all sub-layers of a layer, whose outputs are summed; and once at the end)."""
    norm_eps: float = 1e-5
    residual: str = "sum"
    """What sub-layers are added to: a `sum` of all before them; or one of two sums in turn, each of which the other
    can be computed back from, so that no layer keeps anything for the backward pass (`reversible`,
    arXiv:2001.04451, section 3). What reads such a stack reads both, one after the other along the width."""
    ffn: str | tuple[str, ...] = "gelu"
    """`gelu` (exact), `gelu-tanh`, `quick-gelu` (CLIP), `relu`; gated: `geglu` (tanh-GELU gate), `swiglu`;
    or `package.module:NAME`, a function of a tensor."""
    attention_bias: bool | str = True
    """Whether attention's linear maps carry a bias; `no-keys`: those that make keys do not (DeBERTa)."""
    ffn_bias: bool = True
    """Whether the feed-forward's linear maps carry a bias."""
    scale: str = "sqrt"
    """Scores are divided by the square root of the head width (`sqrt`), of thrice it (`sqrt-3`, DeBERTa: scores are
    sums of three products), or not at all (`none`, T5)."""
    cross: str | None = None
    """The stack before it to whose output each layer also attends."""
    attention_dropout: bool | float = True
    """Whether dropout falls on what attention weighs by, too (the Transformer's does not); or a rate of its own."""
    ffn_dropout: bool = False
    """Dropout between the two maps of the feed-forward (T5)."""
    final_dropout: bool = False
    """Dropout after the last layer, and the final norm where there is one (T5, Transformer-XL)."""
    recurrent: str = "none"
    """What reads place after place, in the place of attention and feed-forward: `none`; `lstm` (one with a
    projection, which from the second layer on also adds what it reads: ELMo; `visibility` is then causal);
    `lstm-both-ways` (one of each direction, side by side: CoVe's encoder); or `lstm-attentive` (which reads, beside a
    word, what its attention made at the place before: CoVe's decoder, with `cross`)."""
    cell_clip: float = 3.0
    """Of `lstm`: cells are kept between minus and plus this."""
    projection_clip: float = 3.0
    """Of `lstm`: so is what it gives."""
    convolution: bool = False
    """A convolution of three neighbors beside the first layer (DeBERTa-v2)."""
    last_layer: str = "once"
    """How the last layer runs: `once`; or as a `mask-decoder` (DeBERTa), twice upon what the layer before gives, from
    queries that begin with that and a table of places. It serves pre-training: a text is encoded with `once`."""
    share: tuple[str, ...] = ()
    """Sub-layers, `attention`, `cross` or `ffn`, whose weights, their norm's among them, layers have in common."""
    groups: int = 1
    """Consecutive groups of layers, each of which shares within itself."""
    cycle: int = 1
    """Layers of a group that differ, in turn."""

    @property
    def causal(self) -> bool:
        return visibility_of(self.visibility).causal

    @property
    def ordered(self) -> bool:
        return visibility_of(self.visibility).ordered

    def at(self, layer: int) -> Block:
        """The block of one layer: where a slot has several words, it has one of them."""
        turns: dict[str, Any] = {
            name: words[layer % len(words)] for name in TURNS if isinstance(words := getattr(self, name), tuple)
        }
        if layer == 0 and self.reads_table:
            turns["recurrent"] = f"{self.recurrent}-first"
        return replace(self, **turns) if turns else self

    @property
    def words(self) -> tuple[str, ...]:
        """Of `attention`, each once."""
        return tuple(dict.fromkeys((self.attention,) if isinstance(self.attention, str) else self.attention))

    def owner(self, layer: int, layers: int) -> int:
        """The first layer of a stack of `layers` that has the weights which this one shares."""
        group = layer * self.groups // layers
        first = -(-group * layers // self.groups)
        return first + (layer - first) % self.cycle

    def owners(self, layers: int) -> list[int]:
        """The layers of a stack that have what others share."""
        return sorted({self.owner(layer, layers) for layer in range(layers)})

    def attention_rate(self, dropout: float) -> float:
        """Of the dropout on what attention weighs by, in a model with so much of it."""
        return self.attention_dropout * dropout if isinstance(self.attention_dropout, bool) else self.attention_dropout

    @property
    def is_recurrent(self) -> bool:
        """Whether a place knows those before it by a state that is handed on."""
        return self.recurrent != "none"

    @property
    def reads_table(self) -> bool:
        """Whether the first layer is as wide at its input as the token table, whatever the stream's width."""
        return self.recurrent in ("lstm-both-ways", "lstm-attentive")

    @property
    def reversible(self) -> bool:
        """Whether layers are computed back from what they give, and so run on two streams."""
        return self.residual == "reversible"

    @property
    def streams(self) -> int:
        """Residual streams side by side: two of reversible layers."""
        return 2 if self.reversible else 1

    @property
    def distance_rows(self) -> int:
        """Of the table of distances; 0 without one."""
        if "disentangled" not in self.words:
            return 0
        return 2 * (self.distances if self.distance_buckets is None else self.distance_buckets)

    @property
    def relative(self) -> bool:
        """Whether attention is `relative`, of all layers alike."""
        return self.attention == "relative"

    @property
    def score_bias(self) -> bool:
        """Whether the stack has a table of biases on the scores."""
        return self.position in SCORE_BIASES
