"""The next word of a text and of one that is read from its end (ELMo, arXiv:1802.05365, 3.1)."""

# S sequence, B batch, D width, N rows, K words drawn, V vocabulary

from __future__ import annotations

import torch
from torch import Tensor, nn

from megaptm.bricks import HeadBrick
from megaptm.errors import UserError
from megaptm.layers.split import Embedding, VocabularyBias
from megaptm.losses.sampled import DrawnWords, draw_negatives, sampled_cross_entropy
from megaptm.models.loss import Loss, count_labels, token_loss
from megaptm.spec import ModelSpec


class BidirectionalHead(nn.Module):
    """The next token of a text and of one that is read from its end: one table and one bias for both. A loss is half of
    each direction's, of which the batch asks as many answers.

    In training words that are drawn may stand for all others, the same for all rows of a step, and others for each
    direction."""

    def __init__(self, spec: ModelSpec, brick: HeadBrick) -> None:
        super().__init__()
        self.prefixes = [spec.family.prefixes[reading.stack] for reading in brick.readings]
        self.number, self.size = spec.family.negatives, spec.vocabulary
        if self.number >= self.size:
            raise UserError(
                f"model.negatives ({self.number}) must be less than the {self.size} words of the vocabulary, of which "
                "they are drawn: lower it, or say 0, and all are compared."
            )
        self.negatives: list[DrawnWords] = []
        self.table = Embedding(spec.padded_vocabulary, spec.size.table_width, split="vocabulary")
        self.vocabulary = VocabularyBias(spec.padded_vocabulary)
        self.project = token_loss(spec)

    def loss(self, *streams_SBD: Tensor, batch: dict[str, Tensor], tied: Tensor | None) -> Loss:
        labels = [batch[f"{prefix}labels"].t() for prefix in self.prefixes]
        pairs = zip(streams_SBD, labels, strict=True)
        losses = [
            self._loss(number, x_SBD.flatten(0, 1), labels_SB.reshape(-1))
            for number, (x_SBD, labels_SB) in enumerate(pairs)
        ]
        return torch.stack(losses).mean(), count_labels(labels[0])

    def draw(self, *, seed: int, step: int) -> None:
        """The words that stand for all others in a step: a function of the seed and the step."""
        self.negatives = [
            draw_negatives(self.number, self.size, key=f"{seed}:negatives:{step}:{prefix}")
            for prefix in self.prefixes
            if self.number
        ]

    def _loss(self, direction: int, x_ND: Tensor, labels_N: Tensor) -> Tensor:
        if not (self.training and self.number):
            return self.project(x_ND, self.table.weight, self.vocabulary.bias, labels_N)
        negatives = self.negatives[direction]
        ids_K = torch.from_numpy(negatives.ids).to(labels_N.device)
        # One lookup for both: its gradient goes past autograd to the engine's sum.
        both = torch.cat([labels_N.clamp(min=0), ids_K])
        rows, biases = self.table(both), self.vocabulary.bias[both]
        right, drawn = zip(rows.tensor_split([len(labels_N)]), biases.tensor_split([len(labels_N)]), strict=True)
        return sampled_cross_entropy(x_ND, labels_N, right=right, drawn=drawn, ids_K=ids_K, negatives=negatives)

    def logits(self, *streams_SBD: Tensor, tied: Tensor | None) -> Tensor:
        """[B, 2, S, V]"""
        x_B2SD = torch.stack([x_SBD.transpose(0, 1) for x_SBD in streams_SBD], 1)
        return self.project.logits(x_B2SD, self.table.weight, self.vocabulary.bias)
