"""The nouns a family is written in: Block, Size, Family. Plain data, no torch.

A family is the table of its paper. The code that builds a model reads these fields and nothing else, so a field that no
brick understands is an error when the model is built (`layers.layer`), never ignored.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

# Tables are padded to a multiple of this, whatever the layout, so that a checkpoint has the same shapes on any number
# of ranks. The rows above the vocabulary are zero, can never be asked for, and are left out of counts and exports.
VOCABULARY_MULTIPLE = 128

# arXiv:1910.10683, section 2.1: a learned score bias is a table of 32 distances by heads.
BIAS_BUCKETS = 32

# Feed-forward words whose first map is two, one gating the other.
GATED = ("geglu", "swiglu")


@dataclass(frozen=True, kw_only=True)
class Block:
    """One stack of layers: which brick goes into each slot of the transformer layer."""

    attention: str = "full"
    """Who sees whom: `full` or `causal`; always within one document."""
    norm: str = "pre"
    """Where the norm stands: `pre` (before each sub-layer, and once at the end) or `post` (after each residual sum)."""
    normalizer: str = "layer"
    """`layer` (LayerNorm) or `rms` (root mean square, no shift)."""
    norm_eps: float = 1e-5
    ffn: str = "gelu"
    """`gelu` (exact), `gelu-tanh`, `relu`; gated: `geglu` (tanh-GELU gate), `swiglu`."""
    bias: bool = True
    """Whether the linear maps carry a bias."""
    bias_table: str = "none"
    """A learned bias on the scores, shared by the stack: `none` or `t5-bidirectional`, `t5-causal`."""
    scale: str = "sqrt"
    """Scores are divided by the square root of the head width (`sqrt`) or not at all (`none`, T5)."""
    cross: bool = False
    """Whether each layer also attends to the encoder's output."""
    ffn_dropout: bool = False
    """Dropout between the two maps of the feed-forward (T5)."""
    final_dropout: bool = False
    """Dropout after the final norm (T5)."""

    @property
    def gated(self) -> bool:
        return self.ffn in GATED


@dataclass(frozen=True, kw_only=True)
class Size:
    """One row of a paper's table of sizes."""

    layers: int
    """Layers of the stack; of each stack where there are two."""
    width: int
    heads: int
    ffn: int
    head_width: int | None = None
    """Absent: width / heads. T5-3B and 11B, and GPT-3 13B as printed, differ."""
    recipe: dict[str, Any] = field(default_factory=dict)
    """What the paper trained this size with (batch, learning rate ...), read by configs and documents."""

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
    """Kind of tokenizer: `byte-bpe`, `wordpiece`, `unigram`."""
    context: int
    """Longest sequence with a learned position; for relative positions, the published training length."""
    inputs: tuple[str, ...] = ("token",)
    """What is summed at the input: `token`, `position` (learned), `segment`."""
    segments: int = 0
    """Number of segment ids (BERT: 2)."""
    embedding_norm: bool = False
    """A norm right after the sum of the inputs (BERT)."""
    encoder: Block | None = None
    decoder: Block | None = None
    heads: tuple[str, ...] = ("lm",)
    """What reads the last layer: `lm`, `mlm` (transform, then tied projection and a bias), `next-sentence` (pooler)."""
    tied: bool = True
    """Output projection is the token table."""
    logit_scale: str = "none"
    """`none`, or `rsqrt-width`: hidden states are multiplied by width**-0.5 before a tied projection (T5 v1.0)."""
    init: str = "normal"
    """`normal`: N(0, 0.02). `gpt2`: residual outputs over sqrt(2 x layers) besides. `t5`: Mesh TensorFlow's rules."""
    dropout: float = 0.1
    objectives: tuple[str, ...] = ()
    """Names in `megaptm.objectives.OBJECTIVES`; the first is the default of a config."""
    sizes: dict[str, Size] = field(default_factory=dict)

    @property
    def stacks(self) -> tuple[str, ...]:
        """`("encoder",)`, `("decoder",)` or both, in the order data flows."""
        return tuple(name for name in ("encoder", "decoder") if getattr(self, name) is not None)


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


def published(family: Family, size: str) -> ModelSpec:
    """The model exactly as published."""
    return ModelSpec(
        family=family,
        size=family.sizes[size],
        vocabulary=family.vocabulary,
        context=family.context,
        dropout=family.dropout,
    )
