"""Head of SpanBERT."""

# S sequence, B batch, D width, A target positions of a sample, V vocabulary

from __future__ import annotations

import torch
from torch import Tensor, nn

from megaptm.errors import UserError
from megaptm.families.spanbert.head_costs import SpanBoundaryHeadCosts
from megaptm.layers.norm import Norm
from megaptm.layers.split import Embedding, Linear, VocabularyBias
from megaptm.models.head_costs import HeadCosts
from megaptm.models.heads import plain_activation
from megaptm.models.loss import Loss, count_labels, token_loss
from megaptm.models.target_positions import states_at
from megaptm.spec import ModelSpec


class SpanBoundaryHead(nn.Module):
    """Span boundary head as in SpanBERT: predicts tokens of a masked span from the two positions around it and the
    offset in the span."""

    def __init__(self, spec: ModelSpec, costs: HeadCosts) -> None:
        super().__init__()
        assert isinstance(costs, SpanBoundaryHeadCosts)
        block = costs.block
        if not spec.family.output.tied:
            raise UserError(f"{spec.name}: the `span-boundary` head projects on the token table; set output.tied=True.")
        self.activation = plain_activation(spec, costs)
        self.offset = Embedding(costs.offsets, costs.offset_width)
        self.first, self.second = (Linear.from_shape(costs.linears[name]) for name in ("first", "second"))
        self.first_norm = Norm(self.first.out_features, block.norm)
        self.second_norm = Norm(self.second.out_features, block.norm)
        self.vocabulary = VocabularyBias(spec.padded_vocabulary)
        self.project = token_loss(spec)

    def loss(self, x_SBD: Tensor, batch: dict[str, Tensor], tied: Tensor | None) -> Loss:
        x_BSD, labels = x_SBD.transpose(0, 1), batch["span_labels"]
        before, after = (states_at(x_BSD, batch[name]) for name in ("span_left", "span_right"))
        assert tied is not None
        read = self._read(before, after, batch["span_offset"])
        return self.project(read.flatten(0, 1), tied, self.vocabulary.bias, labels.reshape(-1)), count_labels(labels)

    def logits(self, x_SBD: Tensor, tied: Tensor | None) -> Tensor:
        """Return the logits [B, S, V] of SpanBERT's span boundary head for each position as a span of length 1 between
        its neighbors."""
        x_BSD = x_SBD.transpose(0, 1)
        before, after = torch.cat([x_BSD[:, :1], x_BSD[:, :-1]], 1), torch.cat([x_BSD[:, 1:], x_BSD[:, -1:]], 1)
        assert tied is not None
        offsets = torch.zeros(before.shape[:2], dtype=torch.int64, device=before.device)
        return self.project.logits(self._read(before, after, offsets), tied, self.vocabulary.bias)

    def _read(self, left: Tensor, after: Tensor, offsets: Tensor) -> Tensor:
        x = torch.cat([left, after, self.offset(offsets)], -1)
        x = self.first_norm(self.activation(self.first(x)))
        return self.second_norm(self.activation(self.second(x)))
