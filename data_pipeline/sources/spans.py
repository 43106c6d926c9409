"""Files dealt out in parts of about equal size; a large file that can be cut goes to several."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from data_pipeline.sources.formats import can_be_cut
from data_pipeline.sources.source import InputFile, Span


def deal(files: Iterable[InputFile], size: int) -> list[tuple[Span, ...]]:
    """Consecutive spans in parts of about `size` bytes: the same parts whoever works on them."""
    parts: list[list[Span]] = [[]]
    room = size
    for file in files:
        for span, its_size in _spans(file, size):
            if parts[-1] and its_size > room:
                parts.append([])
                room = size
            parts[-1].append(span)
            room -= its_size
    return [tuple(part) for part in parts]


def _spans(file: InputFile, size: int) -> Iterator[tuple[Span, int]]:
    """Spans with their bytes: the whole file, or `size` bytes each."""
    if file.size <= size or not can_be_cut(file):
        yield Span(file), file.size
        return
    for start in range(0, file.size, size):
        stop = start + size
        # A file that grew since it was found is read to its end.
        yield (Span(file, start, stop), size) if stop < file.size else (Span(file, start), file.size - start)
