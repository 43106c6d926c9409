"""Weighted corpora as one endless sequence of samples, each a pure function of its number."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from megaptm.batch import BatchSpec
from megaptm.batch_schedule import BatchSchedule
from megaptm.data.lru import LRUCache
from megaptm.data.order import Order
from megaptm.data.seeds import generator
from megaptm.errors import UserError
from megaptm.objectives import Task
from megaptm.objectives.objective import BaseObjective, Sample, SampleContext, has_plugin
from megaptm.objectives.vocabulary import SpecialTokens
from megaptm.plugins import is_ours, plugin_error

BLOCK = 100_000
"""Samples among which each corpus has exactly its share; weights are honored to one in this many."""


@dataclass(frozen=True)
class SamplePosition:
    """Where a sample comes from."""

    source: int
    epoch: int
    position: int


@dataclass(frozen=True)
class MixSource:
    """A corpus as one task of the objective reads it: its samples, epoch after epoch."""

    name: str
    corpus: str
    order: Order
    weight: float
    """Of the corpus, in tokens."""
    task: Task


@dataclass(frozen=True)
class Phase:
    """Samples from one on that are dealt by the same shares."""

    first: int
    quotas: list[int]
    """Samples of each source in a block."""
    before: list[int]
    """Samples of each source before the first."""


class Mix:
    """`mix.sample(i)` for i = 0, 1, 2 ... without end: the next epoch of a source follows its last."""

    block = BLOCK
    """Samples among which each source has exactly its share."""

    def __init__(
        self,
        sources: Sequence[MixSource],
        *,
        objective: BaseObjective,
        sequence: int,
        seed: int,
        document_mask: bool,
        special: SpecialTokens,
        schedule: BatchSchedule | None = None,
        dupe_factor: int | None = None,
        last_step: int | None = None,
    ):
        """`schedule` says which sample a step begins with, where shares change by step; absent: those of `last_step`
        hold, or the last ones.
        After `dupe_factor` epochs the rows of the first come again, noise included."""
        self.sources = sources
        self.names = [source.name for source in sources]
        self.orders = [source.order for source in sources]
        self.objective = objective
        self.sequence = sequence
        self.seed = seed
        self.document_mask = document_mask
        self.special = special
        self.dupe_factor = dupe_factor
        self._batch = objective.batch(sequence, document_mask)
        self._made = [source.task.objective.batch(sequence, document_mask) for source in sources]
        """What each source's samples hold, before they are widened."""
        self.phases: list[Phase] = []
        self._block: LRUCache[tuple[int, int], tuple[np.ndarray, np.ndarray]] = LRUCache(self._deal, 2)
        steps = sorted({step for source in sources for step in source.task.share.steps})
        if not schedule:
            steps = [step for step in steps if last_step is None or step <= last_step][-1:]
        for step in steps:
            first = schedule.first(step) if schedule and step else 0
            before = [*self.cursors(first).values()] if self.phases else [0] * len(sources)
            self.phases.append(Phase(first, self._quotas(step), before))

    @property
    def quotas(self) -> list[int]:
        """Samples of each source in a block, in the end."""
        return self.phases[-1].quotas

    @property
    def fingerprint(self) -> str:
        """Of the tokenizer that all corpora were made with."""
        return self.orders[0].corpus.manifest.tokenizer["fingerprint"]

    @property
    def corpora(self) -> dict[str, str]:
        """Name -> id of each corpus's manifest: with the seed, all that the order of samples follows from."""
        return {source.corpus: source.order.corpus.manifest.id for source in self.sources}

    @property
    def batch(self) -> BatchSpec:
        """What every sample holds, or those of some tasks."""
        return self._batch

    @property
    def losses(self) -> list[str]:
        """What its samples are asked in the end: not by tasks whose share is 0 then."""
        asking = (source.task.objective for source, quota in zip(self.sources, self.quotas, strict=True) if quota)
        asked = {loss for task in asking for loss in task.losses}
        return [loss for loss in self.objective.losses if loss in asked]

    @property
    def fresh_samples(self) -> int:
        """Samples before the first repeats text, which is when the first corpus begins its second epoch."""
        return self.samples_in(1)

    def samples_in(self, epochs: int) -> int:
        """Samples before the first that reads any text for more than so many times."""
        last = self.phases[-1]
        return min(
            self._number(source, epochs * order.per_epoch)
            for source, order in enumerate(self.orders)
            if last.quotas[source] or last.before[source] > epochs * order.per_epoch
        )

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
        """Sample `number`, 0 or more: the fields of `batch`, one array each without a batch's axis.

        A `UserError` names the sample where an objective of the user's fails, or a file beside a document is damaged.
        """
        place = self.locate(number)
        source = self.sources[place.source]
        task = source.task.objective
        epoch, drawn_for = place.epoch, [number]
        if self.dupe_factor:  # no number comes twice, but these do
            epoch, drawn_for = place.epoch % self.dupe_factor, [place.source, place.position]
        piece = source.order.piece(epoch, place.position)
        rng: Any = generator(self.seed, task.name, epoch, *drawn_for) if task.draws else None
        try:
            sample = task.make(piece, SampleContext(self.special, rng, self.sequence, self.document_mask))
            self._made[place.source].check(sample, maker=task.name)
        except (Exception, SystemExit) as error:
            if type(error) is UserError and task.blobs:  # only now is a file decoded
                raise UserError(f"sample {number:,}, of {source.name}: {error}") from None
            if is_ours(type(error)) or not has_plugin(task):
                raise
            raise plugin_error(f"sample {number:,}, of {source.name}: objective {task.name}", error) from error
        if task is self.objective:
            return sample
        return self._sample_spec(place.source).widened(source.task.with_task_id(sample), pad=self.special.pad)

    def _sample_spec(self, source: int) -> BatchSpec:
        """What a sample of a source holds."""
        return self._batch

    def locate(self, number: int) -> SamplePosition:
        """Which corpus, epoch and position sample `number` comes from."""
        index, phase, block, at = self._find(number)
        source, rank = (int(table[at]) for table in self._block((index, block)))
        cursor = phase.before[source] + block * phase.quotas[source] + rank
        epoch, position = divmod(cursor, self.orders[source].per_epoch)
        return SamplePosition(source, epoch, position)

    def cursors(self, number: int) -> dict[str, int]:
        """How many samples of each source come before sample `number`: where a run that stopped there stands."""
        index, phase, block, at = self._find(number)
        begun = np.bincount(self._block((index, block))[0][:at], minlength=len(self.names)).tolist()
        counted = zip(self.names, phase.before, phase.quotas, begun, strict=True)
        return {name: before + block * quota + here for name, before, quota, here in counted}

    def _find(self, number: int) -> tuple[int, Phase, int, int]:
        """The phase of a sample, by number and itself; its block in there, and its place in that."""
        index = bisect_right(self.phases, number, key=lambda phase: phase.first) - 1
        phase = self.phases[index]
        return index, phase, *divmod(number - phase.first, self.block)

    def _deal(self, key: tuple[int, int]) -> tuple[np.ndarray, np.ndarray]:
        """For each sample of a block: its source, and how many of that source come before it in the block."""
        index, block = key
        quotas = self.phases[index].quotas
        dealt = np.repeat(np.arange(len(quotas)), quotas)
        source = generator(self.seed, "mix", *((index,) if index else ()), block).permutation(dealt)
        return source, ranks(source, quotas)

    def _number(self, source: int, cursor: int) -> int:
        """The number of a source's sample `cursor` in the mix; there must be one."""
        index = bisect_right(self.phases, cursor, key=lambda phase: phase.before[source]) - 1
        phase = self.phases[index]
        block, rank = divmod(cursor - phase.before[source], phase.quotas[source])
        return phase.first + block * self.block + int(np.flatnonzero(self._block((index, block))[0] == source)[rank])

    def _quotas(self, step: int) -> list[int]:
        """Samples of each source in a block, from a step on. A task's share counts samples; weights of corpora count
        tokens: of those that a task reads, one of shorter samples gives more."""
        shares = corpus_shares(self.sources)
        if len(tasks := task_shares(self.sources, step)) > 1:
            for label, share in tasks.items():
                own = np.array([source.task.label == label for source in self.sources])
                shares[own] *= share / shares[own].sum()
        quotas = rounded(shares, self.block)
        for source, quota, share in zip(self.sources, quotas, shares, strict=True):
            if share and not quota:
                label = source.task.label if len(tasks) > 1 else ""
                given = f"objective.{label}.share, of {source.corpus}," if label else f"the weight of {source.name}"
                raise UserError(f"data.mix: {given} is below one sample in {BLOCK:,}: raise it or leave it out.")
        return quotas


def task_shares(sources: Sequence[MixSource], step: int) -> dict[str, float]:
    """Of tasks, by label, from a step on."""
    return {source.task.label: source.task.share.at(step) for source in sources}


def corpus_shares(sources: Sequence[MixSource]) -> np.ndarray:
    """How many samples each source gives, beside others of its task."""
    per_sample = [source.order.corpus.split(source.order.split).tokens / source.order.per_epoch for source in sources]
    weights = [source.weight for source in sources]
    shares: np.ndarray = np.array(weights, dtype=float) / per_sample
    if not (np.isfinite(shares).all() and (shares > 0).all()):
        raise UserError(f"data.mix: weights must be positive numbers, not {weights}.")
    return shares


def rounded(shares: np.ndarray, number: int) -> list[int]:
    """So many things dealt by shares; what rounding down leaves over goes to those it cut most."""
    exact = shares / shares.sum() * number
    dealt = np.floor(exact).astype(int)
    dealt[np.argsort(dealt - exact, kind="stable")[: number - dealt.sum()]] += 1
    return dealt.tolist()


def ranks(source: np.ndarray, quotas: Sequence[int]) -> np.ndarray:
    """int64: of each sample, how many of its source come before it."""
    rank = np.empty(len(source), dtype=np.int64)
    rank[np.argsort(source, kind="stable")] = np.concatenate([np.arange(quota) for quota in quotas])
    return rank
