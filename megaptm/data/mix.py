"""Weighted corpora as one infinite sequence of samples. Each sample is a pure function of its index."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from megaptm.batch import BatchSpec
from megaptm.batch_schedule import BatchSchedule
from megaptm.data.lru import LRUCache
from megaptm.data.order import Order
from megaptm.data.seeds import seeded_generator
from megaptm.errors import UserError
from megaptm.objectives import Task
from megaptm.objectives.composed import StepValue
from megaptm.objectives.objective import BaseObjective, Sample, SampleContext, has_plugin
from megaptm.objectives.vocabulary import SpecialTokens
from megaptm.plugins import is_builtin, plugin_error

BLOCK = 100_000
"""Number of samples per block of a mix. Each corpus has exactly its share of each block, so weights are rounded to
multiples of 1 / BLOCK."""


RAMP_STAGES = 100
"""Number of equal stages in which weights of corpora move linearly."""


@dataclass(frozen=True)
class SamplePosition:
    """Corpus, epoch and position of a sample."""

    source: int
    epoch: int
    position: int


@dataclass(frozen=True)
class MixSource:
    """Corpus read by one task of the objective: its samples, epoch after epoch."""

    name: str
    corpus: str
    order: Order
    weight: StepValue
    """Weight of the corpus, in tokens, by step."""
    task: Task
    max_epochs: float | None = None
    """Maximum number of epochs that are read; None: no limit."""

    def __post_init__(self) -> None:
        if self.max_epochs is not None and self.limit < 1:
            raise UserError(
                f"data.mix: max_epochs ({self.max_epochs:g}) of {self.name} is less than one of its "
                f"{self.order.per_epoch:,} samples: raise it, or remove the corpus."
            )

    @property
    def limit(self) -> float:
        """Return the maximum number of samples that are read."""
        return math.inf if self.max_epochs is None else int(self.max_epochs * self.order.per_epoch)

    @property
    def key(self) -> str:
        """Return the id of the corpus, with the task if there are several: the same wherever the corpus is."""
        return self.order.corpus.manifest.id + self.name.removeprefix(self.corpus)


@dataclass(frozen=True)
class MixPhase:
    """Phase of a mix: consecutive samples, from `first` on, in which the shares of the corpora are constant."""

    step: int
    """Step whose shares of tasks apply."""
    first: int
    quotas: list[int]
    """Number of samples of each source per block."""
    before: list[int]
    """Number of samples of each source before `first`."""


@dataclass(frozen=True)
class ReadCursors:
    """Read position at which a mix continues that of another config, so that no text is repeated or skipped."""

    step: int
    """Step at which the mix starts."""
    sample: int
    """Index of its first sample."""
    read: Mapping[str, tuple[int, int]]
    """`MixSource.key` -> number of its samples read before, and number of its samples per epoch at that time. An absent
    source starts from the beginning."""

    def samples_read(self, key: str, per_epoch: int) -> int:
        """Return the number of samples of a source that count as read, if it has `per_epoch` of them now. With another
        number, as for longer sequences, the share of the epoch that was read stays the same."""
        read, before = self.read.get(key, (0, per_epoch))
        epoch, position = divmod(read, before)
        return epoch * per_epoch + position * per_epoch // before


class SampleSource(Protocol):
    """Interface of samples by index, as data loaders read them."""

    @property
    def batch_spec(self) -> BatchSpec:
        """Return the specification of the fields of every sample."""

    def sample(self, index: int) -> Sample:
        """Return a sample of the source by its index."""

    def fresh_batches(self, batch: int) -> int:
        """Return the number of batches before text repeats."""


class Mix:
    """Mix of corpora as an infinite sequence: `mix.sample(i)` for i = 0, 1, 2 ... The epochs of a source follow each
    other."""

    block = BLOCK
    """Samples per block. Each source has exactly its share of every block."""
    phase_multiple = 1
    """A corpus that was read `max_epochs` times ends at a multiple of this number of samples."""

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
        start: ReadCursors | None = None,
    ):
        """Create the mix. `schedule` maps steps to samples, for shares that change by step. Without it, the shares of
        `last_step` apply, or the last ones. After `dupe_factor` epochs, the sequences of the first epoch repeat with
        the same noise. With `start`, samples before its own do not exist."""
        self.sources = sources
        self.names = [source.name for source in sources]
        self.orders = [source.order for source in sources]
        self.objective = objective
        self.sequence = sequence
        self.seed = seed
        self.document_mask = document_mask
        self.special = special
        self.dupe_factor = dupe_factor
        self._batch_spec = objective.batch_spec(sequence, document_mask)
        self._source_specs = [source.task.objective.batch_spec(sequence, document_mask) for source in sources]
        """Batch specification of each source. Samples are then widened to the specification of the objective."""
        self.phases: list[MixPhase] = []
        self._salt = () if start is None else (start.step,)
        """Key of the assignment of samples to sources, which differs between mixes of a run."""
        self._ended: set[int] = set()
        """Sources that were read `max_epochs` times, at the end of the last phase."""
        self.end: float = math.inf
        """Number of samples of the mix; infinite unless all corpora of a task have `max_epochs`."""
        self._block: LRUCache[tuple[int, int], tuple[np.ndarray, np.ndarray]] = LRUCache(self._assign_block, 2)
        steps = sorted({step for source in sources for step in (*source.task.share.steps, *source.weight.steps)})
        if not schedule:
            steps = [step for step in steps if last_step is None or step <= last_step][-1:]
        if start is not None:
            before = [start.samples_read(source.key, source.order.per_epoch) for source in sources]
            self._start_phase(start.step, start.sample, before)
            steps = [step for step in steps if step > start.step]
        for step in steps:
            first = schedule.first_sample(step) if schedule and step else 0
            self._end_corpora(first)
            before = [*self.cursors(first).values()] if self.phases else [0] * len(sources)
            self._start_phase(step, first, before)
        self._end_corpora(math.inf)

    @property
    def quotas(self) -> list[int]:
        """Return the number of samples of each source per block in the last phase of the mix."""
        return self.phases[-1].quotas

    @property
    def fingerprint(self) -> str:
        """Return the fingerprint of the tokenizer of all corpora of the mix."""
        return self.orders[0].corpus.manifest.tokenizer["fingerprint"]

    @property
    def corpora(self) -> dict[str, str]:
        """Return the ids of the mix's corpora: name -> id of the manifest. With the seed, they determine the order of
        samples."""
        return {source.corpus: source.order.corpus.manifest.id for source in self.sources}

    @property
    def batch_spec(self) -> BatchSpec:
        """Return the specification of every sample of the mix, or of the union of the tasks' samples."""
        return self._batch_spec

    @property
    def losses(self) -> list[str]:
        """Return the losses of the tasks whose share is not 0 in the last phase of the mix."""
        active = (source.task.objective for source, quota in zip(self.sources, self.quotas, strict=True) if quota)
        losses = {loss for task in active for loss in task.losses}
        return [loss for loss in self.objective.losses if loss in losses]

    @property
    def fresh_samples(self) -> int:
        """Return the number of samples of the mix before text repeats, that is, before the first corpus starts its
        second epoch."""
        return self.samples_in(1)

    def samples_in(self, epochs: int) -> int:
        """Return the number of samples of the mix before the first that reads any text more than `epochs` times."""
        last = self.phases[-1]
        ends = [
            self._index_in_mix(source, epochs * order.per_epoch)
            for source, order in enumerate(self.orders)
            if last.quotas[source] or last.before[source] > epochs * order.per_epoch
        ]
        return int(min([*ends, self.end]))

    def epochs_started(self, sample: int) -> dict[str, int]:
        """Return how often each corpus of the mix was started by the samples before `sample`."""
        per_epoch = [order.per_epoch for order in self.orders]
        cursors = self.cursors(sample).items()
        return {name: -(-cursor // size) for (name, cursor), size in zip(cursors, per_epoch, strict=True)}

    def fresh_batches(self, batch: int) -> int:
        """Return the number of full batches of the mix before text repeats. Raises `UserError` if there is none."""
        if batch > self.fresh_samples:
            split = self.orders[0].split
            option = " (validation=0.1 overwrite=true)" if split == "validation" else ""
            raise UserError(
                f"the {split} split has {self.fresh_samples} sequences of {self.sequence} tokens, less than one batch "
                f"of {batch}: build the corpus with a larger {split} split{option}, or lower train.batch."
            )
        return self.fresh_samples // batch

    def samples_read(self, sample: int) -> dict[str, tuple[int, int]]:
        """Return for each source of the mix, by key, the number of samples before `sample`, and of samples per
        epoch."""
        sources = zip(self.sources, self.cursors(sample).values(), strict=True)
        return {source.key: (cursor, source.order.per_epoch) for source, cursor in sources}

    def sample(self, index: int) -> Sample:
        """Return sample `index` (0 or more) of the mix: the fields of `batch_spec`, without batch axis.

        Raises `UserError` with the index of the sample if a user's objective fails, or if a file of a document is
        damaged.
        """
        located = self.locate(index)
        source = self.sources[located.source]
        task = source.task.objective
        epoch, key = located.epoch, [index]
        if self.dupe_factor:  # with `dupe_factor`, samples are seeded by their source and position, so that they repeat
            epoch, key = located.epoch % self.dupe_factor, [located.source, located.position]
        piece = source.order.piece(epoch, located.position)
        rng: Any = seeded_generator(self.seed, task.name, epoch, *key) if task.uses_rng else None
        try:
            sample = task.make_sample(piece, SampleContext(self.special, rng, self.sequence, self.document_mask))
            self._source_specs[located.source].check(sample, maker=task.name)
        except (Exception, SystemExit) as error:
            if type(error) is UserError and task.blobs:  # files are decoded only here
                raise UserError(f"sample {index:,}, of {source.name}: {error}") from None
            if is_builtin(type(error)) or not has_plugin(task):
                raise
            raise plugin_error(f"sample {index:,}, of {source.name}: objective {task.name}", error) from error
        if task is self.objective:
            return sample
        return self._sample_spec(located.source).pad_sample(source.task.with_task_id(sample), pad=self.special.pad)

    def _sample_spec(self, source: int) -> BatchSpec:
        """Return the specification of the samples of a source of the mix."""
        return self._batch_spec

    def locate(self, sample: int) -> SamplePosition:
        """Locate a sample of the mix: return source, epoch and position."""
        if sample >= self.end:
            raise UserError(f"sample {sample:,}: data.mix has {self.end:,} samples: raise max_epochs, or add corpora.")
        index, phase, block, at = self._find_block(sample)
        source, rank = (int(table[at]) for table in self._block((index, block)))
        cursor = phase.before[source] + block * phase.quotas[source] + rank
        epoch, position = divmod(cursor, self.orders[source].per_epoch)
        return SamplePosition(source, epoch, position)

    def cursors(self, sample: int) -> dict[str, int]:
        """Return the number of samples of each source of the mix before sample `sample`: the read position of a run
        that stopped there."""
        index, phase, block, at = self._find_block(sample)
        started = np.bincount(self._block((index, block))[0][:at], minlength=len(self.names)).tolist()
        counted = zip(self.names, phase.before, phase.quotas, started, strict=True)
        return {name: before + block * quota + here for name, before, quota, here in counted}

    def _find_block(self, sample: int) -> tuple[int, MixPhase, int, int]:
        """Return index and phase of a sample of the mix, its block in the phase, and its position in the block."""
        index = bisect_right(self.phases, sample, key=lambda phase: phase.first) - 1
        phase = self.phases[index]
        return index, phase, *divmod(sample - phase.first, self.block)

    def _assign_block(self, key: tuple[int, int]) -> tuple[np.ndarray, np.ndarray]:
        """Return for each sample of a block of the mix its source, and the number of the source's earlier samples in
        the block."""
        index, block = key
        quotas = self.phases[index].quotas
        unshuffled = np.repeat(np.arange(len(quotas)), quotas)
        source = seeded_generator(self.seed, "mix", *self._salt, *((index,) if index else ()), block).permutation(
            unshuffled
        )
        return source, ranks_in_source(source, quotas)

    def _index_in_mix(self, source: int, cursor: int) -> int:
        """Return the index in the mix of sample `cursor` of a source, which must exist."""
        if cursor < self.phases[0].before[source]:  # read under an earlier config
            return self.phases[0].first
        index = bisect_right(self.phases, cursor, key=lambda phase: phase.before[source]) - 1
        phase = self.phases[index]
        block, rank = divmod(cursor - phase.before[source], phase.quotas[source])
        return phase.first + block * self.block + int(np.flatnonzero(self._block((index, block))[0] == source)[rank])

    def _start_phase(self, step: int, first: int, before: list[int]) -> None:
        """Start a phase with the shares of a step, or end the mix if a task has no corpus left."""
        if first >= self.end:
            return
        self._ended |= {source for source, read in enumerate(before) if read >= self.sources[source].limit}
        left = {
            source.task.label
            for number, source in enumerate(self.sources)
            if number not in self._ended and source.weight.at(step)
        }
        ended = {self.sources[number].task.label for number in self._ended} - left
        if any(share and label in ended for label, share in task_shares(self.sources, step).items()):
            if not self.phases:
                raise UserError("data.mix: all corpora of a task were read max_epochs times: raise it, or add corpora.")
            self.end = first
        else:
            self.phases.append(MixPhase(step, first, self._quotas(step), before))

    def _end_corpora(self, until: float) -> None:
        """Start a phase at each sample before `until` at which a corpus was read `max_epochs` times. The other corpora
        take its share."""
        while self.phases and self.end == math.inf:
            phase, multiple = self.phases[-1], self.phase_multiple
            ends = {
                source: max(phase.first, self._index_in_mix(source, int(limit)) // multiple * multiple)
                for source, limit in enumerate(source.limit for source in self.sources)
                if limit < math.inf and phase.quotas[source] and source not in self._ended
            }
            if (first := min(ends.values(), default=math.inf)) >= until:
                return
            self._ended |= {source for source, end in ends.items() if end == first}
            self._start_phase(phase.step, int(first), [*self.cursors(int(first)).values()])

    def _quotas(self, step: int) -> list[int]:
        """Return the number of samples of each source per block, from a step on.

        Shares of tasks count samples. Weights of corpora count tokens within a task: a corpus with shorter samples
        gives more of them.
        """
        shares = self._corpus_shares(step)
        if len(tasks := task_shares(self.sources, step)) > 1:
            for label, share in tasks.items():
                own = np.array([source.task.label == label for source in self.sources])
                if share and not shares[own].any():
                    raise UserError(
                        f"data.mix: all corpora of objective.{label} have weight 0 after step {step:,}: give one a "
                        "weight in data.mix_ramp, or the task a share of 0 until then."
                    )
                shares[own] *= share / (shares[own].sum() or 1.0)
        quotas = divide_by_shares(shares, self.block)
        for source, quota, share in zip(self.sources, quotas, shares, strict=True):
            if share and not quota and len(source.weight.steps) == 1:
                label = source.task.label if len(tasks) > 1 else ""
                setting = f"objective.{label}.share, of {source.corpus}," if label else f"the weight of {source.name}"
                raise UserError(f"data.mix: {setting} is less than one sample in {BLOCK:,}: raise it, or remove it.")
        return quotas

    def _corpus_shares(self, step: int) -> np.ndarray:
        """Return the relative number of samples of each source within its task, from a step on; 0 for those that have
        ended."""
        shares = corpus_shares(self.sources, step)
        shares[[*self._ended]] = 0.0
        return shares


def task_shares(sources: Sequence[MixSource], step: int) -> dict[str, float]:
    """Return the share of each task in a mix by label, from a step on."""
    return {source.task.label: source.task.share.at(step) for source in sources}


def linear_weight(initial: float, final: float, begin: int, end: int) -> StepValue:
    """Return a weight that is `initial` at step `begin`, `final` from step `end` on, and in between the mean of each of
    a hundred equal stages."""
    stages = min(RAMP_STAGES, end - begin)
    steps = [begin + (end - begin) * stage // stages for stage in range(stages)]
    values = [initial + (final - initial) * (stage + 0.5) / stages for stage in range(stages)]
    before = [(0, initial)] if begin else []
    pairs = [*before, *zip(steps, values, strict=True), (end, final)]
    return StepValue(tuple(step for step, _ in pairs), tuple(value for _, value in pairs))


def corpus_shares(sources: Sequence[MixSource], step: int) -> np.ndarray:
    """Return the relative number of samples of each source of a mix within its task, from a step on."""
    per_sample = [int(source.order.shards.table_column("tokens").sum()) / source.order.per_epoch for source in sources]
    weights = [source.weight.at(step) for source in sources]
    shares: np.ndarray = np.array(weights, dtype=float) / per_sample
    may_vanish = np.array([len(source.weight.steps) > 1 for source in sources])
    if not (np.isfinite(shares) & ((shares > 0) | (may_vanish & (shares == 0)))).all():
        raise UserError(f"data.mix: weights must be positive numbers, not {weights}.")
    return shares


def divide_by_shares(shares: np.ndarray, number: int) -> list[int]:
    """Divide `number` samples of a mix by the shares of their sources. The remainder goes to the shares that were
    rounded down most."""
    exact = shares / shares.sum() * number
    assigned = np.floor(exact).astype(int)
    assigned[np.argsort(assigned - exact, kind="stable")[: number - assigned.sum()]] += 1
    return assigned.tolist()


def ranks_in_source(source: np.ndarray, quotas: Sequence[int]) -> np.ndarray:
    """Return int64: for each sample of a mix, the number of earlier samples of its source."""
    rank = np.empty(len(source), dtype=np.int64)
    rank[np.argsort(source, kind="stable")] = np.concatenate([np.arange(quota) for quota in quotas])
    return rank
