"""Head of ELECTRA."""

# S sequence, B batch, D width, A target positions of a sample, V vocabulary

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor, nn

from megaptm.batch import IGNORED
from megaptm.layers.split import Linear
from megaptm.models.head_costs import HeadCosts
from megaptm.models.heads import plain_activation
from megaptm.models.loss import Loss, count_labels
from megaptm.spec import ModelSpec


class ReplacedHead(nn.Module):
    """Replaced-token-detection head (ELECTRA, arXiv:2003.10555, section 2)."""

    def __init__(self, spec: ModelSpec, costs: HeadCosts) -> None:
        super().__init__()
        self.label_field = costs.label_field
        self.activation = plain_activation(spec, costs)
        self.transform, self.classify = (
            Linear.from_shape(costs.linears["transform"]),
            Linear.from_shape(costs.linears["classify"]),
        )

    def loss(self, x_SBD: Tensor, batch: dict[str, Tensor], tied: Tensor | None) -> Loss:
        labels_BS = batch[self.label_field]
        losses_BS = F.binary_cross_entropy_with_logits(
            self.logits(x_SBD, tied).float(), labels_BS.clamp(min=0).float(), reduction="none"
        )
        return (losses_BS * (labels_BS != IGNORED)).sum(), count_labels(labels_BS)

    def logits(self, x_SBD: Tensor, tied: Tensor | None) -> Tensor:
        """Return the logits of replaced token detection, [B, S]."""
        return self.classify(self.activation(self.transform(x_SBD)))[:, :, 0].t()
