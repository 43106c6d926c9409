"""Training engine of NNLM and C&W networks: plain torch, replicated on data ranks."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor

from megaptm.checkpoint.tensors import TensorPiece, TensorReader
from megaptm.config import Config
from megaptm.errors import UserError
from megaptm.families.words import WordSpec
from megaptm.objectives.ranking import WindowRanking
from megaptm.parallel.groups import Ranks, device, open_groups
from megaptm.parallel.step_result import REMEDY, DivergedError, NothingAskedError, StepResult
from megaptm.run.corpora import RunCorpora
from megaptm.words.network_windows import AskedWindows, judged_windows, next_words, outside_of, tagged_words
from megaptm.words.networks import build_network
from megaptm.words.vocabulary import COUNTS, read_counts, words_of

WINDOWS = 4096
"""Windows per forward pass."""


class NetworkEngine:
    """Network replicated on each data rank. Each rank processes the windows of its sequences, and gradients are summed.

    The weights follow the gradient of the mean over all windows of a step.
    """

    def __init__(self, spec: WordSpec, config: Config, corpora: RunCorpora, *, timeout_minutes: float = 30.0) -> None:
        self.spec, self.config, self.corpora, self.task = spec, config, corpora, config.built_objective
        self.losses: dict[str, float] = dict(self.task.losses)
        self.ranks: Ranks = open_groups(config.layout, timeout_minutes=timeout_minutes)
        self.network = build_network(spec).to(device())
        self.counts = np.zeros(0, np.int64)
        self._outside = outside_of(corpora.tokenizer.special)
        self._unknown = self._outside if corpora.tokenizer.unknown is None else corpora.tokenizer.unknown
        self._words = self._dictionary = torch.zeros(0, dtype=torch.int64)
        """Word ids, most frequent first; and those of the step's dictionary."""

    def weigh(self, weights: Mapping[str, float]) -> None:
        """Change the weight of the loss, starting with the next step."""
        self.losses = {name: weights[name] for name in self.losses}

    def fill(self) -> None:
        """Count the words of the corpora and set the initial weights."""
        counts = self.corpora.word_counts(self.spec.vocabulary, self.ranks.data, self.ranks.data_size, _summed)
        self._know(counts, step=0)
        self.network.fill(self.config.train.seed, self.spec.family.initial)

    def pieces(self) -> Iterator[TensorPiece]:
        """Yield this rank's share of the rows; all ranks have the same values."""
        tensors = {f"weight/{name}": parameter.detach() for name, parameter in self.network.named_parameters()}
        for name, tensor in {**tensors, COUNTS: torch.from_numpy(self.counts)}.items():
            first, last = (
                len(tensor) * place // self.ranks.data_size for place in (self.ranks.data, self.ranks.data + 1)
            )
            if first < last:
                mine = tensor[first:last]
                at = (first, *(0,) * (tensor.ndim - 1))
                yield TensorPiece(name, tuple(tensor.shape), at, tuple(mine.shape), mine)

    def restore(self, reader: TensorReader, *, step: int) -> None:
        self._know(read_counts(reader, self.spec.vocabulary), step=step)
        with torch.no_grad():
            for name, parameter in self.network.named_parameters():
                parameter.copy_(reader.read(f"weight/{name}"))

    def step(self, microbatches: list[Any] | None, *, step: int, lr: float) -> StepResult:
        """Train on this rank's sequences. Raise DivergedError on every process, before any update, if a value is not
        finite."""
        assert microbatches is not None
        self._at(step)
        asked = [self._asked(batch) for batch in microbatches]
        numbers = self._numbers(asked)
        if not any(numbers.values()):
            raise NothingAskedError(f"step {step + 1} has no window that is asked about: give longer rows.")
        self.network.zero_grad(set_to_none=True)
        scales = {name: self.losses[name] / max(number, 1.0) for name, number in numbers.items()}
        result = self._result(self._sums(asked, scales), numbers)
        gradients = self._gradients()
        norm = math.sqrt(sum(float(one.double().square().sum()) for one in gradients))
        if not (math.isfinite(result.loss) and math.isfinite(norm)):
            raise DivergedError(
                f"step {step + 1} has a loss of {result.loss} and a gradient of {norm} and was not saved: {REMEDY}"
            )
        self._move(gradients, norm, lr)
        return StepResult(result.losses, result.loss, norm, result.counts)

    @torch.no_grad()
    def evaluate(self, microbatches: list[Any] | None) -> StepResult:
        assert microbatches is not None
        asked = [self._asked(batch) for batch in microbatches]
        return self._result(self._sums(asked, None), self._numbers(asked))

    def _know(self, counts: np.ndarray, *, step: int) -> None:
        self.counts = counts
        words = words_of(counts, self.corpora.tokenizer.special.specials, 1)
        if len(words) < 2:
            raise UserError(
                f"{self.spec.name} tells words from each other, and the corpora have {len(words)}: give more."
            )
        self._words = torch.from_numpy(words).to(device())
        self._at(max(step - 1, 0))

    def _at(self, step: int) -> None:
        """Set the dictionary of a step."""
        words = self.task.words(step) if isinstance(self.task, WindowRanking) else None
        self._dictionary = self._words[:words]

    def _asked(self, batch: dict[str, Tensor]) -> dict[str, AskedWindows]:
        """Return loss -> windows and labels."""
        batch = {name: value.to(device()) for name, value in batch.items()}
        if not isinstance(self.task, WindowRanking):
            return {"lm": next_words(batch, self.spec, self._outside)}
        known = self._dictionary, self._unknown
        asked = {"ranking": judged_windows(batch, self.spec, self._outside, *known)}
        return asked | ({"tags": tagged_words(batch, self._outside, *known)} if self.task.tags else {})

    def _numbers(self, asked: list[dict[str, AskedWindows]]) -> dict[str, float]:
        """Return loss -> number of windows of all ranks."""
        mine = [float(sum(len(one[name][1]) for one in asked)) for name in self.losses]
        return dict(zip(self.losses, self._total(mine), strict=True))

    def _sums(self, asked: list[dict[str, AskedWindows]], scales: Mapping[str, float] | None) -> dict[str, float]:
        """Return the summed losses of this rank's windows. With `scales`, add their gradients times these to the
        weights' gradients."""
        totals = dict.fromkeys(self.losses, 0.0)
        for name, (windows, answers) in ((name, one) for batch in asked for name, one in batch.items()):
            for some, theirs in zip(windows.split(WINDOWS), answers.split(WINDOWS), strict=True):
                loss = self.network.losses[name](some, theirs)
                if scales is not None:
                    (loss * scales[name]).backward()
                totals[name] += float(loss.detach())
        return totals

    def _gradients(self) -> list[Tensor]:
        """Return the gradients summed over ranks."""
        found = [torch.zeros_like(one) if one.grad is None else one.grad for one in self.network.parameters()]
        if self.ranks.data_size > 1:
            flat = torch.cat([one.flatten() for one in found])
            dist.all_reduce(flat)
            found = [
                part.view_as(one) for part, one in zip(flat.split([one.numel() for one in found]), found, strict=True)
            ]
        return found

    @torch.no_grad()
    def _move(self, gradients: list[Tensor], norm: float, lr: float) -> None:
        """Update the weights by the clipped gradient and weight decay."""
        optimizer = self.config.optimizer
        clipped = 1.0 if optimizer.clip is None else min(1.0, optimizer.clip / max(norm, 1e-12))
        for parameter, gradient in zip(self.network.parameters(), gradients, strict=True):
            if parameter.ndim > 1 or optimizer.weight_decay_on == "all":
                parameter.mul_(1.0 - lr * optimizer.weight_decay)
            parameter.add_(gradient, alpha=-lr * clipped)

    def _total(self, numbers: list[float]) -> list[float]:
        """Return the sums over all ranks."""
        if self.ranks.data_size == 1:
            return numbers
        sums = torch.tensor(numbers, dtype=torch.float64, device=device())
        dist.all_reduce(sums)
        return sums.tolist()

    def _result(self, mine: Mapping[str, float], numbers: Mapping[str, float]) -> StepResult:
        totals = dict(zip(self.losses, self._total([mine[name] for name in self.losses]), strict=True))
        means = {name: total / max(numbers[name], 1.0) for name, total in totals.items()}
        loss = sum(weight * means[name] for name, weight in self.losses.items())
        return StepResult(means, loss, None, {name: int(number) for name, number in numbers.items()})


def _summed(numbers: np.ndarray) -> np.ndarray:
    sums = torch.from_numpy(numbers).to(device())
    dist.all_reduce(sums)
    return sums.cpu().numpy()
