"""Result of `Model.forward`."""

# S sequence, B batch, D width, F features

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from torch import Tensor

from megaptm.models.loss import Loss
from megaptm.spec import HeadInput


class States(NamedTuple):
    """Outputs of a model's stacks and layers, [S, B, D] each, as tensor ranks hold them."""

    streams: Mapping[str, Tensor]
    """Output of each stack of the model, by its name."""
    inner: Mapping[HeadInput, Tensor]
    """Outputs of single layers of the model."""


@dataclass(frozen=True)
class ModelOutput:
    """Result of one pipeline chunk of a model. A chunk before the last has only hidden states; the last chunk has
    losses, features or logits."""

    stream: Tensor | None = None
    """Hidden states [S, B, D], input of the next chunk: encoder and decoder concatenated along the sequence."""
    losses: dict[str, Loss] = field(default_factory=dict)
    """Sum and number of labels of each loss, for heads with labels in the batch."""
    features: dict[str, Tensor] = field(default_factory=dict)
    """Features [B, F] that each contrastive loss compares, if requested."""
    logits: dict[str, Tensor] = field(default_factory=dict)
    """Logits of each head, if the batch has no labels."""
    states: States | None = None
    """Outputs of stacks and of requested layers, besides losses."""
