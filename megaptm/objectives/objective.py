"""What an objective is: how it cuts the stream of documents, what a sample looks like, and how one is made.

Letters: S tokens of a row, K positions asked about.
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
from megaptm.plugins import is_ours, is_plugin, plugin_error

Sample = dict[str, np.ndarray]

Rate = Annotated[float, Field(gt=0, le=0.99)]
"""An option: a share that is hidden; of what is hidden nearly whole, a row would hold text without end."""
Share = Annotated[float, Field(ge=0, le=1)]
Weight = Annotated[float, Field(ge=0, le=1e6)]
"""An option: how often something comes, beside others; sums of them are numbers."""
MeanLength = Annotated[float, Field(ge=1, le=1e6)]
"""An option: of spans, in tokens."""
RowLength = Annotated[int, Field(ge=4, le=10**7)]
"""An option: places of a row."""

Prompt = Literal["text", "masks", "sentinels"]
"""What stands in a text that a model is asked about: nothing but itself; masks, which it guesses, or for which its
answer says the text; or sentinels, numbered from 0, each of which the answer says."""


@dataclass(frozen=True)
class RowWindow:
    """How rows are cut out of an epoch's documents laid end to end, each followed by `slots` places for special tokens.

    Counting the places in the stream is what lets every token be used exactly once although a row also holds the
    tokens that open and close documents.
    """

    stride: int
    """Tokens and slots from one row to the next."""
    lookahead: int = 0
    """Tokens and slots a row sees of the next one (a causal row needs the label of its last token)."""
    slots: int = 0
    most: int | None = None
    """Tokens and slots that a document counts at most, of rows of whole documents (unit `document`)."""


DAMAGED_FILE = "copy that shard again, or build the corpus again"
"""What helps where a file beside a document is damaged."""


@dataclass(frozen=True)
class DocumentSlice:
    """What one row holds of one document: raw tokens, and how many of the document's slots fell into the row."""

    tokens: np.ndarray
    slots: int
    annotations: Mapping[str, np.ndarray] = field(default_factory=dict)
    """What is known of places here, of the kinds that the objective asks for; places count from the first token.
    `words`, `sentences`, `parts`, int32 [n]: the first token of each that begins here; `capitals`: tokens. `phrases`,
    int32 [n, 2], and `tags`, [n, 3]: first token, the one after the last, label, of those that lie here whole. `turns`,
    int32 [n, 2]: first token, role; the first row is the turn that goes on here."""
    begins: bool = False
    """Whether its row follows none, of those that go on where the row of the step before ended (unit `lane`)."""
    backward: bool = False
    """Whether its row is one that reads its text from the end; tokens are here as they stand."""
    elsewhere: bool = False
    """Whether it is of another stretch of the corpus, which comes behind the row's own."""
    blobs: Mapping[str, bytes] = field(default_factory=dict)
    """Suffix -> bytes of a file that belongs to the document, of the suffixes that the objective asks for; of whole
    documents (unit `document`) alone."""
    place: str = ""
    """Where such a file is, for who finds it damaged: its shard, and the document's number there."""
    retrieved: str = ""
    """Which of `RETRIEVED` it is, where it comes behind the row's own because it is like that."""


RETRIEVED = ("images", "texts", "captions")
"""Documents that come behind a row's own: images that show the same; texts that speak of the same; captions of other
images, which speak of nearly the same."""


@dataclass(frozen=True)
class Neighbors:
    """Documents that come behind a row's own because they are like it."""

    file: str
    """That says which these are (`data.retrieved`)."""
    numbers: Mapping[str, int]
    """Kind, of `RETRIEVED` -> how many, at most."""


@dataclass(frozen=True)
class SentenceGroup:
    """Consecutive sentences of one document, and a way to draw another document's for comparison."""

    sentences: list[np.ndarray]
    """Tokens [n], or as `marked` with what the objective asks for."""
    other: Callable[[np.random.Generator], Iterable[np.ndarray]]
    """The sentences of a random other document, from a random one to its last."""
    label: int = IGNORED
    """The document's, where the objective asks for `labels`."""
    outside: Callable[[], list[np.ndarray]] = list
    """What of the document's tokens comes before the sentences, and after them."""


WITHIN = 2
"""The mark of a token that a phrase or a tag goes on with."""


def marked(tokens: np.ndarray, known: Mapping[str, np.ndarray]) -> np.ndarray:
    """The tokens [n]; where something is known of them int64 [n, 1 + k], with a column of marks for each annotation: 1
    where a thing begins or is, and where a span has ended; `WITHIN` where it goes on. Of `turns` the role."""
    if not known:
        return tokens
    made = np.zeros((len(tokens), 1 + len(known)), dtype=np.int64)
    made[:, 0] = tokens
    for column, (name, places) in enumerate(known.items(), 1):
        if places.ndim == 1:
            made[places, column] = 1
            continue
        if name == "turns":
            for first, role in places:
                made[first:, column] = role
            continue
        first, stop = places[:, 0], places[:, 1]
        made[first, column] = made[stop[stop < len(tokens)], column] = 1
        change = np.zeros(len(tokens) + 1, dtype=np.int64)
        np.add.at(change, first + 1, 1)
        np.add.at(change, stop, -1)
        made[np.cumsum(change[:-1]) > 0, column] = WITHIN
    return made


def units(texts: np.ndarray) -> np.ndarray:
    """int64 [n]: 1 where a unit begins in a text with marks of words, and maybe of spans, each of which is one.

    What was cut in two is a unit by itself.
    """
    begins = texts[:, 1].copy()
    for marks in texts[:, 2:].T:
        begins[marks == 1] = 1
        begins[marks == WITHIN] = 0
    begins[:1] = 1
    return begins


Piece = list[DocumentSlice] | SentenceGroup


@dataclass(frozen=True)
class SampleContext:
    """What any sample is made with, whatever its text."""

    special: SpecialTokens
    rng: np.random.Generator
    """All randomness of the sample; without one where the objective does not draw (`Objective.draws`)."""
    sequence: int
    """Places of a row."""
    document_mask: bool
    """Whether tokens see those of their own document alone."""


class BaseObjective(ABC):
    """What a model is trained for: one task (`Objective`), several (`composed.Composed`), or one that reads pairs that
    were counted, and no text (`pairs.GloVe`). numpy only, no state.

    A frozen dataclass where it has options: its fields are what a config may say of it.
    """

    __pydantic_config__: ClassVar[Any] = {"extra": "forbid"}

    name: ClassVar[str]
    losses: ClassVar[Mapping[str, float]]
    """Loss name -> weight; losses have the names of heads: `lm`, `mlm`, `next-sentence` ..."""
    unit: Literal["stream", "lane", "sentence-group", "document", "pairs"] = "stream"
    """What a sample is made of: a list of `DocumentSlice` cut from the stream, or of whole documents; or one
    `SentenceGroup`. Of a `lane` the row goes on where the same row of the batch before ended. `pairs`: of no text, for
    that was counted before the first step."""
    pieces: Literal["sentences", "turns", "parts"] = "sentences"
    """What the sentences of a `SentenceGroup` are: of prose, the turns of a dialogue, the parts of a document."""
    segments: int = 1
    """Texts that it tells apart by their segments; a family must have as many."""
    both_ways: bool = False
    """Whether every second row of a batch reads its text from the end (unit `lane`)."""
    from_both_ends: ClassVar[bool] = False
    """Whether every row of a batch reads its text also from the end (unit `lane`): a piece is then what a row reads
    from the beginning, and what it reads from the end, which is `backward`."""
    elsewhere: float = 0.0
    """Share of rows, drawn at random, behind whose own text comes another stretch of the corpus (unit `lane`), or
    another document (unit `document`, of rows of one)."""
    neighbors: Neighbors | None = None
    """What comes behind a row's own document because it is like that (unit `document`, of rows of one)."""
    own_batches: ClassVar[bool] = False
    """Whether it shares no batch with other tasks: of several each makes whole batches, by its share."""
    restarts: bool = False
    """Whether places begin anew in each text of a pair: a model that knows distances along the row could not tell."""
    answers: int = 0
    """How many there may be, where they are the `labels` of a corpus."""
    every_token: ClassVar[bool] = False
    """Whether it asks for each token of a text: its loss then says how well text is compressed."""
    draws: bool = True
    """Whether `make` draws at all; a generator that nobody asks takes a sixth of a causal row's time."""
    needs: tuple[str, ...] = ()
    """Fields of `SpecialTokens` that must not be absent."""
    template: ClassVar[tuple[str, str]] = ("A", "A B")
    """One text, and two, as training shows them: A and B among fields of `SpecialTokens`; segments if not 0."""
    prompts: tuple[Prompt, ...] = ("text",)
    """What a model that learned by it can be asked with; none: it gives vectors alone."""
    decoder_start: ClassVar[tuple[str, ...]] = ("pad",)
    """What such a decoder hears before its first word: fields of `SpecialTokens`."""
    annotations: tuple[str, ...] = ()
    """What slices come with: `words`, `sentences`, `capitals`, `phrases`, `tags`, `turns`, `parts`, `labels`; sentences
    of pairs as `marked` says. The corpus must have it."""

    blobs: ClassVar[tuple[str, ...]] = ()
    """Suffixes of files beside documents with which slices come, where there are such: `jpg`, `png` (unit
    `document`)."""
    reads_labels: ClassVar[bool | None] = None
    """Whether what comes with an image must be its label, or a text; None: it is not read."""

    @property
    def supervised(self) -> bool:
        """Whether its answers come from somebody: translations, answers, labels. All others are self-supervised: what
        is asked stands in the text itself."""
        return not {"parts", "labels"}.isdisjoint(self.annotations)

    def held_out(self) -> Self:
        """What is asked of a split that is not learned from: the same, but for what is done to data so that the same is
        seen in many ways, as images are cropped and turned."""
        return self

    def weights(self, step: int) -> Mapping[str, float]:
        """Loss name -> weight at a step (0, 1 ...)."""
        return self.losses

    def with_special_tokens(self, ids: list[int], special: SpecialTokens) -> list[int]:
        """One text as its `template` says; a `UserError` names the token that a vocabulary lacks."""
        words = (word.partition(":")[0] for word in self.template[0].split())
        return [id_ for word in words for id_ in (ids if word == "A" else special.ids_of((word,)))]

    def of_prompt(self, kind: Prompt) -> BaseObjective:
        """The task whose special tokens stand around such a prompt: of several the first that knows it."""
        return self

    def text_fields(self, length: int) -> Sample:
        """What rows hold of one text of so many tokens, beside them: int64 [length] `segments`, `order`,
        `global_tokens`, and int64 [] `task_ids`, where these are not zeros."""
        return {}

    @abstractmethod
    def raw_length(self, sequence: int) -> int:
        """Raw tokens that fill a row of `sequence` tokens."""

    @abstractmethod
    def batch(self, sequence: int, document_mask: bool) -> BatchSpec:
        """What every sample holds."""

    def lacking(self, special: SpecialTokens) -> list[str]:
        """Those of `needs` that a vocabulary has not."""
        return [role for role in self.needs if getattr(special, role) is None]

    def check(self, special: SpecialTokens, sequence: int) -> None:
        """Raise a `UserError` when the vocabulary or the sequence cannot serve this objective."""
        kind = "wordpiece" if "mask" in self.needs else "unigram" if "pad" in self.needs else "byte-bpe"
        remedy = f"tokenizer.kind={kind}"
        if {"pad", "begin"} <= {*self.needs}:
            remedy = "tokenizer.specials=roberta (albert, deberta)"
        elif "mask" in self.needs:
            remedy += ", or with tokenizer.specials=roberta (bert, albert, deberta)"
        refuse_lacking_tokens(self, special, remedy=remedy)
        if not len(special.ordinary):
            raise UserError(
                "the tokenizer has special tokens only, and none that text is made of: build the corpus with another."
            )
        if (raw := self.raw_length(sequence)) < 3:
            raise UserError(f"data.sequence ({sequence}) leaves room for {raw} tokens of text: make it longer.")


class SampleObjective(BaseObjective):
    """A task that makes samples, each of one piece of text: of sentences (unit `sentence-group`), or an `Objective`."""

    @abstractmethod
    def make(self, piece: Piece, context: SampleContext) -> Sample:
        """The sample, noised: what `batch` says. All randomness comes from `context.rng`."""

    def of_corpus(self, annotations: Collection[str]) -> SampleObjective:
        """What is asked of a corpus that has these: the same, unless an objective says otherwise."""
        return self

    def has_room(self, document: DocumentSlice, sequence: int) -> bool:
        """Whether a row takes a whole document, of one whose `unit` that is; others are never read."""
        return True


class Objective(SampleObjective):
    """A task whose pieces are cut from documents laid end to end (all units but `sentence-group` and `pairs`)."""

    @abstractmethod
    def cut(self, sequence: int, document_mask: bool) -> RowWindow:
        """How the stream is cut into rows (`stream`), or into stretches whose documents a row takes (`document`)."""


def refuse_lacking_tokens(objective: BaseObjective, special: SpecialTokens, *, remedy: str) -> None:
    """Raise a `UserError` where a vocabulary has not all that it needs; `remedy` says with what a corpus is built."""
    if lacking := objective.lacking(special):
        raise UserError(
            f"objective {objective.name} needs a tokenizer with a `{lacking[0]}` token: build the corpus with "
            f"{remedy}, or take another objective."
        )


def refuse_document_mask(objective: BaseObjective, document_mask: bool) -> None:
    """Raise a `UserError` where the mask would hide what one whose `unit` is `lane` goes on from."""
    if document_mask:
        raise UserError(
            f"objective {objective.name} remembers what was before a row, whatever document it is of, and "
            "data.document_mask hides other documents: set data.document_mask=false."
        )


def weights_at(objective: BaseObjective, step: int) -> dict[str, float]:
    """Loss -> weight at a step; a `UserError` where an objective of the user's does not give each loss a number."""
    whose = f"objective {objective.name}: weights({step})"
    try:
        said: object = objective.weights(step)
    except Exception as error:
        if is_ours(type(error)) or not has_plugin(objective):
            raise
        raise plugin_error(whose, error) from error
    if not isinstance(said, Mapping):
        raise UserError(f"{whose} is {said!r}: it must be a mapping of losses to numbers.")
    for loss in objective.losses:
        if loss not in said:
            raise UserError(f"{whose} has no {loss}: it must give each loss a number ({', '.join(objective.losses)}).")
        if not (isinstance(said[loss], Real) and math.isfinite(said[loss])):
            raise UserError(f"{whose} gives {loss} the weight {said[loss]!r}: it must be a finite number.")
    if unknown := [loss for loss in said if loss not in objective.losses]:
        raise UserError(f"{whose} has {unknown[0]}, which is none of its losses ({', '.join(objective.losses)}).")
    return {loss: float(said[loss]) for loss in objective.losses}


def has_plugin(objective: BaseObjective) -> bool:
    """Whether its samples are made by code of the user's: its class, or an option that names a function."""
    return not is_ours(type(objective)) or any(
        has_plugin(value) if isinstance(value, BaseObjective) else isinstance(value, str) and is_plugin(value)
        for value in vars(objective).values()
    )


def documents_of(lengths: list[int], size: int) -> tuple[np.ndarray, np.ndarray]:
    """int64 [size] twice: the number of the document at each place (1.., 0 is padding), and positions within it."""
    documents = np.zeros(size, dtype=np.int64)
    positions = np.zeros(size, dtype=np.int64)
    at = 0
    # A row holds few documents: a slice for each costs a third of repeating and adding up over the row.
    for number, length in enumerate(lengths, 1):
        documents[at : at + length] = number
        positions[at : at + length] = np.arange(length)
        at += length
    return documents, positions


def padded(pieces: list[np.ndarray], size: int, fill: int) -> np.ndarray:
    """int64 [size]: the pieces end to end, then `fill`."""
    row = np.full(size, fill, dtype=np.int64)
    at = 0
    for piece in pieces:
        row[at : at + len(piece)] = piece
        at += len(piece)
    return row
