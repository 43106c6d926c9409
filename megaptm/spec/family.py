"""Family: stacks, heads, embedding tables and recipe of a paper."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any, NamedTuple, TypeVar

from megaptm.errors import UserError
from megaptm.spec.block import Block
from megaptm.spec.inputs import InputSpec, SampledInput, SegmentInput, TokenInput
from megaptm.spec.layer import LayerSpec
from megaptm.spec.size import Size

Input = TypeVar("Input", bound=InputSpec)


@dataclass(frozen=True, kw_only=True)
class TokenizerSpec:
    """Published tokenizer of a family."""

    kind: str
    """Key of `tokenizers.KINDS`: `byte-bpe`, `wordpiece`, `unigram` ..."""
    vocabulary: int
    """Vocabulary size. A config may set another one for its tokenizer."""
    specials: str | None = None
    """Set of special tokens, a key of `tokenizers.SPECIALS`. None: the default of the kind."""


@dataclass(frozen=True, kw_only=True)
class EmbeddingSpec:
    """Embedding of a family: the sum of its inputs' embeddings."""

    scale: str = "none"
    """Factor of token embeddings: `none`, or `sqrt-width` for the square root of their width (Transformer)."""
    first_position: int = 0
    """Position id of the first token (RoBERTa, BART: 2)."""
    norm: bool | tuple[str, ...] = False
    """Whether stacks normalize the sum (BERT, BART), or the names of those that do."""

    def has_norm(self, stack: str) -> bool:
        """Whether a stack of the family normalizes the sum of embeddings."""
        return self.norm if isinstance(self.norm, bool) else stack in self.norm


@dataclass(frozen=True, kw_only=True)
class TransformSpec:
    """Linear layer, activation and norm before an output projection (BERT's head of masked tokens)."""

    bias: bool = True
    """Whether the linear layer has a bias."""
    activation: str | None = None
    """Name of the activation, which must not be gated. None: that of the last layer."""


@dataclass(frozen=True, kw_only=True)
class OutputSpec:
    """Output projection of heads that predict tokens."""

    tied: bool = True
    """Whether the projection is the token table."""
    bias: bool = False
    """Whether logits have a learned bias for each token (BERT, Transformer-XL)."""
    scale: str = "none"
    """Factor of hidden states before a tied projection: `none`, or `rsqrt-width` for width**-0.5 (T5 v1.0, PaLM)."""
    transform: TransformSpec | None = None
    """Linear layer, activation and norm before the projection (BERT), or None."""
    cap: float | None = None
    """Soft cap c of next-token logits, c tanh(logits / c) (Gemma 2). None: no cap."""


@dataclass(frozen=True, kw_only=True)
class LossSpec:
    """Training loss of tokens in a family."""

    z_loss: float = 0.0
    """Weight of the squared log-normalizer of the softmax (PaLM, arXiv:2204.02311, section 5)."""
    negatives: int = 0
    """Number of negative samples of a sampled softmax, sampled by frequency rank in each step (arXiv:1412.2007).
    0: full softmax."""
    label_smoothing: float = 0.0
    """Weight of label smoothing (arXiv:1706.03762, 5.4)."""


@dataclass(frozen=True, kw_only=True)
class InitSpec:
    """Initial weights of a family."""

    rule: str = "normal"
    """Initialization of weights, a key of `models.initial.INITIAL_RULES`:

    - `normal`: N(0, 0.02).
    - `gpt2`: as `normal`, with residual output projections divided by sqrt(2 x layers).
    - `truncated-gpt2`: the same, truncated at two standard deviations (ModernBERT).
    - `t5`: the rules of Mesh TensorFlow.
    - `fan-in`: projections divided by the square root of their inputs, tables N(0, 1) (PaLM).
    - `glorot`: projections divided by the square root of the mean of inputs and outputs, tables by the square root of
      the width (released code of the Transformer).
    - `package.module:NAME`: rules of a family, `models.initial.InitialRules`.
    """
    std: float = 0.02
    """Standard deviation used by `rule` where it is not derived from shapes. 0.02 suits a width of 768. Narrow layers
    need a larger value: their first outputs are otherwise too small beside the residual stream to learn early."""

    @property
    def uses_std(self) -> bool:
        """Whether `rule` uses `std`."""
        return self.rule in ("normal", "truncated-normal", "gpt2", "truncated-gpt2")


@dataclass(frozen=True, kw_only=True)
class Family:
    """Model family of a paper: shape, sizes and pre-training objectives."""

    name: str
    paper: str
    tokenizer: TokenizerSpec
    context: int
    """Number of learned positions; for relative positions, the published training length."""
    inputs: tuple[InputSpec, ...] = (TokenInput(),)
    """Inputs of the model, a record for each (`spec.inputs`): embeddings that are summed, except learned positions, and
    inputs whose positions follow the text."""
    embedding: EmbeddingSpec = field(default=EmbeddingSpec())
    stacks: dict[str, Block] = field(default_factory=dict)
    """Blocks of the stacks by name, in the order of the data flow: `encoder`, `decoder` or both. The first stack reads
    the batch fields without a prefix. Every other stack reads fields with its name as prefix: `decoder_tokens`."""
    heads: tuple[str, ...] = ("lm",)
    """Heads of the model, keys of `models.head_costs.HEADS`. `reads` gives the stack or layer that each reads."""
    reads: Mapping[str, str | tuple[str, ...]] = field(default_factory=dict)
    """Stack, or stacks, whose output each head reads. Default: the last stack. `decoder.3` is the output of layer 3 of
    the decoder, before the final norm."""
    sampled: Mapping[str, SampledInput] = field(default_factory=dict)
    """Record of the input of each stack that reads tokens sampled from a head of an earlier stack. The stack reads the
    batch fields of the stack that the head reads."""
    output: OutputSpec = field(default=OutputSpec())
    loss: LossSpec = field(default=LossSpec())
    init: InitSpec = field(default=InitSpec())
    dropout: float = 0.1
    objectives: tuple[str, ...] = ()
    """Keys of `megaptm.objectives.OBJECTIVES`; the first is the default of a config."""
    sizes: dict[str, Size] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for head in fields(self):
            if str(head.type).startswith("tuple[") and isinstance(word := getattr(self, head.name), str):
                # A string would be iterated by character.
                raise UserError(f'family {self.name}: {head.name}=("{word}") is one word, no tuple: write ("{word}",).')
        for record in self.inputs:
            if not isinstance(record, InputSpec):
                raise UserError(
                    f"family {self.name}: inputs has {record!r}, which is no InputSpec: use the records of "
                    "megaptm.spec.inputs."
                )
        if not self.token_inputs:
            raise UserError(f"family {self.name}: inputs must have TokenInput(), or an input that replaces tokens.")

    @property
    def prefixes(self) -> dict[str, str]:
        """Return the prefix of the batch fields that each stack of the family reads."""
        own = {name: f"{name}_" if index else "" for index, name in enumerate(self.stacks)}
        return {
            name: own[self.sampling_stack(name)] if name in self.sampled else prefix for name, prefix in own.items()
        }

    @property
    def own_tables(self) -> frozenset[str]:
        """Return the stacks of the family with a token table of their own beside the common one (`InputSpec.stack`)."""
        return frozenset(record.stack for record in self.inputs if record.stack)

    @property
    def separate_tables(self) -> frozenset[str]:
        """Return the stacks of the family that read a token table of their own, and not the common one."""
        return frozenset(record.stack for record in self.inputs if record.stack and not record.adds_tokens)

    @property
    def tables(self) -> dict[str, str]:
        """Return the prefix of the names of each stack's embedding tables, the token table excluded. Stacks that read
        the same fields share tables, unless they have their own."""
        return {name: f"{name}_" if name in self.own_tables else prefix for name, prefix in self.prefixes.items()}

    def sampling_stack(self, stack: str) -> str:
        """Return the stack of the family whose head samples the input of this stack."""
        read = self.reads[self.sampled[stack].head]
        return HeadInput.parse(read if isinstance(read, str) else read[0]).stack

    def with_only_stack(self, stack: str) -> Family:
        """Return a family of only this stack and the heads that read it."""
        last = next(reversed(self.stacks))
        heads = tuple(head for head in self.heads if self.reads.get(head, last) == stack)
        alone = replace(self, name=f"{self.name}-{stack}", stacks={stack: self.stacks[stack]}, heads=heads)
        return replace(alone, reads={}, sampled={}, inputs=tuple(record for record in self.inputs if not record.stack))

    @property
    def token_inputs(self) -> tuple[InputSpec, ...]:
        """Return the inputs of the family that embed the positions of a stack: the token table, or those that replace
        it."""
        return tuple(record for record in self.inputs if isinstance(record, TokenInput) or record.replaces_tokens)

    def token_input(self, stack: str) -> InputSpec:
        """Return the input of the family that embeds the positions of a stack: the first one for the first stack, and
        the last one for the other stacks."""
        return self.token_inputs[0 if stack == next(iter(self.stacks)) else -1]

    def reads_tokens(self, stack: str) -> bool:
        """Whether a stack of the family reads tokens."""
        return isinstance(self.token_input(stack), TokenInput)

    @property
    def has_tokens(self) -> bool:
        """Whether the family's input has a token table. Without, the vocabulary is that of the labels."""
        return any(isinstance(record, TokenInput) for record in self.inputs)

    @property
    def reads_text(self) -> bool:
        """Whether the first stack of the family reads text."""
        return self.token_inputs[0].reads_text

    def find_input(self, kind: type[Input]) -> Input | None:
        """Return the record of an input of the family, or None."""
        return next((record for record in self.inputs if isinstance(record, kind)), None)

    def for_size(self, size: Size) -> Family:
        """Return the family with the values in which this size differs."""
        return self if size.tied in (None, self.output.tied) else change(self, output={"tied": size.tied})

    def with_input(self, record: InputSpec) -> Family:
        """Return the family with this input's record instead of the one of the same class."""
        return replace(self, inputs=tuple(record if type(old) is type(record) else old for old in self.inputs))

    @property
    def segments(self) -> int:
        """Return the family's number of segment ids; 0 without a segment table."""
        record = self.find_input(SegmentInput)
        return 0 if record is None else record.rows

    def sequence_length(self, stack: str, tokens: int, num_queries: int) -> int:
        """Return the sequence length of a stack of the family: its tokens, and queries if it is the first stack and an
        input adds them."""
        return tokens + (num_queries if self.has_queries and stack == next(iter(self.stacks)) else 0)

    @property
    def has_queries(self) -> bool:
        """Whether an input of the family adds a query for each target position of the batch."""
        return any(record.adds_queries for record in self.inputs)

    @property
    def layer(self) -> LayerSpec | None:
        """Return the family's first record of layers other than those of a transformer. None: all are layers of a
        transformer."""
        return next((block.layer for block in self.stacks.values() if block.layer is not None), None)

    @property
    def sampling_only_stacks(self) -> frozenset[str]:
        """Return the stacks of the family that only sample the input of other stacks. Published parameter counts
        exclude them."""
        return frozenset(map(self.sampling_stack, self.sampled))

    @property
    def first_block(self) -> Block:
        return next(iter(self.stacks.values()))

    @property
    def last_block(self) -> Block:
        """Return the block of the family's last stack, which heads read by default."""
        return next(reversed(self.stacks.values()))


EMBEDDED = -1
"""Layer index of the input embeddings."""


class HeadInput(NamedTuple):
    """Output that a head reads."""

    stack: str
    layer: int | None
    """Index of the layer whose output the head reads. None: the output of the stack."""

    @classmethod
    def parse(cls, word: str) -> HeadInput:
        """Parse the output that a head reads: `decoder` or `decoder.3`."""
        stack, _, layer = word.partition(".")
        return cls(stack, int(layer) if layer else None)


Table = TypeVar("Table", Family, Block, Size)


def change(table: Table, **differences: Any) -> Table:
    """Return a table of a family, or a record, with a few fields changed. A family is written as a difference from its
    neighbor.

    A mapping changes fields of a nested record, or of all records of a tuple: `change(block, norm={"eps": 1e-12})`.
    """
    return replace(table, **{name: _change_record(getattr(table, name), value) for name, value in differences.items()})


def _change_record(value: Any, difference: Any) -> Any:
    if not isinstance(difference, Mapping) or isinstance(value, Mapping):
        return difference
    return (
        tuple(replace(record, **difference) for record in value)
        if isinstance(value, tuple)
        else replace(value, **difference)
    )
