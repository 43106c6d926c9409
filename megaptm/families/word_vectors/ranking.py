"""Window ranking objective (Collobert & Weston, 2008)."""

# S tokens of a sequence

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Annotated

import numpy as np
from pydantic import Field

from megaptm.batch import BatchField, BatchSpec, batch_fields
from megaptm.errors import UserError
from megaptm.families.word_vectors.windows import PlainTextObjective
from megaptm.objectives.objective import DocumentSlice, Piece, Sample, SampleContext

DictionarySize = Annotated[int, Field(ge=2)]


@dataclass(frozen=True)
class WindowRanking(PlainTextObjective):
    """Objective of window ranking: text windows are ranked above the same window with another center word. With
    `num_tags`, words are also tagged by the same vectors (Collobert & Weston, 2008, section 5)."""

    name = "window-ranking"

    dictionary: tuple[tuple[Annotated[int, Field(ge=0)], DictionarySize], ...] = ()
    """Pairs (step, size): from this step on, the dictionary has this many words; rarer words are unknown. Empty: the
    full vocabulary. The words of a smaller dictionary keep their vectors (arXiv:1103.0398, 4.2)."""

    num_tags: Annotated[int, Field(ge=0, le=10_000)] = 0
    """Number of labels of the corpus (`annotate.tags`); each word has one or none. 0: no tagging."""

    @cached_property
    def losses(self) -> Mapping[str, float]:  # type: ignore[override] # a constant of other objectives
        return {"ranking": 1.0, "tags": 1.0} if self.num_tags else {"ranking": 1.0}

    @property
    def annotations(self) -> tuple[str, ...]:  # type: ignore[override]
        return ("tags",) if self.num_tags else ()

    def __post_init__(self) -> None:
        steps = [step for step, _ in self.dictionary]
        if steps and (steps[0] != 0 or any(next_ <= step for step, next_ in pairwise(steps))):
            raise UserError(f"dictionary has steps {steps}: the first must be 0, and they must be ascending.")

    def dictionary_size(self, step: int) -> int | None:
        """Return the size of C&W's dictionary at a step. None: the full vocabulary."""
        return next((words for first, words in reversed(self.dictionary) if first <= step), None)

    def batch_spec(self, sequence: int, document_mask: bool) -> BatchSpec:
        # Uniform numbers in [0, 1) from which words are sampled: the dictionary size depends on the step.
        uniforms = BatchField((sequence,), "float64")
        tags = batch_fields((sequence,), "tags") if self.num_tags else {}
        return BatchSpec(
            {"": sequence},
            {**batch_fields((sequence,), "tokens", "document_ids"), "replacement_uniforms": uniforms, **tags},
        )

    def make_sample(self, piece: Piece, context: SampleContext) -> Sample:
        assert isinstance(piece, list)
        sample = self.text_sample(piece, context.document_mask)
        sample["replacement_uniforms"] = context.rng.random(len(sample["tokens"]))
        return (
            sample | {"tags": np.concatenate([self._tags_of_tokens(part) for part in piece])}
            if self.num_tags
            else sample
        )

    def _tags_of_tokens(self, part: DocumentSlice) -> np.ndarray:
        """Return the tags of tokens, int64 [tokens]: 0 without a tag, otherwise label index + 1."""
        tags = np.zeros(len(part.tokens), dtype=np.int64)
        for first, stop, label in part.annotations["tags"].tolist():
            tags[first:stop] = 1 + label
        if tags.max(initial=0) > self.num_tags:
            raise UserError(
                f"num_tags ({self.num_tags}) of {self.name} is too small: the corpus has a tag with index "
                f"{tags.max() - 1}. Set it to the number of tags in the corpus manifest."
            )
        return tags
