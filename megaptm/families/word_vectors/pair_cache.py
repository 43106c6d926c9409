"""Cache of GloVe's co-occurrence counts in the run folder, so that a resumed run need not count again, on any number of
ranks."""

# P pairs, V words

from __future__ import annotations

import logging
import math
import secrets
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from megaptm.checkpoint.files import free_bytes, human_bytes
from megaptm.checkpoint.store import Checkpoint, Store
from megaptm.checkpoint.tensors import TensorPiece
from megaptm.errors import UserError
from megaptm.families.word_vectors import LANES
from megaptm.families.word_vectors.pairs import PairCounts
from megaptm.families.word_vectors.sharded_table import Exchange, lane_edges
from megaptm.families.word_vectors.vocabulary import counts_piece, read_counts
from megaptm.parallel.background import run_on_all_ranks
from megaptm.parallel.collectives import any_rank, broadcast_object

FOLDER = "pairs"
SPLITS = ("train", "validation")

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class WordAndPairCounts:
    """Counts of the text for one rank."""

    words: np.ndarray
    """int64 [V]"""
    pairs: Mapping[str, PairCounts]
    """Pairs of this rank's words, for each of `SPLITS`."""


@dataclass(frozen=True)
class PairCache:
    """Cache `run/pairs`, in the format of checkpoints: it is complete if present, and damage is detected.

    Pairs are stored in the order of their words' lanes, so each rank's pairs are contiguous for any number of ranks.
    All ranks call each method together. Counts that cannot be read are counted again, and a failed write does not end
    the run.
    """

    run: Path
    description: Mapping[str, Any]
    """Everything on which the counts depend. A cache with another description is not read."""
    vocabulary: int
    exchange: Exchange
    reserved_bytes: int
    """Bytes to leave free for the run's checkpoints."""

    def read(self) -> WordAndPairCounts | None:
        """Return the cached counts, or None on all ranks if they are missing or unusable."""
        store = Store(self.run / FOLDER)
        if any_rank(not store.steps()):
            return None
        try:
            return run_on_all_ranks(partial(self._read, store))
        except UserError as error:
            self._warn(f"the cached pair counts cannot be used, and are computed again: {error}")
            return None

    def write(self, counted: WordAndPairCounts) -> None:
        """Replace the cache; log a warning if there is not enough space."""
        rank, ranks = self.exchange.rank, self.exchange.ranks
        pairs = self.exchange.all_gather(np.array([len(counted.pairs[split].keys) for split in SPLITS]))
        # Writers of a job that was presumed dead must not write into this job's files.
        store = Store(self.run / FOLDER, keep=1, fence=lambda: True, token=broadcast_object(secrets.token_hex(8)))
        size = 16 * int(pairs.sum())
        pieces = [*self._pieces(counted, pairs)]
        try:
            run_on_all_ranks(lambda: self._prepare(store, size) if rank == 0 else None)
            run_on_all_ranks(partial(store.write, 0, rank, pieces))
            run_on_all_ranks(lambda: store.commit(0, {"description": self.description}, ranks) if rank == 0 else None)
        except UserError as error:
            self._warn(f"the pair counts are not cached, and a resumed run computes them again: {error}")

    def _prepare(self, store: Store, size: int) -> None:
        if (free := free_bytes(self.run)) < size + self.reserved_bytes:
            raise UserError(
                f"the cache needs {human_bytes(size)} and checkpoints {human_bytes(self.reserved_bytes)}, but only "
                f"{human_bytes(free)} are free."
            )
        store.prepare(0, size)

    def _warn(self, message: str) -> None:
        if self.exchange.rank == 0:
            log.warning("%s: %s", self.run / FOLDER, message)

    def _pieces(self, counted: WordAndPairCounts, pairs: np.ndarray) -> Iterator[TensorPiece]:
        """Yield the checkpoint tensors. `pairs`: int64 [ranks, splits], number of pairs of each rank."""
        first, last = lane_edges(self.exchange.ranks)[self.exchange.rank :][:2]
        for split, pairs_per_rank in zip(SPLITS, pairs.T, strict=True):
            held = counted.pairs[split]
            lanes = held.keys // self.vocabulary % LANES
            order = np.argsort(lanes, kind="stable")
            start, full_shape = int(pairs_per_rank[: self.exchange.rank].sum()), (int(pairs_per_rank.sum()),)
            for name, values in (("keys", held.keys[order]), ("counts", held.counts[order])):
                yield TensorPiece(f"{split}/{name}", full_shape, (start,), values.shape, torch.from_numpy(values))
            pairs_per_lane = torch.from_numpy(np.bincount(lanes, minlength=LANES)[first:last])
            yield TensorPiece(f"{split}/lanes", (LANES,), (int(first),), (len(pairs_per_lane),), pairs_per_lane)
        if self.exchange.rank == 0:
            yield counts_piece(counted.words)

    def _read(self, store: Store) -> WordAndPairCounts:
        checkpoint = store.inspect(0, part=self.exchange.rank, parts=self.exchange.ranks)
        if not isinstance(checkpoint, Checkpoint):
            raise UserError(checkpoint)
        if checkpoint.state.get("description") != self.description:
            raise UserError("the cache was built from other text, or with other settings of the objective.")
        pairs = {split: self._read_split(checkpoint, split) for split in SPLITS}
        return WordAndPairCounts(read_counts(checkpoint.reader, self.vocabulary), pairs)

    def _read_split(self, checkpoint: Checkpoint, split: str) -> PairCounts:
        """Return the pairs of this rank's lanes. Raise UserError if they are invalid: compiled code uses them as
        unchecked indices."""
        reader, (first, last) = checkpoint.reader, lane_edges(self.exchange.ranks)[self.exchange.rank :][:2]
        invalid = UserError(f"{checkpoint.folder}: its {split} pairs are invalid.")
        lanes = reader.read(f"{split}/lanes").numpy()
        if (
            lanes.shape != (LANES,)
            or (lanes < 0).any()
            or sum(lanes.tolist()) != math.prod(reader.shape(f"{split}/keys"))
        ):
            raise invalid
        start, number = int(lanes[:first].sum()), int(lanes[first:last].sum())
        keys, counts = (reader.read(f"{split}/{name}", (start,), (number,)).numpy() for name in ("keys", "counts"))
        if {lanes.dtype, keys.dtype, counts.dtype} != {np.dtype(np.int64)} or (counts <= 0).any():
            raise invalid
        if (keys // self.vocabulary % LANES != np.repeat(np.arange(first, last), lanes[first:last])).any():
            raise invalid
        order = np.argsort(keys)
        held = PairCounts(keys[order], counts[order])
        if (np.diff(held.keys, prepend=-1) <= 0).any() or (keys >= self.vocabulary**2).any():
            raise invalid
        return held
