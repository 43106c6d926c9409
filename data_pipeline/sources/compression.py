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

from data_pipeline.sources.bad import Unreadable, needed
from megaptm.errors import UserError

HEAD_BYTES = 18
"""Bytes at the start of a file that identify its compression: the longest header of a Zstandard frame."""
CHUNK_BYTES = 1 << 20
"""Size of a read and of an output chunk. Fixed, because it determines where reading of a damaged file stops."""
KINDS = {".gz": "gzip", ".zst": "zstd", ".bz2": "bzip2", ".xz": "xz"}
SHORT = {".tgz": ".tar.gz", ".tbz": ".tar.bz2", ".tbz2": ".tar.bz2", ".txz": ".tar.xz", ".tzst": ".tar.zst"}
OTHERS = frozenset({".7z", ".rar", ".lz4", ".lzma", ".lz", ".lzo", ".z", ".br", ".sz", ".snappy", ".cab", ".ace"})
"""Suffixes of compressed files that are not supported."""
MAX_WINDOW_LOG = 31
"""Longest window that the Zstandard library supports (`zstd --long=31`): 2 GiB."""
DICTIONARY_FRAME = 0x184D2A5D
"""Magic number of the skippable frame that holds the dictionary of a file, as in `.warc.zst` (IIPC)."""
ZSTD_MAGIC = b"\x28\xb5\x2f\xfd"
"""Magic number of a Zstandard frame. A dictionary that starts with it is itself compressed."""
MAX_DICTIONARY_BYTES = 64 << 20


def compression_of(name: str) -> str | None:
    return KINDS.get(PurePosixPath(_in_full(name)).suffix.lower())


def without_compression(name: str) -> str:
    """`pile.jsonl.gz` -> `pile.jsonl`"""
    name = _in_full(name)
    return name[: -len(PurePosixPath(name).suffix)] if compression_of(name) else name


def has_other_compression(name: str) -> bool:
    """Whether the suffix is that of a compression that is not supported."""
    return PurePosixPath(name).suffix.lower() in OTHERS


def _in_full(name: str) -> str:
    """`pile.tgz` -> `pile.tar.gz`"""
    suffix = PurePosixPath(name).suffix
    return name[: -len(suffix)] + SHORT[suffix.lower()] if suffix.lower() in SHORT else name


def check_compression(kind: str | None, head: bytes) -> None:
    """Compare the first HEAD_BYTES of a file with the compression that its suffix implies; raise `Unreadable` if they
    differ."""
    if kind and _is_taken(head, kind):
        return
    real = next((name for name in KINDS.values() if _is_taken(head, name)), None)
    if real == kind:
        return
    if real is None and not _is_text(head):
        raise Unreadable("damaged", f"does not begin as {kind} data do", "fetch it again")
    what = f"is not {kind}, as its suffix says" if kind else f"holds {real} data, which its suffix does not say"
    ending = next((suffix for suffix, name in KINDS.items() if name == real), None)
    raise Unreadable("wrong compression", what, f"let its name end in {ending}" if ending else "take the suffix off")


def _is_taken(head: bytes, kind: str) -> bool:
    """Whether the decompressor accepts `head`: the first HEAD_BYTES of a file, or all bytes of a shorter file."""
    try:
        machine = _decompressor(kind)()
        machine.decompress(head, CHUNK_BYTES)
        return len(head) == HEAD_BYTES or machine.eof
    except UserError:  # the library is not installed
        return False
    except Exception as error:  # each library has its own exceptions
        fault = _fault(error, kind)
        return not isinstance(fault, Unreadable) or fault.reason != "damaged"


def _is_text(head: bytes) -> bool:
    try:
        return "\0" not in codecs.getincrementaldecoder("utf-8")().decode(head)
    except UnicodeDecodeError:
        return False


def decompress(chunks: Iterator[bytes], kind: str) -> Iterator[bytes]:
    """Yield the content of concatenated compressed streams in chunks of at most CHUNK_BYTES; raises `Unreadable`."""
    dictionary = None
    if kind == "zstd":
        dictionary, chunks = _split_dictionary(chunks)
    new = _decompressor(kind, dictionary)
    machine, inside = new(), False
    for data in chunks:
        # Zero padding may follow a stream; gzip and xz allow it.
        while data := data if inside else data.lstrip(b"\0"):
            inside = True
            yield from _outputs(machine, data, kind)
            data = b""
            if machine.eof:
                data, machine, inside = machine.unused_data, new(), False
    if inside:
        raise Unreadable("truncated", f"ends in the middle of its {kind} data", "fetch it again")


def _outputs(machine: Any, data: bytes, kind: str) -> Iterator[bytes]:
    """Yield the decompressed data in chunks of at most CHUNK_BYTES, whatever the compression ratio."""
    while True:
        try:
            output = machine.decompress(data, CHUNK_BYTES)
        except Exception as error:  # each library has its own exceptions
            raise _fault(error, kind) from None
        if output:
            yield output
        if machine.eof or machine.needs_input:
            return
        data = b""


def _fault(error: Exception, kind: str) -> Exception:
    """Convert an error of a library: damaged data, a limit of the library, or too little memory on this machine."""
    if isinstance(error, MemoryError) or "Allocation error" in str(error):
        # Not counted as a drop: the corpus would then depend on the memory of the machine.
        return UserError(
            f"there is not enough memory to decompress {kind} data: give the build more, or fewer workers."
        )
    if "requires too much memory" in str(error):
        what = "needs a window of more than 2 GiB to be decompressed"
        return Unreadable("window too long", what, f"compress it again with --long={MAX_WINDOW_LOG} or less")
    if "Dictionary mismatch" in str(error):
        what = "was compressed with a dictionary, which it does not hold"
        return Unreadable("needs a dictionary", what, "decompress it with that dictionary")
    return Unreadable("damaged", f"holds damaged {kind} data ({error})", "fetch it again")


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
        return _zstd().ZstdDict(content), chain((held[8 + size :],), chunks)
    except (_zstd().ZstdError, ValueError):
        return None, chain((held,), chunks)  # frames that need the dictionary raise an error


@lru_cache(maxsize=1)
def _zstd() -> Any:
    with needed("backports.zstd"):
        return importlib.import_module("compression.zstd" if sys.version_info >= (3, 14) else "backports.zstd")


def _decompressor(kind: str, dictionary: Any = None) -> Callable[[], Any]:
    if kind == "zstd":
        options = {_zstd().DecompressionParameter.window_log_max: MAX_WINDOW_LOG}
        return partial(_zstd().ZstdDecompressor, zstd_dict=dictionary, options=options)
    if kind == "brotli":
        with needed("brotli"):
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
        self.begun = False

    def decompress(self, data: bytes, max_length: int) -> bytes:
        if data and not self.begun:
            self.begun = True
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
