"""Family: a paper's stacks, heads, tables and recipe."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any, NamedTuple, TypeVar

from megaptm.errors import UserError
from megaptm.spec.block import Block
from megaptm.spec.size import Size


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
    of tokens, `characters`, of which each word is made (ELMo), or `patch`, of an image, through one map (ViT). With
    `patch` and `token` the first stack reads images, the others texts, each by tables of its own width (CLIP). With
    `region` what a detector found in an image stands behind a text, in the same stream (UNITER)."""
    pixel_mean: tuple[float, float, float] = (0.5, 0.5, 0.5)
    """Of red, green and blue from 0 to 1: what is subtracted where images are read, unless a model has its own."""
    pixel_std: tuple[float, float, float] = (0.5, 0.5, 0.5)
    """What they are divided by then."""
    region_norms: str = "each"
    """Of regions: what passes a norm: `each` of the maps of features and of the box, and their sum (UNITER); or the
    `sum` alone (UNIMO)."""
    region_boxes: int = 7
    """Numbers of where a region lies: with width and height, or 5 without these."""
    hidden_regions: str = "vector"
    """What is shown of features that are hidden: a learned `vector`, or `zeros`."""
    patch_bias: bool = True
    """Whether the map of patches carries a bias."""
    embedding_scale: str = "none"
    """`none`, or `sqrt-width`: what the token table gives is multiplied by the root of its width (Transformer)."""
    first_position: int = 0
    """Row of the table of positions that a text begins with (RoBERTa and BART: 2)."""
    segments: int = 0
    """Number of segment ids (BERT: 2)."""
    tasks: int = 0
    """Number of ids of tasks, one of which a row is of (ERNIE 2.0: 4)."""
    embedding_norm: bool | tuple[str, ...] = False
    """A norm right after the sum of the inputs, one for each stack (BERT, BART), or for those that are named."""
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
    inputs and outputs, tables by that of the width (the released code of the Transformer). `vit`, `clip`: as in theirs.
    """
    init_std: float = 0.02
    """In the place of 0.02, where `init` says it. It suits a width of 768; what narrow layers make of their inputs is
    at first so little beside the stream that they begin to learn late."""
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
        """Whether some rows are patches of an image; without tokens beside them the vocabulary is that of labels."""
        return "patch" in self.inputs

    @property
    def reads_regions(self) -> bool:
        """Whether behind a text stand regions of an image."""
        return "region" in self.inputs

    @property
    def reads_init_std(self) -> bool:
        """Whether `init` says one standard deviation."""
        return self.init in ("normal", "truncated-normal", "gpt2")

    def reads_patches(self, stack: str) -> bool:
        """Whether the rows of a stack are patches."""
        return self.reads_images and ("token" not in self.inputs or stack == next(iter(self.stacks)))

    def places(self, stack: str, tokens: int, asked: int) -> int:
        """Places of a row of a stack: its tokens, and the queries beside them, one for each place that is asked about
        (XLNet)."""
        return tokens + (asked if self.stacks[stack].query_stream else 0)

    def has_embedding_norm(self, stack: str) -> bool:
        """Whether a norm stands right after the sum of a stack's inputs."""
        return self.embedding_norm if isinstance(self.embedding_norm, bool) else stack in self.embedding_norm

    @property
    def has_tokens(self) -> bool:
        """Whether there is a table of tokens at the input."""
        return "token" in self.inputs or not (self.reads_characters or self.reads_images)

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
    """The same table with a few rows changed: how a family is written as a difference from its neighbor."""
    return replace(table, **differences)
