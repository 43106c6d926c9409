"""Compressed files: known by their suffix, checked by their first bytes, decompressed a little at a time."""

from __future__ import annotations

import bz2
import lzma
import sys
import zlib
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import PurePosixPath
from typing import Any

from data_pipeline.sources.bad import Unreadable, needed

CHUNK_BYTES = 1 << 20
"""Read and given at a time. The same everywhere: where a damaged file stops being read depends on it."""
KINDS = {".gz": "gzip", ".zst": "zstd", ".bz2": "bzip2", ".xz": "xz"}
SHORT = {".tgz": ".tar.gz", ".tbz": ".tar.bz2", ".tbz2": ".tar.bz2", ".txz": ".tar.xz", ".tzst": ".tar.zst"}
OTHERS = frozenset({".7z", ".rar", ".lz4", ".lzma", ".lz", ".lzo", ".z", ".br", ".sz", ".snappy", ".cab", ".ace"})
"""Suffixes of what is compressed in other ways."""
MAGIC = {"gzip": b"\x1f\x8b", "zstd": b"\x28\xb5\x2f\xfd", "bzip2": b"BZh", "xz": b"\xfd7zXZ\x00"}


def compression_of(name: str) -> str | None:
    return KINDS.get(PurePosixPath(_in_full(name)).suffix.lower())


def without_compression(name: str) -> str:
    """`pile.jsonl.gz` -> `pile.jsonl`"""
    name = _in_full(name)
    return name[: -len(PurePosixPath(name).suffix)] if compression_of(name) else name


def has_other_compression(name: str) -> bool:
    """Whether it is one that is not read here."""
    return PurePosixPath(name).suffix.lower() in OTHERS


def _in_full(name: str) -> str:
    """`pile.tgz` -> `pile.tar.gz`"""
    suffix = PurePosixPath(name).suffix
    return name[: -len(suffix)] + SHORT[suffix.lower()] if suffix.lower() in SHORT else name


def check_compression(kind: str | None, head: bytes) -> None:
    """The first bytes must be of the compression that the suffix says; raises `Unreadable`."""
    real = next((name for name, magic in MAGIC.items() if head.startswith(magic)), None)
    if real == kind:
        return
    what = f"is not {kind}, as its suffix says" if kind else f"holds {real} data, which its suffix does not say"
    ending = next((suffix for suffix, name in KINDS.items() if name == real), None)
    raise Unreadable("wrong compression", what, f"let its name end in {ending}" if ending else "take the suffix off")


def decompress(chunks: Iterator[bytes], kind: str) -> Iterator[bytes]:
    """Content of one or more compressed streams end to end, in chunks of at most CHUNK_BYTES; raises `Unreadable`."""
    new = _decompressor(kind)
    machine, inside = new(), False
    for data in chunks:
        while data:
            inside = True
            yield from _outputs(machine, data, kind)
            data = b""
            if machine.eof:
                # Zeros may follow a stream; gzip and xz have them as padding.
                data, machine, inside = machine.unused_data.lstrip(b"\0"), new(), False
    if inside:
        raise Unreadable("truncated", f"ends in the middle of its {kind} data", "fetch it again")


def _outputs(machine: Any, data: bytes, kind: str) -> Iterator[bytes]:
    """What the data gives, at most CHUNK_BYTES at a time however much it swells."""
    while True:
        try:
            output = machine.decompress(data, CHUNK_BYTES)
        except Exception as error:  # each library has its own
            raise Unreadable("damaged", f"holds damaged {kind} data ({error})", "fetch it again") from None
        if output:
            yield output
        if machine.eof or machine.needs_input:
            return
        data = b""


def _decompressor(kind: str) -> Callable[[], Any]:
    if kind == "zstd":
        with needed("backports.zstd"):
            if sys.version_info >= (3, 14):
                from compression.zstd import ZstdDecompressor
            else:
                from backports.zstd import ZstdDecompressor
        return ZstdDecompressor
    if kind == "brotli":
        with needed("brotli"):
            import brotli  # noqa: F401
        return _BrotliDecompressor
    if kind == "gzip":
        return partial(_ZlibDecompressor, 16 + zlib.MAX_WBITS)
    return {"deflate": _DeflateDecompressor, "bzip2": bz2.BZ2Decompressor, "xz": lzma.LZMADecompressor}[kind]


class _ZlibDecompressor:
    """zlib's, with the methods that Python's other decompressors have."""

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
        # A full output may have more behind it, even when all input is taken.
        self.needs_input = not self.zlib.unconsumed_tail and len(output) < max_length
        return output


class _DeflateDecompressor(_ZlibDecompressor):
    """With zlib's frame, as HTTP wants it, or without, as many servers send it."""

    def __init__(self) -> None:
        super().__init__(zlib.MAX_WBITS)
        self.begun = False

    def decompress(self, data: bytes, max_length: int) -> bytes:
        if data and not self.begun:
            self.begun = True
            # RFC 1950: method 8, and a header that 31 divides.
            if len(data) > 1 and (data[0] & 15 != 8 or int.from_bytes(data[:2]) % 31):
                self.zlib = zlib.decompressobj(wbits=-zlib.MAX_WBITS)
        return super().decompress(data, max_length)


class _BrotliDecompressor:
    """Google's, with the methods that Python's other decompressors have."""

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
