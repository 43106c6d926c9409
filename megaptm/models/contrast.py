"""Heads whose loss compares rows of the whole batch."""

# S sequence, B batch, D width, F features of a row, N counted rows, R some of them

from __future__ import annotations

from abc import ABC, abstractmethod

from torch import Tensor, nn

from megaptm.bricks import HeadBrick
from megaptm.models.loss import Loss, count_labels
from megaptm.spec import ModelSpec


class ContrastHead(nn.Module, ABC):
    """Base of heads whose loss compares rows of the global batch (InfoNCE, arXiv:1807.03748; CLIP's, arXiv:2103.00020).

    What is compared is made of each row alone, all that it depends on: a learned temperature is one of a row's features
    too, the same in each. So the gradient of each feature, summed over the losses of all rows (`parallel.contrast`), is
    all that a row's backward pass needs, whatever micro-batch and rank it is on.
    """

    def __init__(self, spec: ModelSpec, brick: HeadBrick) -> None:
        super().__init__()
        self.name, self.answers = brick.name, brick.answers

    @abstractmethod
    def features(self, *streams_SBD: Tensor, batch: dict[str, Tensor]) -> Tensor:
        """[B, F] float32, of each row; a stream for each stack that the head reads. Where nothing is asked `batch` is
        without answers."""

    @abstractmethod
    def compare(self, features_NF: Tensor, answers_N: Tensor, own: slice) -> Tensor:
        """The loss [R] of each of the rows `own`, among features and answers of all; 0 where nothing is asked
        (`IGNORED`). It has no parameters of its own, and makes nothing as large as N x N: R x N at most."""

    def loss(self, *streams_SBD: Tensor, batch: dict[str, Tensor], tied: Tensor | None) -> Loss:
        """With the gradient of its features in the batch, a sum that has the same gradient; without, these rows are all
        that are compared."""
        answers, features = batch[self.answers], self.features(*streams_SBD, batch=batch)
        if (gradient := batch.get(gradient_field(self.name))) is not None:
            return (features * gradient).sum(), count_labels(answers)
        return self.compare(features, answers, slice(0, len(features))).sum(), count_labels(answers)

    def logits(self, *streams_SBD: Tensor, tied: Tensor | None) -> Tensor:
        """The features, of rows of which nothing more is known; `Model` asks for `features`, with the batch."""
        return self.features(*streams_SBD, batch={})


def gradient_field(loss: str) -> str:
    """The field of a micro-batch that holds the gradient of the features [B, F] that a loss compares."""
    return f"{loss}_features_gradient"
