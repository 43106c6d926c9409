"""Heads of ViT (arXiv:2010.11929): label, and mean color of masked patches."""

# S sequence, B batch, A target positions, V labels

from __future__ import annotations

from torch import Tensor, nn

from megaptm.layers.split import Embedding, Linear, VocabularyBias
from megaptm.models.head_costs import HeadCosts
from megaptm.models.loss import Loss, class_loss, count_labels, token_loss
from megaptm.models.target_positions import target_states
from megaptm.spec import ModelSpec


class ImageLabelHead(nn.Module):
    """Image classification head on the class token."""

    def __init__(self, spec: ModelSpec, costs: HeadCosts) -> None:
        super().__init__()
        self.label_field = costs.label_field
        self.table = Embedding(spec.padded_vocabulary, costs.width, split="vocabulary")
        self.vocabulary = VocabularyBias(spec.padded_vocabulary)
        self.project = token_loss(spec)

    def loss(self, x_SBD: Tensor, batch: dict[str, Tensor], tied: Tensor | None) -> Loss:
        labels_B = batch[self.label_field]
        return self.project(x_SBD[0], self.table.weight, self.vocabulary.bias, labels_B), count_labels(labels_B)

    def logits(self, x_SBD: Tensor, tied: Tensor | None) -> Tensor:
        """Return the logits of image labels, [B, V]."""
        return self.project.logits(x_SBD[0], self.table.weight, self.vocabulary.bias)


class MaskedPatchHead(nn.Module):
    """Masked patch head: predicts the mean color of masked patches. Reads target positions only."""

    def __init__(self, spec: ModelSpec, costs: HeadCosts) -> None:
        super().__init__()
        self.label_field = costs.label_field
        self.classify = Linear.from_shape(costs.linears["classify"])

    def loss(self, x_SBD: Tensor, batch: dict[str, Tensor], tied: Tensor | None) -> Loss:
        return class_loss(self.classify(target_states(x_SBD, batch, self.label_field)), batch[self.label_field])

    def logits(self, x_SBD: Tensor, tied: Tensor | None) -> Tensor:
        """Return the logits of patch colors at every position, [B, S, colors]."""
        return self.classify(x_SBD.transpose(0, 1))
