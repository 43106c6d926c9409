"""The section `model`: which model, and what differs from the published one."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field, Strict, field_validator

from megaptm.config.sections.base import Count, Counts, Fraction, Section
from megaptm.spec import MOST_OF_PIXELS

Mean = Annotated[float, Field(ge=-MOST_OF_PIXELS, le=MOST_OF_PIXELS)]
Spread = Annotated[float, Field(ge=1 / MOST_OF_PIXELS, le=MOST_OF_PIXELS)]


class Shape(Section):
    """Numbers of a stack of layers."""

    # Each is walked over: of so many a plan takes a second.
    layers: Annotated[int, Field(ge=1, le=1 << 16)] | None = None
    """Layers of each stack; absent: the size's."""
    width: Count | None = None
    """Width of the residual stream; absent: the size's."""
    heads: Count | None = None
    """Attention heads; absent: the size's."""
    ffn: Count | None = None
    """Inner width of the feed-forward, or features of a recurrent layer's cell; absent: the size's."""
    head_width: Count | None = None
    """Width of one head; absent: the size's, or width / heads."""
    kv_heads: Count | None = None
    """Heads of keys and values, each for as many of heads; absent: the size's, or heads."""
    band: Count | None = None
    """Places that one sees to a side where the family's attention is banded; absent: the size's, or 256."""
    memory: Annotated[int, Field(ge=0, le=1 << 24)] | None = None
    """Places before a row that each layer remembers from earlier steps, where the family's attention is relative; of
    recurrent ones 1, their state, or 0; absent: the size's, or none."""
    context: Count | None = None
    """Longest sequence with a learned position, where it is not that of other stacks; absent: the size's."""


class ModelConfig(Shape):
    """Which model: a family, a size of it, and what differs from the published one."""

    family: str
    """Name in the catalogue (`megaptm families`), or a `Family` of your own: package.module:NAME."""
    size: str
    """Row of the family's table of sizes, or `custom` with layers, width, heads and ffn given."""
    vocabulary: Count | None = None
    """Number of token ids, that of the corpus's tokenizer or more; absent: that of the corpus, or, where there is none
    yet, the published one."""
    context: Count | None = None
    """Longest sequence with a learned position; absent: the published one, of the size where sizes differ in it."""
    dropout: Fraction | None = None
    """Dropout rate everywhere in the model; absent: the published one."""
    z_loss: Annotated[float, Field(ge=0.0)] | None = None
    """How much of the squared logarithm of the softmax's normalizer the loss of a token has besides; absent: the
    published one."""
    label_smoothing: Fraction | None = None
    """Share of the probability that is asked of all tokens alike, in training; absent: the published one."""
    init_std: Annotated[float, Field(gt=0.0, le=1.0)] | None = None
    """Standard deviation of the normal numbers that weights begin with, where the family says one for all; absent: the
    published one, 0.02. Narrow models learn sooner by about the root of one over their width."""
    tasks: Count | None = None
    """Ids of tasks, which a family with a table of them tells from each other; absent: the published number."""
    buckets: Annotated[int, Field(ge=1, le=10**9)] | None = None
    """Of fastText: rows that pieces of words share by a hash; absent: the size's."""
    ngrams: Annotated[tuple[Count, Count], Strict(False)] | None = None
    """Of fastText: characters of the shortest and of the longest piece of a word; absent: the size's."""
    hidden: Annotated[int, Field(ge=0)] | None = None
    """Of NNLM and C&W: units between the vectors of a window and what is said of it; absent: the size's."""
    before: Count | None = None
    """Of NNLM and C&W: words of a window before the one that it is asked about; absent: the size's."""
    after: Annotated[int, Field(ge=0)] | None = None
    """Of C&W: words of a window after that one; absent: the size's."""
    direct: bool | None = None
    """Of NNLM: whether vectors are also mapped to the next word directly, past the hidden units; absent: the size's."""
    embedding: Count | None = None
    """Width of the token table, where it is not the stream's; absent: the size's."""
    patch: Annotated[int, Field(ge=1, le=1 << 12)] | None = None
    """Where images are read: pixels of a side of a patch; absent: the size's. model.context is one more than
    their number."""
    detector: Annotated[tuple[Count, Count], Strict(False)] | None = None
    """Where regions of images are read: numbers of a region's features, and classes of what found it, the background
    among them; absent: the size's."""
    pixel_mean: Annotated[tuple[Mean, Mean, Mean], Strict(False)] | None = None
    """Where images are read: what is subtracted of red, green and blue, from 0 to 1; absent: the family's. ImageNet's,
    which many models have: [0.485, 0.456, 0.406]."""
    pixel_std: Annotated[tuple[Spread, Spread, Spread], Strict(False)] | None = None
    """What they are divided by then; absent: the family's. ImageNet's: [0.229, 0.224, 0.225]."""
    vectors: str | None = None
    """Text file of word vectors, a line each (GloVe's and word2vec's text formats): words of the vocabulary that it has
    begin with these; absent: all begin as the others do."""
    cutoffs: Annotated[tuple[Count, ...], Strict(False)] | None = None
    """Ids from which on words, most frequent first, are in the next cluster of an adaptive input and softmax, or [];
    absent: the size's."""
    division: Count | None = None
    """What the width of each next cluster's table is divided by; absent: the size's."""
    filters: Annotated[tuple[Annotated[tuple[Count, Count], Strict(False)], ...], Strict(False)] | None = None
    """Where words are read by their characters: [characters, filters] of each convolution; absent: the size's."""
    highway: Annotated[int, Field(ge=0, le=1 << 10)] | None = None
    """Highway layers behind these filters; absent: the size's."""
    character_width: Count | None = None
    """Numbers of a character's vector; absent: the size's."""
    negatives: Annotated[int, Field(ge=0, le=1 << 24)] | None = None
    """Words that stand for all others in the softmax of training, drawn by rank in each step (ELMo: 8,192), or 0: all
    are compared; absent: the published number."""
    stacks: dict[str, Shape] = {}
    """Stack (encoder, decoder) -> what of its numbers is not as above."""
    share: Annotated[tuple[Literal["attention", "cross", "ffn"], ...], Strict(False)] | None = None
    """Sub-layers whose weights layers have in common: any of attention, cross, ffn, or []; absent: the family's."""
    groups: Count | None = None
    """Consecutive groups of layers, each of which shares within itself; absent: the family's."""
    cycle: Count | None = None
    """Layers of a group that differ, in turn; absent: the family's."""
    attention_dropout: bool | Fraction | None = None
    """Whether dropout falls on what attention weighs by, too, or a rate of its own; absent: the family's."""
    window: Counts | None = None
    """Places that one sees besides itself where the family's attention is a window, half to each side; or a list, which
    layers take in turn; absent: the family's."""
    dilation: Counts | None = None
    """Places from one that is seen to the next, where attention is a window; or a list; absent: the family's."""
    block: Count | None = None
    """Places of a block where the family's attention is of blocks; absent: the family's."""
    random_blocks: Annotated[int, Field(ge=0, le=1 << 10)] | None = None
    """Blocks that are drawn for each, to be seen besides its neighbors; absent: the family's."""
    blocks_seed: Annotated[int, Field(ge=0, lt=1 << 63)] | None = None
    """By which they are drawn, besides layer and head; absent: the family's."""
    edge_blocks: bool | None = None
    """Whether the first and the last block see, and are seen by, all; false: only what an objective marks is
    (`global_tokens`); absent: the family's."""
    chunk: Counts | None = None
    """Places of a chunk where the family's attention is local or lsh; or a list, which layers take in turn; absent: the
    family's."""
    hashes: Annotated[int, Field(ge=1, le=1 << 10)] | None = None
    """How often places are hashed, where the family's attention is lsh; absent: the family's."""
    hash_buckets: Counts | None = None
    """What a hash tells apart, where the family's attention is lsh, even; or a list of such, whose product it is;
    absent: the family's."""
    axial: Annotated[tuple[Count, Count], Strict(False)] | None = None
    """Rows and columns of the rectangle in which places lie, where the family's positions are axial; absent: the
    size's, or of another context nearly a square."""

    @field_validator("size", mode="before")
    @classmethod
    def _size_is_a_name(cls, said: Any) -> Any:
        """YAML reads `175` as a number: that it is no size is told by who knows the sizes."""
        return str(said) if isinstance(said, int | float) and not isinstance(said, bool) else said
