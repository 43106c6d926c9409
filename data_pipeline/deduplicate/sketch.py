"""Sketches of a part's documents, written with the part: tables sorted by hash, so that a job can read only its range.

    <stem>.columns.npy      one row per document, `tables.COLUMNS`
    <stem>.digests.npy      uint64 [3, documents]: both halves of the digest, then the row, sorted by digest
    <stem>.paragraphs.npy   uint64 [3, paragraphs]: the same for paragraphs, indexed within the part
    <stem>.signatures.npy   uint32 [documents, hashes]
    <stem>.bands.npy        uint64 [documents x bands], sorted: upper 36 bits of the band's key, then the row

Columns are always written, and digests if `documents` is set. With `paragraphs` no signatures are written, because the
texts are not final.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import numpy as np

from data_pipeline.deduplicate.minhash import EMPTY, PIECE, band_keys, bin_minima, densify, shingles
from data_pipeline.deduplicate.options import Deduplicate, NearDuplicateOptions
from data_pipeline.deduplicate.split import repeatable_paragraphs
from data_pipeline.deduplicate.tables import COLUMNS, RowWriter, save_table
from data_pipeline.document import Document
from megaptm.errors import UserError

ROW_BITS = 28
"""Bits of an entry of an LSH band that hold the row of the document. The other 36 hold the hash of the band. Documents
with equal hashes are compared, so a collision only costs a comparison."""
BATCH_CHARACTERS = 1 << 17
BATCH_DOCUMENTS = 256


class Sketcher:
    """Collects sketches of a part: add each document, then close. Memory: about 400 bytes per document and one batch of
    texts."""

    def __init__(self, stem: str, options: Deduplicate):
        self._stem, self._options = stem, options
        self._rows: list[tuple[int, int]] = []
        self._digests, self._paragraphs = bytearray(), bytearray()
        self._signatures = Signatures(stem, options.near) if options.near and not options.paragraphs else None

    def add(self, document: Document, offset: int) -> None:
        """Add the sketches of a document. `offset` is the start of its line in the part's file."""
        text = document.text.encode("utf-8", "surrogatepass")
        self._digests += _text_digest(text)
        self._rows.append((len(text), offset))
        if self._options.paragraphs:
            for paragraph in repeatable_paragraphs(document, self._options.paragraphs):
                self._paragraphs += _text_digest(paragraph.encode("utf-8", "surrogatepass"))
        if self._signatures:
            self._signatures.add(document.text)

    def close(self) -> int:
        """Write the tables of sketches; return the number of documents."""
        columns = np.zeros(len(self._rows), COLUMNS)
        columns["digest"] = np.frombuffer(self._digests, "<u8").reshape(-1, 2)
        if self._rows:
            columns["size"], columns["offset"] = np.array(self._rows, np.int64).T
        save_table(f"{self._stem}.columns.npy", columns)
        if self._options.documents:
            save_table(f"{self._stem}.digests.npy", _sorted_digests(self._digests))
        if self._options.paragraphs:
            save_table(f"{self._stem}.paragraphs.npy", _sorted_digests(self._paragraphs))
        if self._signatures:
            self._signatures.close()
        return len(columns)


class Signatures:
    """MinHash signatures and band keys of a part, computed in batches of documents."""

    def __init__(self, stem: str, near: NearDuplicateOptions):
        self._stem, self._near = stem, near
        self._texts: list[str] = []
        self._characters = 0
        self._entries: list[np.ndarray] = []
        self._file = RowWriter(f"{stem}.signatures.npy", "<u4", near.hashes)

    def add(self, text: str) -> None:
        self._texts.append(text)
        self._characters += len(text)
        if self._characters >= BATCH_CHARACTERS or len(self._texts) == BATCH_DOCUMENTS:
            self._sketch_texts()

    def close(self) -> None:
        self._sketch_texts()
        self._file.close()
        entries = np.concatenate([np.empty(0, np.uint64), *self._entries])
        entries.sort()
        save_table(f"{self._stem}.bands.npy", entries)

    def _sketch_texts(self) -> None:
        signatures = compute_signatures(self._texts, self._near)
        rows = np.arange(self._file.count, self._file.count + len(signatures), dtype=np.uint64)
        self._file.add(signatures)
        if self._file.count > 1 << ROW_BITS:
            raise UserError(
                f"deduplicate.near compares at most {1 << ROW_BITS:,} documents of a compressed file: divide the file, "
                "or decompress it."
            )
        keys = band_keys(signatures, bands=self._near.bands, rows=self._near.rows, seed=self._near.seed)
        entries = keys >> np.uint64(ROW_BITS) << np.uint64(ROW_BITS) | rows[:, None]
        self._entries.append(entries[(signatures != EMPTY).any(axis=1)].ravel())
        self._texts, self._characters = [], 0


def compute_signatures(texts: Sequence[str], near: NearDuplicateOptions) -> np.ndarray:
    """Return the MinHash signatures of texts, uint32 [texts, hashes]. All components are EMPTY for a text without
    words."""
    minima = _min_values([text[:PIECE] for text in texts], near)
    for number, text in enumerate(texts):
        for begin in range(PIECE, len(text), PIECE):
            piece = _min_values([text[begin : begin + PIECE]], near)
            np.minimum(minima[number], piece[0], out=minima[number])
    return densify(minima, near.seed)


def _min_values(texts: Sequence[str], near: NearDuplicateOptions) -> np.ndarray:
    hashes, text_of = shingles(texts, near.ngram)
    return bin_minima(hashes, text_of, texts=len(texts), width=near.hashes, seed=near.seed)


def _text_digest(text: bytes) -> bytes:
    return hashlib.blake2b(text, digest_size=16).digest()


def _sorted_digests(digests: bytearray) -> np.ndarray:
    """Return digests of texts in sorted order, with their indexes, as uint64 [3, n]."""
    first, second = np.frombuffer(digests, "<u8").reshape(-1, 2).T
    order = np.lexsort((second, first))
    return np.stack([first[order], second[order], order.astype(np.uint64)])
