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
from megaptm.families.word_vectors import WordSpec
from megaptm.families.word_vectors.network_windows import (
    LabeledWindows,
    next_words,
    outside_token,
    ranked_windows,
    tagged_words,
)
from megaptm.families.word_vectors.networks import build_network
from megaptm.families.word_vectors.ranking import WindowRanking
from megaptm.families.word_vectors.vocabulary import COUNTS, frequent_words, read_counts
from megaptm.parallel.groups import Ranks, open_groups, rank_device
from megaptm.parallel.replicas import check_replicas
from megaptm.parallel.step_result import REMEDY, DivergedError, NoLabelsError, StepResult
from megaptm.run.corpora import RunCorpora

WINDOWS = 4096
"""Number of windows per forward pass of the network."""


class NetworkEngine:
    """Training engine of a network of word vectors, which is replicated on each data rank. Each rank processes the
    windows of its sequences, and gradients are summed.

    The weights follow the gradient of the mean over all windows of a step.
    """

    def __init__(self, spec: WordSpec, config: Config, corpora: RunCorpora, *, timeout_minutes: float = 30.0) -> None:
        self.spec, self.config, self.corpora, self.task = spec, config, corpora, config.built_objective
        self.losses: dict[str, float] = dict(self.task.losses)
        self.ranks: Ranks = open_groups(config.layout, timeout_minutes=timeout_minutes)
        self.network = build_network(spec).to(rank_device())
        self.counts = np.zeros(0, np.int64)
        self._outside = outside_token(corpora.tokenizer.special)
        self._unknown = self._outside if corpora.tokenizer.unknown is None else corpora.tokenizer.unknown
        self._words = self._dictionary = torch.zeros(0, dtype=torch.int64)
        """Word ids, most frequent first, and the first of them: the dictionary of the step."""

    def set_loss_weights(self, weights: Mapping[str, float]) -> None:
        """Change the weight of the loss of NNLM or C&W, starting with the next step."""
        self.losses = {name: weights[name] for name in self.losses}

    def init_weights(self) -> None:
        """Count the words of the corpora and set the initial weights of NNLM or C&W."""
        counts = self.corpora.word_counts(
            self.spec.vocabulary, self.ranks.data, self.ranks.data_size, _all_reduce_counts
        )
        self._set_counts(counts, step=0)
        self.network.init_weights(self.config.train.seed, self.spec.family.init_bound)

    def pieces(self) -> Iterator[TensorPiece]:
        """Yield this rank's share of the rows of the weights of NNLM or C&W; all ranks have the same values."""
        tensors = {f"weight/{name}": parameter.detach() for name, parameter in self.network.named_parameters()}
        rank, ranks = self.ranks.data, self.ranks.data_size
        for name, tensor in {**tensors, COUNTS: torch.from_numpy(self.counts)}.items():
            first, last = len(tensor) * rank // ranks, len(tensor) * (rank + 1) // ranks
            if first < last:
                rows = tensor[first:last]
                offset = (first, *(0,) * (tensor.ndim - 1))
                yield TensorPiece(name, tuple(tensor.shape), offset, tuple(rows.shape), rows)

    def check_replicas(self) -> None:
        """Raise ReplicaError on every process if the weights of NNLM or C&W differ between data ranks."""
        weights = {name: parameter.detach() for name, parameter in self.network.named_parameters()}
        check_replicas(weights, weights, self.ranks)

    def restore(self, reader: TensorReader, *, step: int) -> None:
        self._set_counts(read_counts(reader, self.spec.vocabulary), step=step)
        with torch.no_grad():
            for name, parameter in self.network.named_parameters():
                parameter.copy_(reader.read(f"weight/{name}"))

    def train_step(self, microbatches: list[Any] | None, *, step: int, lr: float) -> StepResult:
        """Train NNLM or C&W on this rank's sequences. Raise DivergedError on every process, before any update, if a
        value is not finite."""
        assert microbatches is not None
        self._set_dictionary(step)
        windows = [self._windows_and_labels(batch) for batch in microbatches]
        counts = self._count_windows(windows)
        if not any(counts.values()):
            raise NoLabelsError(f"step {step + 1} has no window with a label: raise data.sequence or train.batch.")
        self.network.zero_grad(set_to_none=True)
        scales = {name: self.losses[name] / max(count, 1.0) for name, count in counts.items()}
        result = self._mean_over_ranks(self._forward_backward(windows, scales), counts)
        gradients = self._reduce_gradients()
        norm = math.sqrt(sum(float(gradient.double().square().sum()) for gradient in gradients))
        if not (math.isfinite(result.loss) and math.isfinite(norm)):
            raise DivergedError(
                f"step {step + 1} has a loss of {result.loss} and a gradient norm of {norm}. The step was not saved: "
                f"{REMEDY}"
            )
        self._update_weights(gradients, norm, lr)
        return StepResult(result.losses, result.loss, norm, result.counts)

    @torch.no_grad()
    def evaluate(self, microbatches: list[Any] | None) -> StepResult:
        assert microbatches is not None
        windows = [self._windows_and_labels(batch) for batch in microbatches]
        return self._mean_over_ranks(self._forward_backward(windows, None), self._count_windows(windows))

    def _set_counts(self, counts: np.ndarray, *, step: int) -> None:
        self.counts = counts
        words = frequent_words(counts, self.corpora.tokenizer.special.specials, 1)
        if len(words) < 2:
            raise UserError(
                f"{self.spec.name} needs at least two words, and the corpora have {len(words)}: use more text."
            )
        self._words = torch.from_numpy(words).to(rank_device())
        self._set_dictionary(max(step - 1, 0))

    def _set_dictionary(self, step: int) -> None:
        """Set the dictionary of a step: the words with ids of their own."""
        words = self.task.dictionary_size(step) if isinstance(self.task, WindowRanking) else None
        self._dictionary = self._words[:words]

    def _windows_and_labels(self, batch: dict[str, Tensor]) -> dict[str, LabeledWindows]:
        """Return the windows of words and the labels for each loss of NNLM or C&W."""
        batch = {name: value.to(rank_device()) for name, value in batch.items()}
        if not isinstance(self.task, WindowRanking):
            return {"lm": next_words(batch, self.spec, self._outside)}
        known = self._dictionary, self._unknown
        windows = {"ranking": ranked_windows(batch, self.spec, self._outside, *known)}
        return windows | ({"tags": tagged_words(batch, self._outside, *known)} if self.task.num_tags else {})

    def _count_windows(self, batches: list[dict[str, LabeledWindows]]) -> dict[str, float]:
        """Return the number of windows of all ranks for each loss of the network."""
        counts = [float(sum(len(batch[name][1]) for batch in batches)) for name in self.losses]
        return dict(zip(self.losses, self._all_reduce(counts), strict=True))

    def _forward_backward(
        self, batches: list[dict[str, LabeledWindows]], scales: Mapping[str, float] | None
    ) -> dict[str, float]:
        """Return NNLM's or C&W's summed losses of this rank's windows of words. With `scales`, add their gradients
        times these to the weights' gradients."""
        totals = dict.fromkeys(self.losses, 0.0)
        for name, (windows, labels) in (item for batch in batches for item in batch.items()):
            for windows_NW, labels_N in zip(windows.split(WINDOWS), labels.split(WINDOWS), strict=True):
                loss = self.network.losses[name](windows_NW, labels_N)
                if scales is not None:
                    (loss * scales[name]).backward()
                totals[name] += float(loss.detach())
        return totals

    def _reduce_gradients(self) -> list[Tensor]:
        """Return the gradients of the network summed over ranks."""
        parameters = [*self.network.parameters()]
        gradients = [torch.zeros_like(weight) if weight.grad is None else weight.grad for weight in parameters]
        if self.ranks.data_size > 1:
            flat = torch.cat([gradient.flatten() for gradient in gradients])
            dist.all_reduce(flat)
            parts = flat.split([weight.numel() for weight in parameters])
            gradients = [part.view_as(weight) for part, weight in zip(parts, parameters, strict=True)]
        return gradients

    @torch.no_grad()
    def _update_weights(self, gradients: list[Tensor], norm: float, lr: float) -> None:
        """Update the network's weights by the clipped gradient and weight decay."""
        optimizer = self.config.optimizer
        clipped = 1.0 if optimizer.clip is None else min(1.0, optimizer.clip / max(norm, 1e-12))
        for parameter, gradient in zip(self.network.parameters(), gradients, strict=True):
            if parameter.ndim > 1 or optimizer.weight_decay_on == "all":
                parameter.mul_(1.0 - lr * optimizer.weight_decay)
            parameter.add_(gradient, alpha=-lr * clipped)

    def _all_reduce(self, values: list[float]) -> list[float]:
        """Return the sums of values over all data ranks."""
        if self.ranks.data_size == 1:
            return values
        sums = torch.tensor(values, dtype=torch.float64, device=rank_device())
        dist.all_reduce(sums)
        return sums.tolist()

    def _mean_over_ranks(self, local_sums: Mapping[str, float], counts: Mapping[str, float]) -> StepResult:
        """Return the mean losses of the network over all ranks."""
        totals = self._all_reduce([local_sums[name] for name in self.losses])
        means = {name: total / max(counts[name], 1.0) for name, total in zip(self.losses, totals, strict=True)}
        loss = sum(weight * means[name] for name, weight in self.losses.items())
        return StepResult(means, loss, None, {name: int(count) for name, count in counts.items()})


def _all_reduce_counts(counts: np.ndarray) -> np.ndarray:
    sums = torch.from_numpy(counts).to(rank_device())
    dist.all_reduce(sums)
    return sums.cpu().numpy()
