"""Tokens of a corpus by source, format and document length, and a warning if a few documents hold half of them."""

from __future__ import annotations

import heapq
from collections.abc import Iterable
from dataclasses import dataclass, field

from data_pipeline.document import Document

MAX_GIANTS = 32
"""Maximum number of documents that count as "a few" in a corpus's warnings, and number of largest documents that are
recorded."""
GIANT_SHARE = 0.01
"""Maximum share of all documents that counts as "a few" in a corpus's warnings."""
MIN_DOCUMENTS = 10
"""Minimum documents for a warning. In a smaller corpus, one document often holds half of the tokens."""


@dataclass
class TextSize:
    """Total size of a set of documents."""

    documents: int = 0
    tokens: int = 0
    bytes: int = 0

    def add(self, other: TextSize) -> None:
        self.documents += other.documents
        self.tokens += other.tokens
        self.bytes += other.bytes


@dataclass
class Composition:
    """Sizes of the documents of a corpus or a shard."""

    sources: dict[str, TextSize] = field(default_factory=dict)
    """Total size of the documents of each source, by the source's path."""
    formats: dict[str, TextSize] = field(default_factory=dict)
    lengths: dict[int, int] = field(default_factory=dict)
    """Power of two 2**i -> number of tokens in documents of 2**i to 2**(i + 1) - 1 tokens."""
    largest: list[tuple[int, str]] = field(default_factory=list)
    """Tokens and name of the largest documents of a corpus, in descending order."""

    def add(self, document: Document, tokens: int, num_bytes: int) -> None:
        name, _, source = document.origin.partition(" ")
        size = TextSize(1, tokens, num_bytes)
        self.sources.setdefault(source or "unknown", TextSize()).add(size)
        self.formats.setdefault(name or "unknown", TextSize()).add(size)
        power = 1 << tokens.bit_length() - 1
        self.lengths[power] = self.lengths.get(power, 0) + tokens
        if len(self.largest) < MAX_GIANTS or tokens > self.largest[-1][0]:
            self.largest = heapq.nlargest(MAX_GIANTS, [*self.largest, (tokens, document.source)])

    def merge(self, other: Composition) -> None:
        for own, added in ((self.sources, other.sources), (self.formats, other.formats)):
            for name, size in added.items():
                own.setdefault(name, TextSize()).add(size)
        for power, tokens in other.lengths.items():
            self.lengths[power] = self.lengths.get(power, 0) + tokens
        self.largest = heapq.nlargest(MAX_GIANTS, [*self.largest, *other.largest])

    def warnings(self) -> list[str]:
        """Return a warning if a few documents hold half of all tokens of a corpus."""
        documents = sum(size.documents for size in self.sources.values())
        half = sum(size.tokens for size in self.sources.values()) / 2
        few = min(MAX_GIANTS, max(1, int(GIANT_SHARE * documents)))
        total = 0
        for count, (tokens, _) in enumerate(self.largest[:few] if documents >= MIN_DOCUMENTS else (), 1):
            total += tokens
            if total >= half:
                subject = "one document has" if count == 1 else f"{count} documents have"
                largest, name = self.largest[0]
                return [
                    f"{subject} half of the tokens of {documents:,} documents ({name}: {largest:,}): if a file "
                    "contains many texts, set `documents: line` or `documents: blank-line` for its source"
                ]
        return []


def sum_compositions(parts: Iterable[Composition]) -> Composition:
    """Return the composition of a corpus: the sum of those of its shards."""
    total = Composition()
    for part in parts:
        total.merge(part)
    return total
