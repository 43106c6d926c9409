"""MDS, the shards of MosaicML streaming. A shard describes its own columns, so `index.json` is not needed.

uint32 samples, uint32 offsets[samples + 1], JSON with column_names, column_encodings, column_sizes, then samples:
uint32 size of each column without a fixed size, then the bytes of all columns
"""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np

from data_pipeline.document import Document
from data_pipeline.sources.compression import CHUNK_BYTES
from data_pipeline.sources.content import ChunkStream, read_chunks
from data_pipeline.sources.fields import refuse_duplicate_columns
from data_pipeline.sources.formats.columns import Row, documents_of_rows, no_text_column
from data_pipeline.sources.source import InputFile, Source, Span
from data_pipeline.sources.unreadable import Unreadable, UnreadableHandler, UnreadableRecord

NUMBERS = ("uint8", "uint16", "uint32", "uint64", "int8", "int16", "int32", "int64", "float16", "float32", "float64")


def _number(data: bytes, dtype: str) -> int | float:
    return np.frombuffer(data, dtype)[0].item()  # type: ignore[no-any-return]


DECODERS: dict[str, Callable[[bytes], Any]] = {
    "str": bytes,
    "bytes": bytes,
    "json": json.loads,
    "int": partial(_number, dtype="int64"),
    "str_int": lambda data: int(data.decode()),
    "str_float": lambda data: float(data.decode()),
    "str_decimal": lambda data: data.decode(),
    **{name: partial(_number, dtype=name) for name in NUMBERS},
}
"""Decoders of columns by the name of their encoding. Pickles, arrays and images are not read."""
TEXT_ENCODINGS = ("str", "bytes")


def read_mds(span: Span, handler: UnreadableHandler) -> Iterator[Document]:
    """Read MDS: yield the documents of the samples whose first byte is in the span."""
    yield from documents_of_rows(_rows(span, handler), span, handler)


def _open(file: InputFile, start: int = 0) -> io.BufferedReader:
    return io.BufferedReader(ChunkStream(read_chunks(file, start)), 1 << 20)


def _read(stream: io.BufferedReader, size: int) -> bytes:
    """Read up to `size` bytes in pieces, because a damaged shard may state a size for which there is no memory."""
    pieces = []
    while piece := stream.read(min(size, CHUNK_BYTES)):
        pieces.append(piece)
        size -= len(piece)
    return b"".join(pieces)  # does not copy a single piece


def _rows(span: Span, handler: UnreadableHandler) -> Iterator[Row]:
    stream = _open(span.file)
    offsets, columns = _read_header(stream)
    decoders = _decoders(columns, span.file.source)
    inside = np.flatnonzero((offsets[:-1] >= span.start) & (offsets[:-1] < span.end)).tolist()
    if inside and inside[0]:
        stream = _open(span.file, int(offsets[inside[0]]))
    for row in inside:
        size = int(offsets[row + 1] - offsets[row])
        sample = _read(stream, size)
        where = f"{span.file.name}@{row}", f"row {row:,}"
        if len(sample) < size:
            error = UnreadableRecord("truncated", "starts a part that is not complete", "download it again")
            handler.handle_record(*where, error)
            return
        try:
            yield row, {name: decoders[name](data) for name, data in _split(sample, columns) if name in decoders}
        except (ValueError, IndexError, RecursionError) as error:
            handler.handle_record(*where, UnreadableRecord("damaged", f"is damaged ({error})", "write the file again"))


def _read_header(stream: io.BufferedReader) -> tuple[np.ndarray, list[tuple[str, str, int | None]]]:
    """Return the offsets of the samples of a shard, int64 [samples + 1], and its columns: name, encoding, fixed
    size."""
    try:
        count = int(np.frombuffer(stream.read(4), "<u4")[0])
        offsets = np.frombuffer(_read(stream, 4 * (count + 1)), "<u4").astype(np.int64)
        if len(offsets) <= count or (np.diff(offsets) < 0).any():
            raise ValueError("its offsets are not ascending")
        content = json.loads(_read(stream, max(0, int(offsets[0]) - 4 * (count + 2))))
        names, encodings, sizes = (content[f"column_{key}"] for key in ("names", "encodings", "sizes"))
        if not all(size is None or (type(size) is int and size >= 0) for size in sizes):
            raise ValueError("its column sizes are not numbers")
        return offsets, [(str(name), str(kind), size) for name, kind, size in zip(names, encodings, sizes, strict=True)]
    except (ValueError, IndexError, KeyError, TypeError, RecursionError) as error:
        raise Unreadable("not MDS", f"is not readable MDS ({error})", "write it again") from None


def _decoders(columns: list[tuple[str, str, int | None]], source: Source) -> dict[str, Callable[[bytes], Any]]:
    """Return the decoders of the required columns; raise `Unreadable` if one is missing or has an unknown encoding."""
    kinds = {name: kind for name, kind, _ in columns}
    refuse_duplicate_columns([name for name, _, _ in columns], source)
    for name in source.fields:
        if kinds.get(name) not in TEXT_ENCODINGS:
            raise no_text_column(name, kinds, source)
    for name in source.keep:
        if name in kinds and kinds[name] not in DECODERS:
            problem = f"has a column `{name}` of encoding {kinds[name]}"
            raise Unreadable("unknown encoding", problem, "remove it from `keep`")
    return {name: DECODERS[kind] for name, kind in kinds.items() if name in source.fields or name in source.keep}


def _split(sample: bytes, columns: list[tuple[str, str, int | None]]) -> Iterator[tuple[str, bytes]]:
    """Yield the name and the bytes of each column of a sample."""
    variable = sum(size is None for _, _, size in columns)
    if len(sample) < 4 * variable:
        raise ValueError("it is shorter than the sizes of its columns")
    sizes = iter(np.frombuffer(sample[: 4 * variable], "<u4").tolist())
    lengths = [next(sizes) if size is None else size for _, _, size in columns]
    if 4 * variable + sum(lengths) != len(sample):
        raise ValueError("its columns do not have the size of the sample")
    at = 4 * variable
    for (name, _, _), length in zip(columns, lengths, strict=True):
        yield name, sample[at : at + length]
        at += length
