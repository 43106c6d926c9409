"""Contrastive heads, whose loss compares samples of the global batch."""

# S sequence, B batch, D width, F features of a sample, N samples of the global batch, R some of them

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable

from torch import Tensor, nn

from megaptm.models.head_costs import HeadCosts
from megaptm.models.loss import Loss, count_labels
from megaptm.spec import ModelSpec


class ContrastHead(nn.Module, ABC):
    """Base class of contrastive heads (InfoNCE, arXiv:1807.03748; CLIP, arXiv:2103.00020).

    Compared features depend on one sample only; a learned temperature is repeated as a feature of each sample. So the
    gradient of a sample's features, summed over the losses of all samples (`parallel.contrast`), is all that its
    backward pass needs, on any micro-batch and rank.
    """

    def __init__(self, spec: ModelSpec, costs: HeadCosts) -> None:
        super().__init__()
        self.name, self.label_field = costs.name, costs.label_field
        self.gather: Gather | None = None
        """Function that adds the features of other data ranks' samples. `loss` uses it while one micro-batch holds all
        samples of this data rank."""

    @abstractmethod
    def features(self, *streams_SBD: Tensor, batch: dict[str, Tensor]) -> Tensor:
        """Return the compared features of each sample, [B, F] float32. Arguments are the hidden states of each stack
        that the head reads. `batch` may be without labels."""

    @abstractmethod
    def compare(self, features_NF: Tensor, answers_N: Tensor, own: slice) -> Tensor:
        """Compare features: return the contrastive loss [R] of the samples `own` among features and labels of all; 0 if
        the label is `IGNORED`.

        It uses no parameters, and materializes at most R x N values, never N x N.
        """

    def loss(self, *streams_SBD: Tensor, batch: dict[str, Tensor], tied: Tensor | None) -> Loss:
        """Return the contrastive loss of a micro-batch, compared with the samples of other data ranks if `gather` is
        set. If the batch has the gradient of the features, return features x gradient, summed: its backward pass gives
        the features that gradient."""
        labels, features = batch[self.label_field], self.features(*streams_SBD, batch=batch)
        if (gradient := batch.get(gradient_field(self.name))) is not None:
            return (features * gradient).sum(), count_labels(labels)
        own, answers = slice(0, len(features)), labels
        if self.gather is not None:
            features, answers, own = self.gather(self, features, labels)
        return self.compare(features, answers, own).sum(), count_labels(labels)

    def logits(self, *streams_SBD: Tensor, tied: Tensor | None) -> Tensor:
        """Return the features that the contrastive head computes without a batch. `Model` calls `features` with the
        batch."""
        return self.features(*streams_SBD, batch={})


Gather = Callable[[ContrastHead, Tensor, Tensor], tuple[Tensor, Tensor, slice]]
"""Function that gathers contrastive features: (head, features [R, F], labels [R]) of a data rank -> features [N, F],
labels [N] and the rows of this data rank."""


def gradient_field(loss: str) -> str:
    """Return the batch field that holds the gradient of the compared features [B, F]."""
    return f"{loss}_features_gradient"
