"""Weighted corpora as one endless sequence of samples, each a pure function of its number."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from megaptm.batch import BatchSpec
from megaptm.data.lru import LRUCache
from megaptm.data.order import WINDOW, Order, PairOrder, StreamOrder
from megaptm.data.seeds import generator
from megaptm.data.shards import Corpus, Verify
from megaptm.errors import UserError
from megaptm.objectives import objective_of
from megaptm.objectives.objective import Objective, Sample
from megaptm.objectives.vocabulary import SpecialTokens
from megaptm.storage import Cache

BLOCK = 100_000
"""Samples among which each corpus has exactly its share; weights are honored to one in this many."""


@dataclass(frozen=True)
class Place:
    """Where a sample comes from."""

    source: int
    epoch: int
    position: int


class Mix:
    """`mix.sample(i)` for i = 0, 1, 2 ... without end: the next epoch of a corpus follows its last."""

    def __init__(
        self,
        names: list[str],
        orders: list[Order],
        weights: list[float],
        *,
        objective: Objective,
        sequence: int,
        seed: int,
        document_mask: bool,
        special: SpecialTokens,
    ):
        self.names = names
        self.orders = orders
        self.objective = objective
        self.sequence = sequence
        self.seed = seed
        self.document_mask = document_mask
        self.special = special
        self.quotas = _quotas(names, orders, weights)
        self._block: LRUCache[int, tuple[np.ndarray, np.ndarray]] = LRUCache(self._deal, 2)

    @property
    def fingerprint(self) -> str:
        """Of the tokenizer that all corpora were made with."""
        return self.orders[0].corpus.manifest.tokenizer["fingerprint"]

    @property
    def corpora(self) -> dict[str, str]:
        """Name -> id of each corpus's manifest: with the seed, all that the order of samples follows from."""
        return {name: order.corpus.manifest.id for name, order in zip(self.names, self.orders, strict=True)}

    @property
    def batch(self) -> BatchSpec:
        """What every sample holds."""
        return self.objective.batch(self.sequence, self.document_mask)

    @property
    def fresh_samples(self) -> int:
        """Samples before the first repeats text, which is when the first corpus begins its second epoch."""
        return self.samples_in(1)

    def samples_in(self, epochs: int) -> int:
        """Samples before the first that reads any text for more than so many times."""
        return min(self._number(source, epochs * order.per_epoch) for source, order in enumerate(self.orders))

    def epochs_begun(self, number: int) -> dict[str, int]:
        """How often each corpus has been begun by the samples before `number`."""
        per_epoch = [order.per_epoch for order in self.orders]
        cursors = self.cursors(number).items()
        return {name: -(-cursor // size) for (name, cursor), size in zip(cursors, per_epoch, strict=True)}

    def fresh_batches(self, batch: int) -> int:
        """Whole batches before the first sample that repeats text; none at all is the user's error."""
        if batch > self.fresh_samples:
            split = self.orders[0].split
            words = " (validation=0.1 overwrite=true)" if split == "validation" else ""
            raise UserError(
                f"the {split} split gives {self.fresh_samples} rows of {self.sequence} tokens, less than one batch of "
                f"{batch}: build the corpus with a larger {split} split{words}, or lower train.batch."
            )
        return self.fresh_samples // batch

    def sample(self, number: int) -> Sample:
        """Sample `number`, 0 or more."""
        place = self.locate(number)
        piece = self.orders[place.source].piece(place.epoch, place.position)
        draws = self.objective.draws
        rng: Any = generator(self.seed, self.objective.name, place.epoch, number) if draws else None
        return self.objective.make(piece, self.special, rng, self.sequence, self.document_mask)

    def locate(self, number: int) -> Place:
        """Which corpus, epoch and position sample `number` comes from."""
        block, at = divmod(number, BLOCK)
        source, rank = (int(table[at]) for table in self._block(block))
        epoch, position = divmod(block * self.quotas[source] + rank, self.orders[source].per_epoch)
        return Place(source, epoch, position)

    def cursors(self, number: int) -> dict[str, int]:
        """How many samples of each corpus come before sample `number`: where a run that stopped there stands."""
        block, at = divmod(number, BLOCK)
        begun = np.bincount(self._block(block)[0][:at], minlength=len(self.names)).tolist()
        return {name: block * quota + here for name, quota, here in zip(self.names, self.quotas, begun, strict=True)}

    def _deal(self, block: int) -> tuple[np.ndarray, np.ndarray]:
        """For each sample of a block: its corpus, and how many of that corpus come before it in the block."""
        dealt = np.repeat(np.arange(len(self.quotas)), self.quotas)
        source = generator(self.seed, "mix", block).permutation(dealt)
        rank = np.empty(BLOCK, dtype=np.int64)
        rank[np.argsort(source, kind="stable")] = np.concatenate([np.arange(quota) for quota in self.quotas])
        return source, rank

    def _number(self, source: int, cursor: int) -> int:
        """The number of a corpus's sample `cursor` in the mix."""
        block, rank = divmod(cursor, self.quotas[source])
        return block * BLOCK + int(np.flatnonzero(self._block(block)[0] == source)[rank])


def open_mix(
    mix: Mapping[str, float],
    *,
    split: str = "train",
    objective: str | Objective,
    sequence: int,
    seed: int,
    document_mask: bool = True,
    special: SpecialTokens,
    verify: Verify = "hash",
    window: int = WINDOW,
    cache: Cache | None = None,
) -> Mix:
    """Open corpora (folder or URL -> weight, in tokens) and check that they can be trained on together.

    Every shard's size is compared with the manifest now; `verify="hash"` also hashes each shard when it is first
    touched. `window` is how many shards are shuffled together: the memory of the order, and part of what it depends on.
    `cache` is where shards from elsewhere are kept.
    """
    task = objective_of(objective) if isinstance(objective, str) else objective
    if not mix:
        raise UserError("data.mix is empty: name at least one corpus folder and its weight.")
    task.check(special, sequence)
    corpora = {name: Corpus.open(name, cache) for name in mix}
    _refuse_doubles(corpora)
    _refuse_mixed_tokenizers(corpora, special)
    if verify != "none":
        for corpus in corpora.values():
            corpus.check(split, "size")
    orders: list[Order] = []
    for corpus in corpora.values():
        if task.unit == "pair":
            length = task.raw_length(sequence)
            orders.append(PairOrder(corpus, split, length=length, seed=seed, verify=verify, window=window))
        else:
            cut = task.cut(sequence, document_mask)
            words = "words" in task.annotations
            orders.append(StreamOrder(corpus, split, cut=cut, words=words, seed=seed, verify=verify, window=window))
    return Mix(
        list(corpora),
        orders,
        list(mix.values()),
        objective=task,
        sequence=sequence,
        seed=seed,
        document_mask=document_mask,
        special=special,
    )


def _refuse_doubles(corpora: Mapping[str, Corpus]) -> None:
    seen: dict[str, str] = {}
    for name, corpus in corpora.items():
        if (other := seen.setdefault(corpus.manifest.id, name)) != name:
            raise UserError(f"data.mix names one corpus twice, as {other} and as {name}: keep one and add the weights.")


def _refuse_mixed_tokenizers(corpora: Mapping[str, Corpus], special: SpecialTokens) -> None:
    first, *others = corpora.items()
    for name, corpus in others:
        if corpus.manifest.tokenizer["fingerprint"] != first[1].manifest.tokenizer["fingerprint"]:
            raise UserError(
                f"data.mix: {first[0]} and {name} were made with different tokenizers: build one of them again with "
                "the tokenizer of the other."
            )
    for name, corpus in corpora.items():
        if (ids := corpus.manifest.tokenizer["vocabulary"]) > special.size:
            raise UserError(
                f"data.mix: {name} was made with a tokenizer of {ids:,} ids, more than the {special.size:,} of the "
                "tokenizer in use: use the tokenizer in the corpus folder."
            )


def _quotas(names: list[str], orders: list[Order], weights: list[float]) -> list[int]:
    """Samples of each corpus in a block; weights count tokens, so a corpus of shorter samples gives more of them."""
    per_sample = [order.corpus.split(order.split).tokens / order.per_epoch for order in orders]
    shares = np.array(weights, dtype=float) / per_sample
    if not (np.isfinite(shares).all() and (shares > 0).all()):
        raise UserError(f"data.mix: weights must be positive numbers, not {weights}.")
    exact = shares / shares.sum() * BLOCK
    quotas = np.floor(exact).astype(int)
    # What rounding down left over goes to those it cut most.
    quotas[np.argsort(quotas - exact, kind="stable")[: BLOCK - quotas.sum()]] += 1
    for name, quota in zip(names, quotas.tolist(), strict=True):
        if not quota:
            raise UserError(
                f"data.mix: the weight of {name} is below one sample in {BLOCK:,}: raise it or leave it out."
            )
    return quotas.tolist()
