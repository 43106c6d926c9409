"""Interface of cleaning steps: generators over documents, configured by frozen dataclasses."""

from __future__ import annotations

import importlib
import re
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import lru_cache, wraps
from typing import Any, Protocol, TypeVar, cast

from data_pipeline.annotate.parts import document_parts, with_parts
from data_pipeline.document import Document, DropCounts, OnError, is_document_error, memory_error
from data_pipeline.time_limit import time_limit
from megaptm.errors import UserError
from megaptm.storage import regular_file

Reader = TypeVar("Reader", bound=Callable[..., Any])

BATCH_CHARACTERS = 1 << 17
BATCH_DOCUMENTS = 256


class CleaningStep(Protocol):
    """Cleaning step of a corpus recipe: takes documents in order and yields those that are kept, changed or not.

    Optional methods:

    - `input_files() -> tuple[str, ...]`: paths of files that the result depends on. If one changes, finished work is
      discarded.
    - `after(steps)`: a copy of the step that cleans its reference texts with these earlier steps.
    - `labels() -> tuple[str, ...]`: all values of the note `label`, if the step makes documents of two parts with it.
    """

    def __call__(self, documents: Iterable[Document], dropped: DropCounts) -> Iterator[Document]: ...


def step_input_files(step: CleaningStep) -> tuple[str, ...]:
    """Return the files that the result of a cleaning step depends on: its `input_files`, and the source file of a
    user's step."""
    module = type(step).__module__
    inputs: tuple[str, ...] = getattr(step, "input_files", tuple)()
    file = None if module.startswith("data_pipeline.") else getattr(sys.modules[module], "__file__", None)
    return inputs if file is None else (*inputs, file)


class Filter(ABC):
    """Cleaning step that drops documents."""

    def __call__(self, documents: Iterable[Document], dropped: DropCounts) -> Iterator[Document]:
        for document in documents:
            reason = self.reason(document)
            if reason is None:
                yield document
            else:
                dropped.add(reason, document.source, document.text)

    @abstractmethod
    def reason(self, document: Document) -> str | None:
        """Return the reason to drop a document; None keeps it."""


class BatchFilter(ABC):
    """Cleaning step that judges a batch of documents, each by its own text. Batches are faster for short documents."""

    def __call__(self, documents: Iterable[Document], dropped: DropCounts) -> Iterator[Document]:
        for batch in document_batches(documents):
            for document, reason in zip(batch, self.reasons(batch), strict=True):
                if reason is None:
                    yield document
                else:
                    dropped.add(reason, document.source, document.text)

    @abstractmethod
    def reasons(self, documents: Sequence[Document]) -> Iterable[str | None]:
        """Return the drop reason of each document; None keeps it."""


def document_batches(
    documents: Iterable[Document], max_characters: int = BATCH_CHARACTERS, max_documents: int = BATCH_DOCUMENTS
) -> Iterator[list[Document]]:
    """Yield documents in batches that fit the processor's cache by default. A long document ends its batch."""
    batch: list[Document] = []
    characters = 0
    for document in documents:
        batch.append(document)
        characters += len(document.text)
        if characters >= max_characters or len(batch) == max_documents:
            yield batch
            batch, characters = [], 0
    if batch:
        yield batch


class Change(ABC):
    """Cleaning step that changes the text of documents, or each part of a document with parts."""

    def __call__(self, documents: Iterable[Document], dropped: DropCounts) -> Iterator[Document]:
        for document in documents:
            if "parts" in document.notes:
                yield with_parts(document, [self.change(part) for part in document_parts(document)])
            else:
                yield with_text(document, self.change(document.text))

    @abstractmethod
    def change(self, text: str) -> str: ...


def with_text(document: Document, text: str, **notes: Any) -> Document:
    """Return a document with another text and additional notes.

    `turns` are offsets in the old text. If one text is a prefix of the other, the turns within both are kept; otherwise
    all are removed. `parts` are removed with any change. Other notes are kept.
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
    steps: Sequence[CleaningStep], documents: Iterable[Document], dropped: DropCounts, on_error: OnError = "fail"
) -> Iterator[Document]:
    """Run cleaning steps on documents, one after the other. A document on which a step fails is counted as dropped, or
    ends the build (`on_error`)."""
    stream = iter(documents)
    for index, step in enumerate(steps):
        name = re.sub("(?<=.)(?=[A-Z])", "-", type(step).__name__).lower()
        step = step.after(tuple(steps[:index])) if hasattr(step, "after") else step
        stream = _run_step(name, step, stream, dropped, on_error)
    return stream


def _run_step(
    name: str, step: CleaningStep, documents: Iterable[Document], dropped: DropCounts, on_error: OnError
) -> Iterator[Document]:
    for batch in document_batches(documents):
        yield from _run_batch(name, step, batch, dropped, on_error)


def _run_batch(
    name: str, step: CleaningStep, batch: Sequence[Document], dropped: DropCounts, on_error: OnError
) -> list[Document]:
    counted = DropCounts()
    try:
        with time_limit(repr(step), *(document.text for document in batch)):
            documents = list(step(batch, counted))
    except MemoryError as error:
        sources = " to ".join(dict.fromkeys((batch[0].source, batch[-1].source)))
        raise memory_error(f"run {name} on {sources}") from error
    except Exception as error:
        if not is_document_error(error):
            raise
        if len(batch) > 1:  # find the document that failed
            return [documents for single in batch for documents in _run_batch(name, step, [single], dropped, on_error)]
        dropped.count_failure(name, batch[0], error, on_error)
        return []
    dropped.merge(counted)
    return documents


def require(condition: bool, message: str) -> None:
    """Check an option of a cleaning step: raise a `UserError` with this message unless `condition` is true."""
    if not condition:
        raise UserError(message)


def require_shares(step: object, name: str, *fields: str) -> None:
    """Check the shares in the options of a cleaning step: raise a `UserError` unless each is between 0 and 1, or
    None."""
    for field in fields:
        value = getattr(step, field)
        require(value is None or 0 <= value <= 1, f"{name}: {field} ({value}) must be a share from 0 to 1.")


def require_minimum(minimum: int, step: object, name: str, *fields: str) -> None:
    """Check the numbers in the options of a cleaning step: raise a `UserError` unless each is at least `minimum`, or
    None."""
    for field in fields:
        value = getattr(step, field)
        require(value is None or value >= minimum, f"{name}: {field} ({value}) must be {minimum} or more.")


def file_version(path: str) -> tuple[int, int]:
    """Return a value that changes with a file that a cleaning step reads: (mtime in ns, size), or zeros if it does not
    exist."""
    try:
        status = regular_file(path).stat()
    except OSError:
        return 0, 0
    return status.st_mtime_ns, status.st_size


def cached_by_file(maxsize: int) -> Callable[[Reader], Reader]:
    """Return a decorator that caches what a function reads from its first argument, a path. It reads again when the
    file has changed."""

    def decorate(read: Reader) -> Reader:
        cached = lru_cache(maxsize)(lambda version, path, *args: read(path, *args))
        return cast(Reader, wraps(read)(lambda path, *args: cached(file_version(path), path, *args)))

    return decorate


def import_library(name: str, step: str) -> Any:
    """Import an optional library of a cleaning step."""
    try:
        return importlib.import_module(name)
    except ImportError:
        raise UserError(f"{step} needs {name.split('.')[0]}: `pip install 'megaptm[corpus]'`.") from None
