"""Training engine of GloVe: pairs are counted before the first step, and trained on the rank that holds both rows."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from megaptm.checkpoint.tensors import TensorPiece, TensorReader
from megaptm.config import Config
from megaptm.data.seeds import seeded_generator
from megaptm.errors import UserError
from megaptm.families.word_vectors import LANES, WordSpec
from megaptm.families.word_vectors.compiled.pair_kernels import train_pairs
from megaptm.families.word_vectors.engine import DIVERGED
from megaptm.families.word_vectors.glove import GloVe
from megaptm.families.word_vectors.pairs import PairCounts, Pairs, PairTable, count_pairs, units_per_count
from megaptm.families.word_vectors.sharded_table import Exchange, RotatingTable, ShardedTable
from megaptm.families.word_vectors.vocabulary import counts_piece, words_to_learn
from megaptm.parallel.groups import Ranks, open_groups
from megaptm.parallel.step_result import REMEDY, DivergedError, StepResult
from megaptm.run.corpora import RunCorpora


class PairEngine:
    """Word and context tables of GloVe on this data rank.

    Each row includes the AdaGrad sums of its values, so checkpoints contain them. A rank trains the pairs of its words,
    while contexts rotate between ranks. A step gives the same bits on any number of ranks, and each pair uses the
    result of all pairs before it.
    """

    def __init__(
        self,
        spec: WordSpec,
        config: Config,
        corpora: RunCorpora,
        *,
        timeout_minutes: float = 30.0,
    ) -> None:
        task = config.built_objective
        assert isinstance(task, GloVe)
        self.spec, self.config, self.task, self.corpora = spec, config, task, corpora
        self.losses: dict[str, float] = dict(task.losses)
        self.ranks: Ranks = open_groups(config.layout, timeout_minutes=timeout_minutes)
        self.exchange = Exchange.open(self.ranks, timeout_minutes)
        width = 2 * (spec.size.width + 1)
        self._words = ShardedTable("word", spec.vocabulary, width, self.exchange)
        self._contexts = RotatingTable("context", spec.vocabulary, width, self.exchange)
        self.counts = np.zeros(0, np.int64)
        self.pairs: PairTable
        self.held_out: PairTable
        self._share = 1.0
        """Number of tokens of the validation split per token of the training split."""

    def set_loss_weights(self, weights: Mapping[str, float]) -> None:
        """Change the weight of GloVe's loss. It does not affect updates: AdaGrad is invariant to it."""
        self.losses = {name: weights[name] for name in self.losses}

    def count_words_and_pairs(self) -> None:
        """Count words and their co-occurring pairs for GloVe. All ranks call this together."""
        exchange, corpora = self.exchange, self.corpora
        self.counts = corpora.word_counts(self.spec.vocabulary, exchange.rank, exchange.ranks, exchange.all_reduce)
        takes_part = np.zeros(self.spec.vocabulary, bool)
        takes_part[words_to_learn(self.spec, self.counts, corpora.tokenizer.special.specials, self.task)] = True
        # Scaled to as much text as the training split, or all predictions would be off by the same amount.
        self._share = corpora.tokens("validation") / corpora.tokens("train")
        counted = {
            split: count_pairs(corpora.texts(split, exchange.rank, exchange.ranks), takes_part, self.task, exchange)
            for split in ("train", "validation")
        }
        self.pairs, self.held_out = (
            self._build_table(split, pairs, share)
            for (split, pairs), share in zip(counted.items(), (1.0, self._share), strict=True)
        )
        train, epochs = self.config.train, self.config.data.epochs
        if epochs is not None and train.steps > epochs * self.pairs.steps:
            raise UserError(
                f"train.steps ({train.steps:,}) is too large: data.epochs ({epochs}) of {self.pairs.pairs:,} pairs are "
                f"{epochs * self.pairs.steps:,} steps. Lower train.steps, raise data.epochs, or remove data.epochs."
            )

    def init_weights(self) -> None:
        """Set the initial word vectors of GloVe."""
        num_weights = self.spec.size.width + 1
        for table in (self._words, self._contexts):
            seed = int(seeded_generator(self.config.train.seed, self.spec.name, table.name).integers(1 << 62))
            table.init_weights(seed, self.spec.family.init_bound / num_weights)
            table.flat[:, num_weights:] = self.config.optimizer.initial_accumulator

    def pieces(self) -> Iterator[TensorPiece]:
        yield self._words.piece()
        yield self._contexts.piece()
        if self.exchange.rank == 0:
            yield counts_piece(self.counts)

    def check_replicas(self) -> None:
        """Do nothing: the tables are sharded over data ranks, without replicas."""

    def restore(self, reader: TensorReader, *, step: int) -> None:
        self._words.restore(reader)
        self._contexts.restore(reader)

    def train_step(self, microbatches: list[Any] | None, *, step: int, lr: float) -> StepResult:
        """Train GloVe on the pairs of a step. Raise DivergedError on every process if the loss is not finite or shows
        divergence."""
        pairs = self.pairs.select(step)
        result = self._train_rounds([pairs], lr, x_max=self.task.x_max)
        untrained_loss = self._untrained_mean(pairs)
        (mean,) = result.losses.values()
        # If all pairs occur once, the loss of zero vectors is 0, and real vectors are never exactly zero: hence the 1.
        if not mean < DIVERGED * (1 + untrained_loss):
            raise DivergedError(
                f"step {step + 1} has a loss of {mean:.4g}, but untrained vectors have {untrained_loss:.4g}. "
                f"The step was not saved: {REMEDY}"
            )
        return result

    def evaluate(self, microbatches: list[Any] | None) -> StepResult:
        """Return GloVe's loss on the held-out pairs of these steps. Pairs are weighted by their unscaled count in the
        held-out text, because a pair that occurs once is little evidence."""
        assert microbatches is not None
        steps = [self.held_out.select(index) for index in microbatches]
        return self._train_rounds(steps, 0.0, x_max=self.task.x_max / self._share)

    def _train_rounds(self, steps: list[Pairs], rate: float, *, x_max: float) -> StepResult:
        """Train GloVe on all rounds of pairs of a step; return the mean weighted squared error of the pairs."""
        losses, task = np.zeros(LANES), self.task
        lanes, first = self._words.held.shape[1], self._words.first_lane
        bias_rate = task.bias_rate * rate / self.config.optimizer.lr
        for round_ in range(LANES):
            for pairs in steps:
                part = slice(*pairs.rounds[round_ : round_ + 2])
                train_pairs(
                    *(self._words.flat, self._contexts.flat, pairs.words[part], pairs.contexts[part]),
                    *(pairs.counts[part], lanes, first, round_, x_max, task.alpha, rate, bias_rate, losses),
                )
            self._contexts.rotate_lanes(round_)
        num_pairs = sum(len(pairs.words) for pairs in steps)
        sums = self.exchange.all_reduce(np.array([*losses, num_pairs], np.float64))
        ((name, weight),) = self.losses.items()
        mean = float(sums[:-1].sum()) / max(float(sums[-1]), 1.0)
        return StepResult({name: mean}, weight * mean, None, {name: int(sums[-1])})

    def _untrained_mean(self, pairs: Pairs) -> float:
        """Return GloVe's loss for zero vectors and biases, over the pairs of all ranks."""
        weights = np.minimum(1.0, (pairs.counts / self.task.x_max) ** self.task.alpha)
        local_sums = [float((weights * np.log(pairs.counts) ** 2).sum()), len(pairs.counts)]
        loss, num_pairs = self.exchange.all_reduce(np.array(local_sums)).tolist()
        return float(loss / max(num_pairs, 1.0))

    def _build_table(self, split: str, held: PairCounts, share: float) -> PairTable:
        """Return the table of a split's co-occurrence pairs, with counts divided by `share`."""
        pairs = int(self.exchange.all_gather(np.array([len(held.keys)])).sum())
        if not pairs:
            raise UserError(
                f"the {split} split has no pair of nearby words that both occur {self.task.min_count:,} times: build "
                "the corpus from more text, or lower min_count of glove."
            )
        config = self.config
        return PairTable(
            held,
            vocabulary=self.spec.vocabulary,
            unit=units_per_count(self.task) * share,
            seed=(config.train.seed, "pairs", split),
            pairs=pairs,
            per_step=config.train.batch * config.data.sequence,
        )
