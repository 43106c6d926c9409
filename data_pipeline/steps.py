"""Cleaning steps: each a generator over documents; one that drops a document says why, and the reason is counted."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from typing import Protocol

from data_pipeline.document import Document, Dropped


class Step(Protocol):
    """Takes documents in order and yields those it keeps, changed or not."""

    def __call__(self, documents: Iterable[Document], dropped: Dropped) -> Iterator[Document]: ...


@dataclass(frozen=True)
class Normalize:
    """One kind of line end, no blank lines around the text; every other character stays as it was written."""

    def __call__(self, documents: Iterable[Document], dropped: Dropped) -> Iterator[Document]:
        for document in documents:
            text = document.text.replace("\r\n", "\n").replace("\r", "\n").strip("\n")
            yield replace(document, text=text + "\n" if "\n" in text else text)


@dataclass(frozen=True)
class DropEmpty:
    """Nothing but white space is no document."""

    def __call__(self, documents: Iterable[Document], dropped: Dropped) -> Iterator[Document]:
        for document in documents:
            if document.text.strip():
                yield document
            else:
                dropped.add("empty", document.source)


@dataclass(frozen=True)
class DropShort:
    """Leave out what is too short to learn a sequence from."""

    characters: int = 16

    def __call__(self, documents: Iterable[Document], dropped: Dropped) -> Iterator[Document]:
        for document in documents:
            if len(document.text.strip()) >= self.characters:
                yield document
            else:
                dropped.add(f"shorter than {self.characters} characters", document.source)


STEPS: dict[str, type] = {"normalize": Normalize, "drop-empty": DropEmpty, "drop-short": DropShort}
"""How a recipe calls them."""

CLEAN: tuple[Step, ...] = (Normalize(), DropEmpty(), DropShort())
"""What a corpus goes through when its recipe names no steps."""


def run_steps(steps: Sequence[Step], documents: Iterator[Document], dropped: Dropped) -> Iterator[Document]:
    """Each step reads what the one before it yields."""
    return reduce(lambda stream, step: step(stream, dropped), steps, documents)
