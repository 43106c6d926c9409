"""Compressed files: recognized by suffix, checked by the decompressor, and decompressed in small chunks."""

from __future__ import annotations

import bz2
import codecs
import importlib
import lzma
import sys
import zlib
from collections.abc import Callable, Iterator
from functools import lru_cache, partial
from itertools import chain
from pathlib import PurePosixPath
from typing import Any

from data_pipeline.document import memory_error
from data_pipeline.sources.unreadable import Unreadable, require_library
from megaptm.errors import UserError

HEAD_BYTES = 18
"""Bytes at the start of a file that identify its compression: the longest header of a Zstandard frame."""
CHUNK_BYTES = 1 << 20
"""Size of a read and of an output chunk. It is fixed, because it determines where reading of a damaged file stops."""
COMPRESSIONS = {".gz": "gzip", ".zst": "zstd", ".zstd": "zstd", ".bz2": "bzip2", ".xz": "xz"}
FULL_SUFFIXES = {".tgz": ".tar.gz", ".tbz": ".tar.bz2", ".tbz2": ".tar.bz2", ".txz": ".tar.xz", ".tzst": ".tar.zst"}
UNSUPPORTED = frozenset({".7z", ".rar", ".lz4", ".lzma", ".lz", ".lzo", ".z", ".br", ".sz", ".snappy", ".cab", ".ace"})
"""Suffixes of compressed files that are not supported."""
MAX_WINDOW_LOG = 31
"""Longest window that the Zstandard library supports (`zstd --long=31`): 2 GiB."""
DICTIONARY_FRAME = 0x184D2A5D
"""Magic number of the skippable frame that holds the dictionary of a file, as in `.warc.zst` (IIPC)."""
ZSTD_MAGIC = b"\x28\xb5\x2f\xfd"
"""Magic number of a Zstandard frame. A dictionary that starts with it is itself compressed."""
MAX_DICTIONARY_BYTES = 64 << 20


def compression_of(name: str) -> str | None:
    return COMPRESSIONS.get(PurePosixPath(_with_full_suffix(name)).suffix.lower())


def without_compression(name: str) -> str:
    """Remove a compression suffix from a file name: `pile.jsonl.gz` -> `pile.jsonl`."""
    name = _with_full_suffix(name)
    return name[: -len(PurePosixPath(name).suffix)] if compression_of(name) else name


def has_unsupported_compression(name: str) -> bool:
    """Whether a source file has the suffix of an unsupported compression."""
    return PurePosixPath(name).suffix.lower() in UNSUPPORTED


def _with_full_suffix(name: str) -> str:
    """Expand a combined suffix of a compressed archive: `pile.tgz` -> `pile.tar.gz`."""
    suffix = PurePosixPath(name).suffix
    return name[: -len(suffix)] + FULL_SUFFIXES[suffix.lower()] if suffix.lower() in FULL_SUFFIXES else name


def check_compression(kind: str | None, head: bytes) -> None:
    """Compare the first HEAD_BYTES of a file with the compression that its suffix implies; raise `Unreadable` if they
    differ."""
    if kind and _is_accepted(head, kind):
        return
    actual = next((name for name in COMPRESSIONS.values() if _is_accepted(head, name)), None)
    if actual == kind:
        return
    if actual is None and not _is_text(head):
        raise Unreadable("damaged", f"does not start like {kind} data", "download it again")
    problem = f"is not {kind} as its suffix says" if kind else f"contains {actual} data but has no such suffix"
    suffix = next((suffix for suffix, name in COMPRESSIONS.items() if name == actual), None)
    remedy = f"rename it to end in {suffix}" if suffix else "remove the suffix from its name"
    raise Unreadable("wrong compression", problem, remedy)


def _is_accepted(head: bytes, kind: str) -> bool:
    """Whether the decompressor accepts `head`: the first HEAD_BYTES of a file, or all bytes of a shorter file."""
    try:
        decompressor = _make_decompressor(kind)()
        decompressor.decompress(head, CHUNK_BYTES)
        return len(head) == HEAD_BYTES or decompressor.eof
    except UserError:  # the library is not installed
        return False
    except Exception as error:  # each library has its own exceptions
        converted = _convert_error(error, kind)
        return not isinstance(converted, Unreadable) or converted.reason != "damaged"


def _is_text(head: bytes) -> bool:
    try:
        return "\0" not in codecs.getincrementaldecoder("utf-8")().decode(head)
    except UnicodeDecodeError:
        return False


def decompress(chunks: Iterator[bytes], kind: str) -> Iterator[bytes]:
    """Decompress a source file: yield the content of concatenated compressed streams in chunks of at most CHUNK_BYTES;
    raises `Unreadable`."""
    dictionary = None
    if kind == "zstd":
        dictionary, chunks = _split_dictionary(chunks)
    create = _make_decompressor(kind, dictionary)
    decompressor, in_stream = create(), False
    for data in chunks:
        # Zero padding may follow a stream; gzip and xz allow it.
        while data := data if in_stream else data.lstrip(b"\0"):
            in_stream = True
            yield from _decompress_chunk(decompressor, data, kind)
            data = b""
            if decompressor.eof:
                data, decompressor, in_stream = decompressor.unused_data, create(), False
    if in_stream:
        raise Unreadable("truncated", f"ends in the middle of its {kind} data", "download it again")


def _decompress_chunk(decompressor: Any, data: bytes, kind: str) -> Iterator[bytes]:
    """Yield the decompressed data in chunks of at most CHUNK_BYTES, whatever the compression ratio."""
    while True:
        try:
            output = decompressor.decompress(data, CHUNK_BYTES)
        except Exception as error:  # each library has its own exceptions
            raise _convert_error(error, kind) from None
        if output:
            yield output
        if decompressor.eof or decompressor.needs_input:
            return
        data = b""


def _convert_error(error: Exception, kind: str) -> Exception:
    """Convert an error of a decompression library: damaged data, a limit of the library, or too little memory on this
    machine."""
    # Allocation error: Zstandard. Error -4: zlib, Z_MEM_ERROR.
    if isinstance(error, MemoryError) or "Allocation error" in str(error) or str(error).startswith("Error -4 "):
        return memory_error(f"decompress {kind} data")
    if "requires too much memory" in str(error):
        problem = "needs a decompression window of more than 2 GiB"
        return Unreadable("window too large", problem, f"compress it again with --long={MAX_WINDOW_LOG} or less")
    if "Dictionary mismatch" in str(error):
        problem = "was compressed with a dictionary that it does not contain"
        return Unreadable("missing dictionary", problem, "decompress it with that dictionary")
    return Unreadable("damaged", f"contains damaged {kind} data ({error})", "download it again")


def _split_dictionary(chunks: Iterator[bytes]) -> tuple[Any, Iterator[bytes]]:
    """Return the dictionary at the start of a Zstandard file, or None, and the remaining chunks."""
    held = b""
    while len(held) < 8 and (chunk := next(chunks, b"")):
        held += chunk
    size = int.from_bytes(held[4:8], "little")
    if int.from_bytes(held[:4], "little") != DICTIONARY_FRAME or size > MAX_DICTIONARY_BYTES:
        return None, chain((held,), chunks)
    while len(held) < 8 + size and (chunk := next(chunks, b"")):
        held += chunk
    content = held[8 : 8 + size]
    try:
        if content.startswith(ZSTD_MAGIC):
            content = b"".join(decompress(iter((content,)), "zstd"))
        return _import_zstd().ZstdDict(content), chain((held[8 + size :],), chunks)
    except (_import_zstd().ZstdError, ValueError):
        return None, chain((held,), chunks)  # frames that need the dictionary raise an error


@lru_cache(maxsize=1)
def _import_zstd() -> Any:
    with require_library("backports.zstd"):
        return importlib.import_module("compression.zstd" if sys.version_info >= (3, 14) else "backports.zstd")


def _make_decompressor(kind: str, dictionary: Any = None) -> Callable[[], Any]:
    if kind == "zstd":
        options = {_import_zstd().DecompressionParameter.window_log_max: MAX_WINDOW_LOG}
        return partial(_import_zstd().ZstdDecompressor, zstd_dict=dictionary, options=options)
    if kind == "brotli":
        with require_library("brotli"):
            import brotli  # noqa: F401
        return _BrotliDecompressor
    if kind == "gzip":
        return partial(_ZlibDecompressor, 16 + zlib.MAX_WBITS)
    if kind == "xz":
        return partial(lzma.LZMADecompressor, lzma.FORMAT_XZ)
    return {"deflate": _DeflateDecompressor, "bzip2": bz2.BZ2Decompressor}[kind]


class _ZlibDecompressor:
    """zlib decompressor with the interface of Python's other decompressors."""

    def __init__(self, wbits: int) -> None:
        self.zlib = zlib.decompressobj(wbits=wbits)
        self.needs_input = True

    @property
    def eof(self) -> bool:
        return self.zlib.eof

    @property
    def unused_data(self) -> bytes:
        return self.zlib.unused_data

    def decompress(self, data: bytes, max_length: int) -> bytes:
        output = self.zlib.decompress(self.zlib.unconsumed_tail + data, max_length)
        # After a full output, more may be pending even when all input is consumed.
        self.needs_input = not self.zlib.unconsumed_tail and len(output) < max_length
        return output


class _DeflateDecompressor(_ZlibDecompressor):
    """Deflate with the zlib header that HTTP requires, or without it, as many servers send it."""

    def __init__(self) -> None:
        super().__init__(zlib.MAX_WBITS)
        self.has_header = False

    def decompress(self, data: bytes, max_length: int) -> bytes:
        if data and not self.has_header:
            self.has_header = True
            # RFC 1950: compression method 8, and a header that is a multiple of 31.
            if len(data) > 1 and (data[0] & 15 != 8 or int.from_bytes(data[:2]) % 31):
                self.zlib = zlib.decompressobj(wbits=-zlib.MAX_WBITS)
        return super().decompress(data, max_length)


class _BrotliDecompressor:
    """Decompressor of Google's brotli with the interface of Python's other decompressors."""

    unused_data = b""

    def __init__(self) -> None:
        import brotli

        self.brotli = brotli.Decompressor()

    @property
    def eof(self) -> bool:
        return self.brotli.is_finished()

    @property
    def needs_input(self) -> bool:
        return self.brotli.can_accept_more_data()

    def decompress(self, data: bytes, max_length: int) -> bytes:
        return self.brotli.process(data, output_buffer_limit=max_length)
