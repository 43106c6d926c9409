"""Quality scores of documents, from a classifier trained on examples or any other model."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

from data_pipeline.clean.models import load_scorer, model_inputs
from data_pipeline.clean.step import document_batches, require
from data_pipeline.document import Document, DropCounts

DECIMALS = 4
"""Decimals of a score, so that the last bits of a model do not matter."""


@dataclass(frozen=True)
class ScoreQuality:
    """Add the score of a model as the note `quality`, and drop documents below `min_score`."""

    model: str
    """File of `megaptm corpus train-quality`, file of fastText (.bin, .ftz), or `package.module:function`, a function
    from a list of texts to as many numbers."""
    label: str | None = None
    """Label of a fastText model whose probability is the score."""
    min_score: float | None = None
    """Minimum score of documents that are kept. Default: all are kept."""
    note: str = "quality"
    """Name of the note. Several steps can add several scores."""

    def __post_init__(self) -> None:
        require(bool(self.note), "score-quality: note is empty: name it.")

    def input_files(self) -> tuple[str, ...]:
        """Return the path of the model's file, or of the module that defines the function."""
        return model_inputs(self.model, "score-quality")

    def __call__(self, documents: Iterable[Document], dropped: DropCounts) -> Iterator[Document]:
        score = load_scorer(self.model, self.label, "score-quality")
        for batch in document_batches(documents):
            for document, value in zip(batch, score([document.text for document in batch]), strict=True):
                value = round(value, DECIMALS)
                if self.min_score is not None and value < self.min_score:
                    reason = f"score-quality: {self.note} below {self.min_score:g}"
                    dropped.add(reason, document.source, document.text)
                else:
                    yield replace(document, notes={**document.notes, self.note: value})
