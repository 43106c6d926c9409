"""What a cleaning step is: a generator over documents, described by a frozen dataclass of its options."""

from __future__ import annotations

import importlib
import re
import sys
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any, Protocol

from data_pipeline.annotate.parts import parts_of, with_parts
from data_pipeline.document import Document, Dropped, OnError, is_of_document
from data_pipeline.time_limit import time_limit
from megaptm.errors import UserError
from megaptm.storage import plain_file

BATCH_CHARACTERS = 1 << 17
BATCH_DOCUMENTS = 256


class CleaningStep(Protocol):
    """Takes documents in order and yields those it keeps, changed or not.

    A step whose result depends on files has `inputs() -> tuple[str, ...]`, their paths: finished work is not taken up
    again after one of them has changed. One that compares documents with other texts has `after(steps)`: the step as it
    stands behind these, which have changed the documents. One that makes documents of two parts and a label, the note
    `label`, has `labels() -> tuple[str, ...]`: all there may be.
    """

    def __call__(self, documents: Iterable[Document], dropped: Dropped) -> Iterator[Document]: ...


def inputs_of(step: CleaningStep) -> tuple[str, ...]:
    """Files that a step's result depends on: those that it says, and the one that it is written in, where that is the
    user's."""
    said: tuple[str, ...] = getattr(step, "inputs", tuple)()
    module = type(step).__module__
    file = None if module.startswith("data_pipeline.") else getattr(sys.modules[module], "__file__", None)
    return said if file is None else (*said, file)


class Filter(ABC):
    """A step that leaves documents out."""

    def __call__(self, documents: Iterable[Document], dropped: Dropped) -> Iterator[Document]:
        for document in documents:
            reason = self.reason(document)
            if reason is None:
                yield document
            else:
                dropped.add(reason, document.source, document.text)

    @abstractmethod
    def reason(self, document: Document) -> str | None:
        """Why this document is left out; None keeps it."""


class BatchFilter(ABC):
    """A filter that judges several documents at once, each by its own text alone: short ones are read faster so."""

    def __call__(self, documents: Iterable[Document], dropped: Dropped) -> Iterator[Document]:
        for batch in batches(documents):
            for document, reason in zip(batch, self.reasons(batch), strict=True):
                if reason is None:
                    yield document
                else:
                    dropped.add(reason, document.source, document.text)

    @abstractmethod
    def reasons(self, documents: Sequence[Document]) -> Iterable[str | None]:
        """Why each document is left out; None keeps it."""


def batches(
    documents: Iterable[Document], most_characters: int = BATCH_CHARACTERS, most: int = BATCH_DOCUMENTS
) -> Iterator[list[Document]]:
    """Documents in order, by default as many as stay within the processor's cache; a long one ends its batch."""
    batch: list[Document] = []
    characters = 0
    for document in documents:
        batch.append(document)
        characters += len(document.text)
        if characters >= most_characters or len(batch) == most:
            yield batch
            batch, characters = [], 0
    if batch:
        yield batch


class Change(ABC):
    """A step that changes the text of documents, and of those in parts each by itself."""

    def __call__(self, documents: Iterable[Document], dropped: Dropped) -> Iterator[Document]:
        for document in documents:
            if "parts" in document.notes:
                yield with_parts(document, [self.change(part) for part in parts_of(document)])
            else:
                yield with_text(document, self.change(document.text))

    @abstractmethod
    def change(self, text: str) -> str: ...


def with_text(document: Document, text: str, **notes: Any) -> Document:
    """The document with another text, and more notes.

    `turns` are places in the old text: those that both texts have are kept where one text is the beginning of the
    other, else all are dropped; `parts` are dropped with any change. Every other note stays.
    """
    old = document.text
    if text == old and not notes:
        return document
    notes = {**document.notes, **notes}
    if text != old:
        notes.pop("parts", None)
    if "turns" in notes and text != old:
        turns = notes.pop("turns")
        if text.startswith(old) or old.startswith(text):
            notes["turns"] = [turn for turn in turns if turn[0] < len(text)]
    return replace(document, text=text, notes=notes)


def run_steps(
    steps: Sequence[CleaningStep], documents: Iterable[Document], dropped: Dropped, on_error: OnError = "fail"
) -> Iterator[Document]:
    """Each step reads what the one before it yields. A document on which one fails is counted, or ends it all."""
    stream = iter(documents)
    for place, step in enumerate(steps):
        name = re.sub("(?<=.)(?=[A-Z])", "-", type(step).__name__).lower()
        step = step.after(tuple(steps[:place])) if hasattr(step, "after") else step
        stream = _run(name, step, stream, dropped, on_error)
    return stream


def _run(
    name: str, step: CleaningStep, documents: Iterable[Document], dropped: Dropped, on_error: OnError
) -> Iterator[Document]:
    for batch in batches(documents):
        yield from _run_batch(name, step, batch, dropped, on_error)


def _run_batch(
    name: str, step: CleaningStep, batch: Sequence[Document], dropped: Dropped, on_error: OnError
) -> list[Document]:
    counted = Dropped()
    try:
        with time_limit(repr(step), *(document.text for document in batch)):
            kept = list(step(batch, counted))
    except Exception as error:
        if not is_of_document(error):
            raise
        if len(batch) > 1:  # which of them is it?
            return [kept for one in batch for kept in _run_batch(name, step, [one], dropped, on_error)]
        dropped.failed(name, batch[0], error, on_error)
        return []
    dropped.merge(counted)
    return kept


def require(good: bool, sentence: str) -> None:
    """A `UserError` of this sentence unless all is good."""
    if not good:
        raise UserError(sentence)


def require_shares(step: object, name: str, *fields: str) -> None:
    """Options that are shares lie between 0 and 1, or are absent."""
    for field in fields:
        value = getattr(step, field)
        require(value is None or 0 <= value <= 1, f"{name}: {field} ({value}) must be a share from 0 to 1.")


def require_least(least: int, step: object, name: str, *fields: str) -> None:
    """Options that are numbers of something are `least` or more, or are absent."""
    for field in fields:
        value = getattr(step, field)
        require(value is None or value >= least, f"{name}: {field} ({value}) must be {least} or more.")


def stamp(path: str) -> tuple[int, int]:
    """Changes when the file does; zeros for one that is not there."""
    try:
        status = plain_file(path).stat()
    except OSError:
        return 0, 0
    return status.st_mtime_ns, status.st_size


def library(name: str, step: str) -> Any:
    """Import an optional library."""
    try:
        return importlib.import_module(name)
    except ImportError:
        raise UserError(f"{step} needs {name.split('.')[0]}: `pip install 'megaptm[corpus]'`.") from None
