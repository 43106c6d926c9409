"""Heads of a model. Each computes logits, and a summed loss with its number of labels."""

# S sequence, B batch, D width, A target positions of a sample, V vocabulary

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Protocol

import torch
from torch import Tensor, nn

from megaptm.errors import UserError
from megaptm.layers.feedforward import activation_of
from megaptm.layers.feedforward_costs import find_activation
from megaptm.layers.norm import Norm
from megaptm.layers.split import Embedding, Linear, VocabularyBias
from megaptm.losses.token import Projected
from megaptm.models.head_costs import (
    HeadCosts,
    LanguageHeadCosts,
    head_costs,
)
from megaptm.models.loss import Loss, class_loss, count_labels, token_loss
from megaptm.models.sample import UNIFORMS
from megaptm.models.target_positions import target_states
from megaptm.plugins import load_class
from megaptm.spec import ModelSpec


class LanguageHead(nn.Module):
    """Next-token head: projects hidden states on the tied token table, or on a table of its own, possibly after a
    transform (linear layer, activation and norm)."""

    table: Embedding | None
    narrow: Linear | None
    transform: Linear | None

    def __init__(self, spec: ModelSpec, costs: LanguageHeadCosts) -> None:
        super().__init__()
        scales = {"none": 1.0, "rsqrt-width": costs.width**-0.5}
        if spec.family.output.scale not in scales:
            known = ", ".join(scales)
            raise UserError(
                f"{spec.name}: output.scale is {spec.family.output.scale!r}, which is unknown; use {known}."
            )
        self.scale = scales[spec.family.output.scale]
        self.table = self.narrow = self.transform = None
        if "narrow" in costs.linears:
            self.narrow = Linear.from_shape(costs.linears["narrow"])
        if "transform" in costs.linears:
            self.activation = plain_activation(spec, costs)
            self.transform = Linear.from_shape(costs.linears["transform"])
            self.norm = Norm(costs.table_width, costs.block.norm)
        if not spec.family.output.tied:
            self.table = Embedding(spec.padded_vocabulary, costs.table_width, split="vocabulary")
        self.vocabulary = VocabularyBias(spec.padded_vocabulary) if costs.has_bias else None
        self.project = token_loss(spec)

    def loss(self, x_SBD: Tensor, batch: dict[str, Tensor], tied: Tensor | None) -> Loss:
        labels_SB = batch["labels"].t()
        loss = self.project(
            self._read(x_SBD).flatten(0, 1), self._projection_weight(tied), self._bias, labels_SB.reshape(-1)
        )
        return loss, count_labels(labels_SB)

    def logits(self, x_SBD: Tensor, tied: Tensor | None) -> Tensor:
        """Return the logits [B, S, V] of every position."""
        return self.project.logits(self._read(x_SBD).transpose(0, 1), self._projection_weight(tied), self._bias)

    def vocabulary_projection(self, x_SBD: Tensor, tied: Tensor | None) -> Projected:
        """Return the vocabulary projection of the head for all positions in order (S, B)."""
        return Projected(self._read(x_SBD).flatten(0, 1), self._projection_weight(tied), self._bias)

    @property
    def _bias(self) -> Tensor | None:
        return None if self.vocabulary is None else self.vocabulary.bias

    def _read(self, x_SBD: Tensor) -> Tensor:
        read_SBD = x_SBD if self.narrow is None else self.narrow(x_SBD)
        if self.transform is not None:
            read_SBD = self.norm(self.activation(self.transform(read_SBD)))
        return read_SBD if self.scale == 1.0 else read_SBD * self.scale

    def _projection_weight(self, tied: Tensor | None) -> Tensor:
        weight = tied if self.table is None else self.table.weight
        assert weight is not None
        return weight


class MaskedHead(LanguageHead):
    """Masked-language-model head, which reads target positions only."""

    def loss(self, x_SBD: Tensor, batch: dict[str, Tensor], tied: Tensor | None) -> Loss:
        labels = batch["labels"]
        x = self._read(target_states(x_SBD, batch, "labels")).flatten(0, 1)
        return self.project(x, self._projection_weight(tied), self._bias, labels.reshape(-1)), count_labels(labels)

    def sample(self, x_SBD: Tensor, batch: dict[str, Tensor], tied: Tensor | None) -> Tensor:
        """Sample a token from the masked-language-model head for each target position, [B, A], with the batch's uniform
        numbers."""
        draws_BA = batch[UNIFORMS]
        x = self._read(target_states(x_SBD, batch, UNIFORMS)).flatten(0, 1)
        samples = self.project.sample(x, self._projection_weight(tied), self._bias, draws_BA.reshape(-1))
        return samples.view(draws_BA.shape)


class TokenClassHead(nn.Module):
    """Token classification head (ERNIE 2.0, arXiv:1907.12412, 4.2.1)."""

    def __init__(self, spec: ModelSpec, costs: HeadCosts) -> None:
        super().__init__()
        self.label_field = costs.label_field
        self.classify = Linear.from_shape(costs.linears["classify"])

    def loss(self, x_SBD: Tensor, batch: dict[str, Tensor], tied: Tensor | None) -> Loss:
        return class_loss(self.logits(x_SBD, tied), batch[self.label_field])

    def logits(self, x_SBD: Tensor, tied: Tensor | None) -> Tensor:
        """Return the class logits of each token, [B, S, classes]."""
        return self.classify(x_SBD).transpose(0, 1)


class RowClassHead(nn.Module):
    """Sequence classification head on the pooled first position, as in BERT."""

    def __init__(self, spec: ModelSpec, costs: HeadCosts) -> None:
        super().__init__()
        self.label_field = costs.label_field
        self.pooler, self.classify = (
            Linear.from_shape(costs.linears["pooler"]),
            Linear.from_shape(costs.linears["classify"]),
        )

    def loss(self, x_SBD: Tensor, batch: dict[str, Tensor], tied: Tensor | None) -> Loss:
        return class_loss(self.logits(x_SBD, tied), batch[self.label_field])

    def logits(self, x_SBD: Tensor, tied: Tensor | None) -> Tensor:
        """Return the class logits of each sequence, [B, classes]."""
        return self.classify(torch.tanh(self.pooler(x_SBD[0])))


class Head(Protocol):
    """Interface of a model's heads."""

    def loss(self, *streams_SBD: Tensor, batch: dict[str, Tensor], tied: Tensor | None) -> Loss:
        """Return the loss of the head. Arguments are the hidden states of each stack that the head reads. `tied`: the
        tied token table, or the projection of the head's `tied_input`."""
        ...

    def logits(self, *streams_SBD: Tensor, tied: Tensor | None) -> Tensor:
        """Return the logits of the head for the hidden states of each stack that it reads."""
        ...


def build_heads(spec: ModelSpec, names: Collection[str]) -> nn.ModuleDict:
    """Build the heads of a family's model by name. Losses have the names of their heads."""
    return nn.ModuleDict(
        {name: load_class(costs, "module")(spec, costs) for name, costs in head_costs(spec).items() if name in names}
    )


def plain_activation(spec: ModelSpec, costs: HeadCosts) -> Callable[[Tensor], Tensor]:
    """Return the activation of a head: that of its transform, or of the last layer that it reads."""
    transform = spec.family.output.transform
    act = (transform and transform.activation) or costs.block.at(costs.size.layers - 1).ffn.activation
    assert isinstance(act, str), "a block of one layer has one activation"
    if find_activation(act).costs.streams == 2:
        raise UserError(
            f"{spec.name}: the `{costs.name}` head has no gated form, and the ffn is {act!r}: set "
            "output.transform.activation."
        )
    return activation_of(act)
