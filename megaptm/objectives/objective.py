"""Interface of objectives: how the document stream is cut, what a sample holds, and how a sample is made.

Letters: S tokens of a sequence, K target positions.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from numbers import Real
from typing import Annotated, Any, ClassVar, Literal, Self

import numpy as np
from pydantic import Field

from megaptm.batch import IGNORED, BatchSpec
from megaptm.errors import UserError
from megaptm.objectives.vocabulary import SpecialTokens
from megaptm.plugins import is_builtin, is_plugin, plugin_error

Sample = dict[str, np.ndarray]

Rate = Annotated[float, Field(gt=0, le=0.99)]
"""Option of an objective: share of tokens to mask. Near a share of 1 a sequence would need unlimited text."""
Share = Annotated[float, Field(ge=0, le=1)]
Weight = Annotated[float, Field(ge=0, le=1e6)]
"""Option of an objective: relative frequency; bounded, so that sums are finite."""
MeanLength = Annotated[float, Field(ge=1, le=1e6)]
"""Option of an objective: mean span length in tokens."""
SequenceLength = Annotated[int, Field(ge=4, le=10**7)]
"""Option of an objective: sequence length in tokens."""

Prompt = Literal["text", "masks", "sentinels"]
"""Kind of prompt that a trained model accepts: plain text; text with mask tokens that it fills in; or text with
sentinels, numbered from 0, whose content it generates."""


@dataclass(frozen=True)
class SequenceWindow:
    """Window by which sequences are cut from the concatenated documents of an epoch. `slots` positions for special
    tokens follow each document.

    Counting slots in the stream lets every token be used exactly once, although sequences also hold special tokens.
    """

    stride: int
    """Distance between the starts of consecutive sequences in the stream, in tokens and slots."""
    lookahead: int = 0
    """Number of tokens and slots of the next sequence that this sequence also reads (causal-lm: 1, the last label)."""
    slots: int = 0
    max_document_length: int | None = None
    """Maximum length of a document in tokens and slots, for sequences of complete documents (unit `document`)."""


DAMAGED_FILE_REMEDY = "copy that shard again, or build the corpus again"
"""Remedy in the error about a damaged file of a document."""


@dataclass(frozen=True)
class DocumentSlice:
    """Part of a document in one sequence: raw tokens, and how many of the document's slots are in the sequence."""

    tokens: np.ndarray
    slots: int
    annotations: Mapping[str, np.ndarray] = field(default_factory=dict)
    """Annotations requested by the objective; positions are relative to the first token.

    - `words`, `sentences`, `parts`: int32 [n], first token of each that starts here. `capitals`: int32 [n], tokens.
    - `phrases`: int32 [n, 2] (start, stop). `tags`: int32 [n, 3] (start, stop, label). Only spans that are complete
      here.
    - `turns`: int32 [n, 2] (first token, role). The first row is the turn that continues from before.
    """
    starts_lane: bool = False
    """Whether the sequence continues no other (unit `lane`)."""
    backward: bool = False
    """Whether the sequence is read backward. Tokens here are in text order."""
    other_segment: bool = False
    """Whether this is the second segment, from another part of the corpus."""
    blobs: Mapping[str, bytes] = field(default_factory=dict)
    """Contents of the files that belong to the document, by suffix, for suffixes that the objective requests (unit
    `document`)."""
    location: str = ""
    """Shard and document index of the files that belong to the document, for error messages."""
    retrieved: str = ""
    """Kind of neighbor, if the document was retrieved and added to the sample; otherwise empty."""


@dataclass(frozen=True)
class Neighbors:
    """Retrieved documents that are added to a sample."""

    reader: str
    """Class that reads `file`, as `package.module:NAME`. It implements `data.stream_order.NeighborReader`; example:
    `families/uniter/retrieved.py`."""
    file: str
    """File of the retrieved neighbors."""
    max_numbers: Mapping[str, int]
    """Maximum number of retrieved documents by kind of neighbor."""


@dataclass(frozen=True)
class SentenceGroup:
    """Consecutive sentences of a document, and a function that samples another document's sentences."""

    sentences: list[np.ndarray]
    """Tokens [n], or tokens with marks as `mark_tokens` returns them."""
    sample_other_document: Callable[[np.random.Generator], Iterable[np.ndarray]]
    """Return the sentences of a random other document, from a random one to its last."""
    label: int = IGNORED
    """Label of the document, if the objective requests `labels`."""
    rest_of_document: Callable[[], list[np.ndarray]] = list
    """Function that returns the tokens of the document before and after the sentences."""


INSIDE = 2
"""Mark of a token that continues a phrase or a tagged span."""


def mark_tokens(tokens: np.ndarray, annotations: Mapping[str, np.ndarray]) -> np.ndarray:
    """Mark the annotations of a text: return tokens [n], or, with annotations, int64 [n, 1 + k]: tokens and one column
    of marks per annotation.

    A mark is 1 at the first token of an item and at the first token after a span, and `INSIDE` inside a span. For
    `turns` it is the role.
    """
    if not annotations:
        return tokens
    marked = np.zeros((len(tokens), 1 + len(annotations)), dtype=np.int64)
    marked[:, 0] = tokens
    for column, (name, items) in enumerate(annotations.items(), 1):
        if items.ndim == 1:
            marked[items, column] = 1
            continue
        if name == "turns":
            for first, role in items:
                marked[first:, column] = role
            continue
        first, stop = items[:, 0], items[:, 1]
        marked[first, column] = marked[stop[stop < len(tokens)], column] = 1
        change = np.zeros(len(tokens) + 1, dtype=np.int64)
        np.add.at(change, first + 1, 1)
        np.add.at(change, stop, -1)
        marked[np.cumsum(change[:-1]) > 0, column] = INSIDE
    return marked


def unit_starts(marked: np.ndarray) -> np.ndarray:
    """Return the starts of units (words or spans) in a text with marks: int64 [n], 1 at the first token of each unit. A
    truncated unit counts as a unit."""
    starts = marked[:, 1].copy()
    for marks in marked[:, 2:].T:
        starts[marks == 1] = 1
        starts[marks == INSIDE] = 0
    starts[:1] = 1
    return starts


Piece = list[DocumentSlice] | SentenceGroup


@dataclass(frozen=True)
class SampleContext:
    """Inputs of making a sample, besides its text."""

    special: SpecialTokens
    rng: np.random.Generator
    """Random generator of the sample. Absent if the objective does not sample (`SampleObjective.uses_rng`)."""
    sequence: int
    """Sequence length of the sample."""
    document_mask: bool
    """Whether attention in the sample is restricted to documents."""


class BaseObjective(ABC):
    """Base class of objectives: a single task (`Objective`), several tasks (`composed.Composed`), or co-occurrence
    counts without text (unit `pairs`). Uses numpy only and has no state.

    An objective with options is a frozen dataclass; its fields are the options of a config.
    """

    __pydantic_config__: ClassVar[Any] = {"extra": "forbid"}

    name: ClassVar[str]
    losses: ClassVar[Mapping[str, float]]
    """Losses of the objective: name -> weight. Losses have the names of heads: `lm`, `mlm`, `next-sentence` ..."""
    unit: Literal["stream", "lane", "document", "sentences", "turns", "parts", "pairs"] = "stream"
    """Unit of a sample:

    - `stream`: list of `DocumentSlice`, cut from the stream.
    - `lane`: as `stream`; each sequence continues the same sequence of the previous batch.
    - `document`: list of `DocumentSlice`, complete documents.
    - `sentences`, `turns`, `parts`: one `SentenceGroup`, of sentences of prose, turns of a dialogue, or parts of a
      document.
    - `pairs`: no text; co-occurrences are counted before the first step.
    """
    num_segments: int = 1
    """Number of segment ids that the objective uses; the family must have as many."""
    needs_own_batches: ClassVar[bool] = False
    """Whether the task needs batches of its own. Composed tasks then alternate by batch, according to their shares."""
    resets_positions: bool = False
    """Whether position ids restart in the second text of a pair. Relative positions cannot represent this."""
    predicts_every_token: ClassVar[bool] = False
    """Whether every token is a label, so that the loss is a measure of compression."""
    required_tokens: tuple[str, ...] = ()
    """Names of `SpecialTokens` fields that must be present."""
    template: ClassVar[tuple[str, str]] = ("A", "A B")
    """Templates of one text and of a pair in training: A and B among `SpecialTokens` fields, with segment ids if not
    0."""
    prompts: tuple[Prompt, ...] = ("text",)
    """Kinds of prompts that a trained model accepts. Empty: it only computes embeddings."""
    decoder_start: ClassVar[tuple[str, ...]] = ("pad",)
    """First tokens of the decoder: fields of `SpecialTokens`."""
    annotations: tuple[str, ...] = ()
    """Annotations that slices must have: `words`, `sentences`, `capitals`, `phrases`, `tags`, `turns`, `parts`,
    `labels`. Sentences of pairs have them as `mark_tokens` returns. The corpus must have them."""
    blob_corpus: ClassVar[tuple[str, str]] = ("files", "megaptm corpus build")
    """Content of the files that the objective reads (`blobs`), and the command that builds a corpus of them, for
    messages."""
    blobs: ClassVar[tuple[str, ...]] = ()
    """Suffixes of files that slices provide: `jpg`, `png` (unit `document`)."""

    @property
    def is_supervised(self) -> bool:
        """Whether labels of the objective come from people: translations, answers, classes. All other objectives are
        self-supervised."""
        return not {"parts", "labels"}.isdisjoint(self.annotations)

    def for_validation(self) -> Self:
        """Return the objective for validation, without data augmentation such as random crops."""
        return self

    def weights(self, step: int) -> Mapping[str, float]:
        """Return the objective's weights of losses at a step (0, 1 ...): loss name -> weight."""
        return self.losses

    def add_special_tokens(self, ids: list[int], special: SpecialTokens) -> list[int]:
        """Return a text with the special tokens of its `template`. Raises `UserError` if the vocabulary lacks one."""
        words = (word.partition(":")[0] for word in self.template[0].split())
        return [id_ for word in words for id_ in (ids if word == "A" else special.ids_of((word,)))]

    def task_for_prompt(self, kind: Prompt) -> BaseObjective:
        """Return the task whose special tokens surround a kind of prompt; of several tasks the first that accepts
        it."""
        return self

    def text_fields(self, length: int) -> Sample:
        """Return the batch fields of a text of `length` tokens besides its tokens, if not zero: int64 [length]
        `segments`, `order`, `global_tokens`, and int64 [] `task_ids`."""
        return {}

    @abstractmethod
    def raw_length(self, sequence: int) -> int:
        """Return the number of raw tokens that fill a sequence of `sequence` tokens."""

    @abstractmethod
    def batch_spec(self, sequence: int, document_mask: bool) -> BatchSpec:
        """Return the fields of every sample of the objective."""

    def missing_tokens(self, special: SpecialTokens) -> list[str]:
        """Return the `required_tokens` of the objective that a vocabulary lacks."""
        return [role for role in self.required_tokens if getattr(special, role) is None]

    def check(self, special: SpecialTokens, sequence: int) -> None:
        """Check the objective: raise `UserError` if the vocabulary or the sequence length does not suit it."""
        kind = (
            "wordpiece"
            if "mask" in self.required_tokens
            else "unigram"
            if "pad" in self.required_tokens
            else "byte-bpe"
        )
        remedy = f"tokenizer.kind={kind}"
        if {"pad", "begin"} <= {*self.required_tokens}:
            remedy = "tokenizer.specials=roberta"
        elif "mask" in self.required_tokens:
            remedy += ", or with tokenizer.specials=roberta"
        refuse_missing_tokens(self, special, remedy=remedy)
        if not len(special.ordinary_ids):
            raise UserError("the tokenizer has only special tokens: build the corpus with another tokenizer.")
        if (raw := self.raw_length(sequence)) < 3:
            raise UserError(f"data.sequence ({sequence}) leaves room for {raw} tokens of text: raise it.")


GROUP_UNITS = ("sentences", "turns", "parts")
"""Units of a sample that is one `SentenceGroup`."""


class SampleObjective(BaseObjective):
    """Objective that makes samples from pieces of text: sentence groups (units of `GROUP_UNITS`), or an `Objective`."""

    uses_rng: bool = True
    """Whether `make_sample` uses the random generator. Creating one takes a sixth of the time of a causal sample."""
    num_labels: int = 0
    """Number of classes, if labels are the `labels` of a corpus."""

    @abstractmethod
    def make_sample(self, piece: Piece, context: SampleContext) -> Sample:
        """Make a sample of the objective with noise, as `batch_spec` describes it. All randomness comes from
        `context.rng`."""

    def for_corpus(self, annotations: Collection[str]) -> SampleObjective:
        """Return the objective for a corpus with these annotations: itself, unless overridden."""
        return self

    def check_corpus(self, corpus: str, stored: Collection[str], *, has_labels: bool) -> None:
        """Raise `UserError` if a corpus lacks what the objective's samples are made of. `stored`: its fields and
        suffixes of files. `has_labels`: whether a document is a label instead of a text."""
        if self.blobs and not {*self.blobs} & {*stored}:
            content, command = self.blob_corpus
            raise UserError(
                f"{corpus} has no {content}, which objective {self.name} reads: build a corpus with `{command}`."
            )
        if not self.blobs and has_labels:
            raise UserError(
                f"{corpus} has labels instead of texts, but objective {self.name} reads text: build a corpus of text "
                "with `megaptm corpus build`, or train a family that reads what the labels describe."
            )

    def fits(self, document: DocumentSlice, sequence: int) -> bool:
        """Whether a complete document fits into a sequence (unit `document`). Others are skipped."""
        return True


class Objective(SampleObjective):
    """Objective whose pieces are cut from concatenated documents (units `stream`, `lane` and `document`)."""

    direction: Literal["forward", "alternating", "both"] = "forward"
    """Reading direction (unit `lane`): `alternating` reads every second sequence of a batch backward; `both` reads
    every sequence in both directions: the piece of a sequence has forward slices, followed by `backward` slices."""
    random_segment_prob: float = 0.0
    """Probability that a sequence has a second segment from another part of the corpus (unit `lane`), or another
    document (unit `document` with one document per sequence)."""
    neighbors: Neighbors | None = None
    """Retrieved neighbors that follow a document (unit `document` with one document per sequence)."""

    @abstractmethod
    def sequence_window(self, sequence: int, document_mask: bool) -> SequenceWindow:
        """Return how the stream is cut into sequences (`stream`), or into stretches whose documents a sequence takes
        (`document`)."""


def refuse_missing_tokens(objective: BaseObjective, special: SpecialTokens, *, remedy: str) -> None:
    """Raise `UserError` if the vocabulary lacks special tokens. `remedy`: build options of a corpus that has them."""
    if missing := objective.missing_tokens(special):
        raise UserError(
            f"objective {objective.name} needs a tokenizer with a `{missing[0]}` token: build the corpus with "
            f"{remedy}, or use another objective."
        )


def refuse_document_mask(objective: BaseObjective, document_mask: bool) -> None:
    """Raise `UserError` if a document mask would hide the recurrence cache (unit `lane`)."""
    if document_mask:
        raise UserError(
            f"objective {objective.name} continues sequences across documents, but data.document_mask hides other "
            "documents: set data.document_mask=false."
        )


def loss_weights_at(objective: BaseObjective, step: int) -> dict[str, float]:
    """Return the weights of an objective's losses at a step: loss -> weight. Raises `UserError` if a custom objective
    does not give each loss a finite number."""
    source = f"objective {objective.name}: weights({step})"
    try:
        result: object = objective.weights(step)
    except Exception as error:
        if is_builtin(type(error)) or not has_plugin(objective):
            raise
        raise plugin_error(source, error) from error
    if not isinstance(result, Mapping):
        raise UserError(f"{source} is {result!r}: it must be a mapping from losses to numbers.")
    for loss in objective.losses:
        if loss not in result:
            raise UserError(
                f"{source} has no {loss}: it must have a weight for each loss ({', '.join(objective.losses)})."
            )
        if not (isinstance(result[loss], Real) and math.isfinite(result[loss])):
            raise UserError(f"{source}: the weight of {loss} is {result[loss]!r}; it must be a finite number.")
    if unknown := [loss for loss in result if loss not in objective.losses]:
        raise UserError(f"{source} has {unknown[0]}, which is not one of its losses ({', '.join(objective.losses)}).")
    return {loss: float(result[loss]) for loss in objective.losses}


def has_plugin(objective: BaseObjective) -> bool:
    """Whether the samples of an objective are made by user code: the class, or an option that names a function."""
    return not is_builtin(type(objective)) or any(
        has_plugin(value) if isinstance(value, BaseObjective) else isinstance(value, str) and is_plugin(value)
        for value in vars(objective).values()
    )


def documents_and_positions(lengths: list[int], size: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the document ids and positions of packed documents, each int64 [size]: ids from 1 (0 is padding), and
    positions within the document."""
    documents = np.zeros(size, dtype=np.int64)
    positions = np.zeros(size, dtype=np.int64)
    at = 0
    # A sequence has few documents: slices take a third of the time of `repeat` and `cumsum`.
    for document_id, length in enumerate(lengths, 1):
        documents[at : at + length] = document_id
        positions[at : at + length] = np.arange(length)
        at += length
    return documents, positions


def pad_pieces(pieces: list[np.ndarray], size: int, fill: int) -> np.ndarray:
    """Return pieces of text concatenated and padded with `fill`, int64 [size]."""
    padded = np.full(size, fill, dtype=np.int64)
    at = 0
    for piece in pieces:
        padded[at : at + len(piece)] = piece
        at += len(piece)
    return padded
