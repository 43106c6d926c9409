"""Reads files as a build does."""

from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

from data_pipeline.document import Document, DropCounts
from data_pipeline.sources import Source, Span, find_files, partition_files, read_span


@dataclass
class HeadInput:
    """Everything in a source."""

    documents: list[Document] = field(default_factory=list)
    dropped: DropCounts = field(default_factory=DropCounts)

    @property
    def texts(self) -> list[str]:
        return [document.text for document in self.documents]

    @property
    def sources(self) -> list[str]:
        return [document.source for document in self.documents]

    @property
    def counts(self) -> Counter[str]:
        return self.dropped.counts


def reading(path: object, *, on_error="skip", part=1 << 40, **options) -> HeadInput:
    """Files found, partitioned into parts of this many bytes, and read."""
    result = HeadInput()
    for spans in partition_files(find_files([Source(str(path), **options)]), part):
        for span in spans:
            result.documents.extend(read_span(span, result.dropped, on_error))
    return result


def written(path: Path, content: bytes | str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return path


def span_of(path: Path, **options) -> Span:
    [file] = find_files([Source(str(path), **options)])
    return Span(file)
