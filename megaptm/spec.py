"""The nouns a family is written in: Block, Size, Family. Plain data, no torch.

A family is the table of its paper. The code that builds a model reads these fields and nothing else, so a field that no
brick understands is an error when the model is built (`layers.layer`), never ignored.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from math import isqrt
from typing import Any, NamedTuple, TypeVar

from megaptm.errors import UserError

# Tables are padded to a multiple of this, whatever the layout, so that a checkpoint has the same shapes on any number
# of ranks. The rows above the vocabulary are zero, can never be asked for, and are left out of counts and exports.
VOCABULARY_MULTIPLE = 128

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
    "chunk": ("local", "lsh"),
    "hashes": ("lsh",),
    "hash_buckets": ("lsh",),
}

# Words for positions as a learned bias on the scores.
SCORE_BIASES = ("t5-bias", "t5-bias-causal")

# arXiv:2005.14165 does not say how wide GPT-3's bands are; GPT-Neo's, which were made after them, are so wide.
BAND = 256


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
    answer to: Reformer)."""
    window: int | tuple[int, ...] = 512
    """Of `window`: places that are seen besides oneself, half to a side; where `visibility` is causal, all before."""
    dilation: int | tuple[int, ...] = 1
    """Of `window`: how many places from one that is seen to the next."""
    block: int = 64
    """Of `blocks`: places of a block."""
    random_blocks: int = 3
    """Of `blocks`: that each sees of those drawn for it, others in each layer and head."""
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
    """`gelu` (exact), `gelu-tanh`, `relu`; gated: `geglu` (tanh-GELU gate), `swiglu`; or `package.module:NAME`, a
    function of a tensor."""
    attention_bias: bool | str = True
    """Whether attention's linear maps carry a bias; `no-keys`: those that make keys do not (DeBERTa)."""
    ffn_bias: bool = True
    """Whether the feed-forward's linear maps carry a bias."""
    scale: str = "sqrt"
    """Scores are divided by the square root of the head width (`sqrt`), of thrice it (`sqrt-3`, DeBERTa: scores are
    sums of three products), or not at all (`none`, T5)."""
    cross: str | None = None
    """The stack before it to whose output each layer also attends."""
    attention_dropout: bool = True
    """Whether dropout falls on what attention weighs by, too (the Transformer's does not)."""
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


@dataclass(frozen=True, kw_only=True)
class Size:
    """One row of a paper's table of sizes."""

    layers: int
    """Layers of the stack; of each stack where there are several."""
    width: int
    heads: int
    ffn: int
    """Features inside the feed-forward; of a recurrent layer, of its cell."""
    head_width: int | None = None
    """Absent: width / heads. T5-3B and 11B, and GPT-3 13B as printed, differ."""
    kv_heads: int | None = None
    """Heads of keys and values, each of which serves as many heads of queries (PaLM: 1). Absent: heads."""
    band: int | None = None
    """Places that one sees to a side where attention is `banded`, itself included. Absent: 256."""
    memory: int | None = None
    """Places before a row that each layer attends to where attention is `relative`: what the layer below said of them
    in earlier steps. Of recurrent layers 1, the state behind the row before, or none. Absent: none."""
    embedding: int | None = None
    """Width of the token table, at the input and where heads project on it (ALBERT, ELECTRA). Absent: width."""

    axial: tuple[int, int] | None = None
    """Rows and columns of the rectangle in which places lie where positions are `axial`; absent: the one nearest to a
    square that has as many as the model's context."""

    patch: int | None = None
    """Where images are read: pixels of a side of a patch."""
    context: int | None = None
    """Longest sequence with a learned position, where sizes of a family differ in it. Absent: the family's."""

    cutoffs: tuple[int, ...] = ()
    """Ids, most frequent first, from which on words are in the next cluster of an adaptive input and softmax; none: all
    are in one table (arXiv:1809.10853)."""
    division: int = 1
    """What the width of each next cluster's table is divided by."""

    filters: tuple[tuple[int, int], ...] = ()
    """Where words are read by their characters: (characters, filters) of each convolution over them."""
    highway: int = 0
    """Highway layers behind these."""
    character_width: int = 16
    """Numbers of a character's vector."""

    stacks: dict[str, Size] = field(default_factory=dict, hash=False)
    """Stack -> its own size, of stacks that are not as deep or wide as the others."""

    @property
    def table_width(self) -> int:
        """Width of the token table."""
        return self.width if self.embedding is None else self.embedding

    @property
    def key_heads(self) -> int:
        """Heads of keys and values of self-attention."""
        return self.heads if self.kv_heads is None else self.kv_heads

    @property
    def band_width(self) -> int:
        """Of `banded` attention."""
        return BAND if self.band is None else self.band

    @property
    def remembered(self) -> int:
        """Places before a row that each layer attends to."""
        return self.memory or 0

    @property
    def key_width(self) -> int:
        """Width of one head's query, key and value."""
        return self.width // self.heads if self.head_width is None else self.head_width


@dataclass(frozen=True, kw_only=True)
class Family:
    """A paper's model family: shared shape, sizes, pre-training objective."""

    name: str
    paper: str
    vocabulary: int
    """Published vocabulary size; a config may set another for its own tokenizer."""
    tokenizer: str
    """Kind of tokenizer, one of `tokenizers.KINDS`: `byte-bpe`, `wordpiece`, `unigram` ..."""
    specials: str | None = None
    """Its special tokens, one of `tokenizers.SPECIALS`; None: those that its kind of tokenizer has by default."""
    context: int
    """Longest sequence with a learned position; for relative positions, the published training length."""
    inputs: tuple[str, ...] = ("token",)
    """What is summed at the input, besides learned positions: `token`, `segment`, `task`; or, in the place of a table
    of tokens, `characters`, of which each word is made (ELMo), or `patch`, of an image, through one map (ViT)."""
    pixel_mean: tuple[float, float, float] = (0.5, 0.5, 0.5)
    """Of red, green and blue from 0 to 1: what is subtracted where images are read."""
    pixel_std: tuple[float, float, float] = (0.5, 0.5, 0.5)
    """What they are divided by then."""
    embedding_scale: str = "none"
    """`none`, or `sqrt-width`: what the token table gives is multiplied by the root of its width (Transformer)."""
    first_position: int = 0
    """Row of the table of positions that a text begins with (RoBERTa and BART: 2)."""
    segments: int = 0
    """Number of segment ids (BERT: 2)."""
    tasks: int = 0
    """Number of ids of tasks, one of which a row is of (ERNIE 2.0: 4)."""
    embedding_norm: bool = False
    """A norm right after the sum of the inputs, one for each stack (BERT, BART)."""
    stacks: dict[str, Block] = field(default_factory=dict)
    """Name -> block, in the order data flows: `encoder`, `decoder` or both. The first reads the batch's plain fields,
    each other those that begin with its name: `decoder_tokens`."""
    heads: tuple[str, ...] = ("lm",)
    """What is asked of the stacks, each by its name in `bricks.heads.HEADS`; `reads` says of which stack or layer."""
    reads: Mapping[str, str | tuple[str, ...]] = field(default_factory=dict)
    """Head -> the stack that it reads, or several; absent: the last. `decoder.3` is what the stack's layer 3 gives,
    before any closing norm."""
    drawn: Mapping[str, str] = field(default_factory=dict)
    """Stack -> the head, of a stack before it, that draws what it reads: the same text, with a token drawn from what
    the head says at each place that it is asked about (ELECTRA's discriminator). It reads the fields of that stack, by
    the tables that `drawn_tables` says."""
    drawn_tables: str = "shared"
    """Of a stack that reads what is drawn: `shared` (those of the stack that the draws come from);
    `gradient-disentangled` (a token table that is that one's, which gets no gradient from here, plus a difference of
    its own, zero at first; and a norm of its own: arXiv:2111.09543, section 3.3)."""
    tied: bool = True
    """Output projection is the token table."""
    output_bias: bool = False
    """A learned number is added to each token's logit where the next token is asked for (Transformer-XL)."""
    logit_scale: str = "none"
    """`none`, or `rsqrt-width`: hidden states are multiplied by width**-0.5 before a tied projection (T5 v1.0,
    PaLM)."""
    z_loss: float = 0.0
    """How much of the squared logarithm of the softmax's normalizer is added to the loss of each token, in training
    (PaLM, arXiv:2204.02311, section 5)."""
    negatives: int = 0
    """Words that stand for all others where the next one is asked for, in training: they are drawn by rank, anew in
    each step (sampled softmax, arXiv:1412.2007); 0: all words are compared."""
    label_smoothing: float = 0.0
    """Share of the probability that is asked of all tokens alike, in training; the rest is the right one's
    (arXiv:1706.03762, 5.4)."""
    init: str = "normal"
    """`normal`: N(0, 0.02). `gpt2`: residual outputs over sqrt(2 x layers) besides. `t5`: Mesh TensorFlow's rules.
    `fan-in`: each map by the root of its inputs, tables by 1 (PaLM). `glorot`: each map by the root of the mean of its
    inputs and outputs, tables by that of the width (the released code of the Transformer)."""
    dropout: float = 0.1
    objectives: tuple[str, ...] = ()
    """Names in `megaptm.objectives.OBJECTIVES`; the first is the default of a config."""
    sizes: dict[str, Size] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for one in fields(self):
            if str(one.type).startswith("tuple[") and isinstance(word := getattr(self, one.name), str):
                # It would be read letter by letter.
                raise UserError(f'family {self.name}: {one.name}=("{word}") is one word, no tuple: write ("{word}",).')

    @property
    def prefixes(self) -> dict[str, str]:
        """Stack -> what the names of the batch's fields that it reads begin with."""
        own = {name: f"{name}_" if place else "" for place, name in enumerate(self.stacks)}
        return {name: own[self.source(name)] if name in self.drawn else prefix for name, prefix in own.items()}

    @property
    def gradient_disentangled(self) -> tuple[str, ...]:
        """Stacks whose token table is another's plus a difference."""
        return tuple(self.drawn) if self.drawn_tables == "gradient-disentangled" else ()

    @property
    def tables(self) -> dict[str, str]:
        """Stack -> what the names of its tables at the input begin with, but the tokens'. Stacks that read the same
        fields have them in common, unless they are gradient-disentangled."""
        return {
            name: f"{name}_" if name in self.gradient_disentangled else prefix for name, prefix in self.prefixes.items()
        }

    def source(self, stack: str) -> str:
        """The stack whose head draws what this one reads."""
        read = self.reads[self.drawn[stack]]
        return Reading.parse(read if isinstance(read, str) else read[0]).stack

    def alone(self, stack: str) -> Family:
        """One stack by itself, with the heads that read it."""
        last = next(reversed(self.stacks))
        heads = tuple(head for head in self.heads if self.reads.get(head, last) == stack)
        alone = replace(self, name=f"{self.name}-{stack}", stacks={stack: self.stacks[stack]}, heads=heads)
        return replace(alone, reads={}, drawn={}, drawn_tables="shared")

    @property
    def reads_characters(self) -> bool:
        """Whether words are made of their characters, and no table has them."""
        return "characters" in self.inputs

    @property
    def reads_images(self) -> bool:
        """Whether rows are patches of an image; the vocabulary is then that of their labels."""
        return "patch" in self.inputs

    @property
    def has_tokens(self) -> bool:
        """Whether there is a table of tokens at the input."""
        return not (self.reads_characters or self.reads_images)

    @property
    def is_recurrent(self) -> bool:
        """Whether some stack is."""
        return any(block.is_recurrent for block in self.stacks.values())

    @property
    def scaffolds(self) -> frozenset[str]:
        """Stacks that serve pre-training alone, since they make what others read: papers count those others."""
        return frozenset(map(self.source, self.drawn))

    @property
    def first_block(self) -> Block:
        return next(iter(self.stacks.values()))

    @property
    def last_block(self) -> Block:
        """Of the stack that heads read unless said otherwise."""
        return next(reversed(self.stacks.values()))


class Reading(NamedTuple):
    """Where a head reads."""

    stack: str
    layer: int | None
    """Whose output it reads; None: the stack's."""

    @classmethod
    def parse(cls, word: str) -> Reading:
        """`decoder` or `decoder.3`."""
        stack, _, layer = word.partition(".")
        return cls(stack, int(layer) if layer else None)


Table = TypeVar("Table", Family, Block, Size)


def change(table: Table, **differences: Any) -> Table:
    """The same table with a few rows changed: how a family is written as a difference from its neighbour."""
    return replace(table, **differences)


@dataclass(frozen=True, kw_only=True)
class ModelSpec:
    """A family at a size with a vocabulary: everything needed to build or count one model."""

    family: Family
    size: Size
    vocabulary: int
    context: int
    dropout: float

    @property
    def padded_vocabulary(self) -> int:
        """Rows of the token table; see `VOCABULARY_MULTIPLE`."""
        return -(-self.vocabulary // VOCABULARY_MULTIPLE) * VOCABULARY_MULTIPLE

    @property
    def name(self) -> str:
        return self.family.name

    def size_of(self, stack: str) -> Size:
        return self.size.stacks.get(stack, self.size)

    @property
    def remembers(self) -> bool:
        """Whether layers attend to what they said in earlier steps, so that rows must go on from step to step."""
        return any(self.size_of(stack).remembered for stack in self.family.stacks)

    def readings(self, head: str) -> tuple[Reading, ...]:
        """What a head reads."""
        read = self.family.reads.get(head, next(reversed(self.family.stacks)))
        return tuple(map(Reading.parse, (read,) if isinstance(read, str) else read))

    @property
    def layers(self) -> int:
        """Of all stacks."""
        return sum(self.size_of(stack).layers for stack in self.family.stacks)

    @property
    def width(self) -> int:
        """Of the stream between pipeline stages: the widest stack's, to which others are filled up."""
        return max(self.size_of(stack).width for stack in self.family.stacks)

    @property
    def positions(self) -> int:
        """Rows of a table of learned positions."""
        return self.context + self.family.first_position

    def output_width(self, stack: str) -> int:
        """Of what a stack gives."""
        return self.size_of(stack).width * (2 if self.family.stacks[stack].reversible else 1)

    @property
    def axial(self) -> tuple[int, int]:
        """Rows and columns of the rectangle in which places lie."""
        if self.size.axial is not None:
            return self.size.axial
        rows = next(rows for rows in range(isqrt(self.context), 0, -1) if self.context % rows == 0)
        return rows, self.context // rows

    @property
    def axial_widths(self) -> tuple[int, int]:
        """Features that tell rows, and those that tell columns: one to three, as in the released models."""
        rows = self.size.table_width // 4
        return rows, self.size.table_width - rows

    @property
    def masks_patches(self) -> bool:
        """Whether it is asked about patches that it is not shown, and so has a vector for such."""
        return self.family.reads_images and "masked-patch" in self.family.heads

    @property
    def grid(self) -> int:
        """Patches of a side of an image: one place of the context is the image's."""
        return isqrt(self.context - 1)

    @property
    def longest(self) -> int | None:
        """Tokens of the longest row, where places are rows of a table; None where any length has places."""
        blocks = self.family.stacks.values()
        tables = any(block.position in ("learned", "axial") or block.last_layer == "mask-decoder" for block in blocks)
        return self.context if tables else None


def published(family: Family, size: str) -> ModelSpec:
    """The model exactly as published."""
    return ModelSpec(
        family=family,
        size=family.sizes[size],
        vocabulary=family.vocabulary,
        context=family.sizes[size].context or family.context,
        dropout=family.dropout,
    )
