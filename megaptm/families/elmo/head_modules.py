"""Head of ELMo."""

# S sequence, B batch, D width, A target positions of a sample, V vocabulary

from __future__ import annotations

import torch
from torch import Tensor, nn

from megaptm.errors import UserError
from megaptm.families.elmo.sampled import NegativeSamples, sample_negatives, sampled_cross_entropy
from megaptm.layers.rng import copy_to_device
from megaptm.layers.split import Embedding, VocabularyBias
from megaptm.models.head_costs import HeadCosts
from megaptm.models.loss import Loss, count_labels, token_loss
from megaptm.spec import ModelSpec


class BidirectionalHead(nn.Module):
    """Next-token head of forward and backward language models (ELMo): one table and one bias for both. The loss is the
    mean of both directions, which have equal numbers of labels.

    In training a sampled softmax may be used, with the same negatives for all samples of a step, different in each
    direction.
    """

    def __init__(self, spec: ModelSpec, costs: HeadCosts) -> None:
        super().__init__()
        self.prefixes = [spec.family.prefixes[reading.stack] for reading in costs.head_inputs]
        self.number, self.size = spec.family.loss.negatives, spec.vocabulary
        if self.number >= self.size:
            raise UserError(
                f"model.negatives ({self.number}) must be less than the vocabulary size ({self.size}): lower it, or "
                "set it to 0 for the full softmax."
            )
        self.negatives: list[tuple[NegativeSamples, Tensor]] = []
        """Sampled negatives of each direction, and their ids on the model's device."""
        self.table = Embedding(spec.padded_vocabulary, spec.size.table_width, split="vocabulary")
        self.vocabulary = VocabularyBias(spec.padded_vocabulary)
        self.project = token_loss(spec)

    def loss(self, *streams_SBD: Tensor, batch: dict[str, Tensor], tied: Tensor | None) -> Loss:
        labels = [batch[f"{prefix}labels"].t() for prefix in self.prefixes]
        pairs = zip(streams_SBD, labels, strict=True)
        losses = [
            self._direction_loss(number, x_SBD.flatten(0, 1), labels_SB.reshape(-1))
            for number, (x_SBD, labels_SB) in enumerate(pairs)
        ]
        return torch.stack(losses).mean(), count_labels(labels[0])

    def begin_step(self, *, seed: int, step: int) -> None:
        """Sample the negatives of ELMo's softmax for a step, a function of seed and step."""
        samples = [
            sample_negatives(self.number, self.size, key=f"{seed}:negatives:{step}:{prefix}")
            for prefix in self.prefixes
            if self.number
        ]
        self.negatives = [
            (sample, copy_to_device(torch.from_numpy(sample.ids), self.table.weight.device)) for sample in samples
        ]

    def _direction_loss(self, direction: int, x_ND: Tensor, labels_N: Tensor) -> Tensor:
        if not (self.training and self.number):
            return self.project(x_ND, self.table.weight, self.vocabulary.bias, labels_N)
        negatives, ids_K = self.negatives[direction]
        # One lookup for labels and negatives: its gradient bypasses autograd and goes to the engine's buffer.
        both = torch.cat([labels_N.clamp(min=0), ids_K])
        rows, biases = self.table(both), self.vocabulary.bias[both]
        positive, negative = zip(rows.tensor_split([len(labels_N)]), biases.tensor_split([len(labels_N)]), strict=True)
        return sampled_cross_entropy(
            x_ND, labels_N, positive=positive, negative=negative, ids_K=ids_K, negatives=negatives
        )

    def logits(self, *streams_SBD: Tensor, tied: Tensor | None) -> Tensor:
        """Return the next-token logits of both directions, [B, 2, S, V]."""
        x_B2SD = torch.stack([x_SBD.transpose(0, 1) for x_SBD in streams_SBD], 1)
        return self.project.logits(x_B2SD, self.table.weight, self.vocabulary.bias)
