"""Padding and cut documents at each sequence length, for packed sequences and for one document per sequence."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np
from rich.table import Table

SEQUENCES = (128, 256, 512, 1024, 2048, 4096, 8192, 16384, 32768, 65536, 131072)


@dataclass
class PackingSums:
    """Sums over documents for a sequence length, from which `Packing` is computed."""

    documents: int = 0
    tokens: int = 0
    boundaries: int = 0
    """Sum of the positions of a sequence boundary that would cut a document: its tokens - 1, at most the sequence
    length."""
    fitting: int = 0
    """Sum of the tokens of each document up to the sequence length."""
    longer: int = 0
    """Number of documents longer than the sequence."""

    def add(self, other: PackingSums) -> None:
        for name, value in vars(other).items():
            setattr(self, name, getattr(self, name) + value)


@dataclass(frozen=True)
class Packing:
    """Shares at a sequence length."""

    packed_cut: float
    """Share of documents that a sequence boundary cuts, if documents are packed without padding: the expected value
    over all offsets."""
    padding: float
    """Share of padding, with one document per sequence."""
    cut: float
    """Share of documents that are longer than the sequence."""
    lost: float
    """Share of tokens beyond the sequence, with one document per sequence."""


def packing_sums(lengths: np.ndarray, sequences: Iterable[int] = SEQUENCES) -> dict[int, PackingSums]:
    """Return the sums for documents of these lengths (int64 [documents], in tokens), by sequence length."""
    documents, tokens = len(lengths), int(lengths.sum())
    return {
        sequence: PackingSums(
            documents,
            tokens,
            int(np.minimum(lengths - 1, sequence).sum()),
            int(np.minimum(lengths, sequence).sum()),
            int((lengths > sequence).sum()),
        )
        for sequence in sequences
    }


def merge_packing_sums(parts: Iterable[Mapping[int, PackingSums]]) -> dict[int, PackingSums]:
    """Return the sums over shards."""
    total: dict[int, PackingSums] = {}
    for part in parts:
        for sequence, sums in part.items():
            total.setdefault(sequence, PackingSums()).add(sums)
    return total


def packing_by_length(sums: Mapping[int, PackingSums]) -> dict[int, Packing]:
    """Return the shares at each sequence length, up to the first that all documents fit into."""
    shares: dict[int, Packing] = {}
    for sequence, counts in sorted(sums.items()):
        positions = sequence * counts.documents
        shares[sequence] = Packing(
            packed_cut=counts.boundaries / positions,
            padding=1 - counts.fitting / positions,
            cut=counts.longer / counts.documents,
            lost=1 - counts.fitting / counts.tokens,
        )
        if not counts.longer:
            break
    return shares


def packing_table(shares: Mapping[int, Packing]) -> Table:
    """Return a table of the shares at each sequence length."""
    table = Table(title="sequences: packed, or of one document each", title_justify="left", box=None, padding=(0, 1))
    for column in ("tokens", "documents cut (packed)", "padding", "documents cut", "tokens lost"):
        table.add_column(column, justify="right")
    for sequence, share in shares.items():
        values = (share.packed_cut, share.padding, share.cut, share.lost)
        table.add_row(f"{sequence:,}", *(f"{value:.1%}" for value in values))
    return table
