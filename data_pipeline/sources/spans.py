"""Divide files into parts of about equal size. A large file that can be cut spans several parts."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from data_pipeline.sources.formats import can_be_cut
from data_pipeline.sources.source import InputFile, Span


def partition_files(files: Iterable[InputFile], size: int) -> list[tuple[Span, ...]]:
    """Divide source files into parts of consecutive spans, of about `size` bytes each. They do not depend on the number
    of workers."""
    parts: list[list[Span]] = [[]]
    room = size
    for file in files:
        for span, its_size in _split_file(file, size):
            if parts[-1] and its_size > room:
                parts.append([])
                room = size
            parts[-1].append(span)
            room -= its_size
    return [tuple(part) for part in parts]


def _split_file(file: InputFile, size: int) -> Iterator[tuple[Span, int]]:
    """Yield spans of source files with their size in bytes: the whole file, or `size` bytes each."""
    if file.size <= size or not can_be_cut(file):
        yield Span(file), file.size
        return
    for start in range(0, file.size, size):
        stop = start + size
        # The last span is open-ended, so that a file that has grown since it was listed is read to its end.
        yield (Span(file, start, stop), size) if stop < file.size else (Span(file, start), file.size - start)
