"""Forward and backward language modeling over continued sequences."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from megaptm.batch import BatchField, BatchSpec, batch_fields
from megaptm.errors import UserError
from megaptm.families.elmo.spec import MAX_WORD_LENGTH
from megaptm.families.elmo.spelling import vocabulary_spellings
from megaptm.objectives.objective import (
    DocumentSlice,
    Objective,
    Piece,
    Sample,
    SampleContext,
    SequenceWindow,
    refuse_document_mask,
)
from megaptm.objectives.vocabulary import SpecialTokens

STREAMS = ("", "backwards_")


@dataclass(frozen=True)
class BidirectionalLM(Objective):
    """Objective of ELMo (arXiv:1802.05365, 3.1): next-token prediction in both directions.

    Each sequence of a batch continues the same sequence of the previous batch, forward and backward over the same text.
    Documents are preceded by `begin` and followed by `end`. `reset_state` is 1 if a sequence continues no other. Words
    have character ids.
    """

    name = "bidirectional-lm"
    losses: ClassVar = {"bidirectional-lm": 1.0}
    unit = "lane"
    direction = "both"
    uses_rng = False
    required_tokens = ("end", "begin")
    template: ClassVar[tuple[str, str]] = ("begin A end", "begin A end begin B end")
    prompts = ()

    def raw_length(self, sequence: int) -> int:
        return sequence

    def sequence_window(self, sequence: int, document_mask: bool) -> SequenceWindow:
        return SequenceWindow(stride=sequence, lookahead=1, slots=2)

    def batch_spec(self, sequence: int, document_mask: bool) -> BatchSpec:
        refuse_document_mask(self, document_mask)
        sequence_fields = {
            f"{prefix}{name}": field
            for prefix in STREAMS
            for name, field in {
                **batch_fields((sequence,), "tokens"),
                "characters": BatchField((sequence, MAX_WORD_LENGTH), "int16", is_input=True),
                **batch_fields((sequence,), "labels"),
            }.items()
        }
        return BatchSpec(dict.fromkeys(STREAMS, sequence), {**sequence_fields, "reset_state": BatchField(())})

    def check(self, special: SpecialTokens, sequence: int) -> None:
        super().check(special, sequence)
        if vocabulary_spellings(special) is None:
            raise UserError(
                f"objective {self.name} reads words by their characters, but the tokens of this tokenizer are not "
                "words: build the corpus with tokenizer.kind=words, or use another objective."
            )

    def make_sample(self, piece: Piece, context: SampleContext) -> Sample:
        assert isinstance(piece, list)
        special, characters_VC = context.special, vocabulary_spellings(context.special)
        assert characters_VC is not None
        texts = (
            _join_documents([part for part in piece if not part.backward], special),
            _join_documents([part for part in piece if part.backward], special)[::-1],
        )
        made: Sample = {}
        for prefix, text in zip(STREAMS, texts, strict=True):
            made[f"{prefix}tokens"] = text[:-1].copy()
            made[f"{prefix}characters"] = characters_VC[text[:-1]]
            made[f"{prefix}labels"] = text[1:].copy()
        return {**made, "reset_state": np.array(piece[0].starts_lane, dtype=np.int64)}


def _join_documents(parts: Sequence[DocumentSlice], special: SpecialTokens) -> np.ndarray:
    """Return the text of documents for ELMo, concatenated, each followed by `end` and `begin`. A sequence may start
    with `begin` and end with `end`."""
    assert special.end is not None
    assert special.begin is not None
    between, documents = np.array([special.end, special.begin], dtype=np.int64), []
    for index, part in enumerate(parts):
        only_begin = index == 0 and part.slots == 1 and not len(part.tokens) and len(parts) > 1
        documents += [part.tokens.astype(np.int64), between[1:] if only_begin else between[: part.slots]]
    return np.concatenate(documents)


TASKS = {"bidirectional-lm": BidirectionalLM}
OBJECTIVES = (BidirectionalLM(),)
