"""From ids to the stream: the sum of the input tables."""

# S sequence, B batch, D width

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from megaptm.errors import UserError
from megaptm.layers.norm import Norm
from megaptm.layers.split import Dropout, Embedding
from megaptm.spec import ModelSpec

INPUTS = ("token", "position", "segment")


class Embed(nn.Module):
    """Tokens, learned positions and segments, as the family's `inputs` say; then norm (BERT) and dropout.

    With `token_only` it is just the table that a tied output projection reads, under the same name.
    """

    position: Embedding | None
    segment: Embedding | None
    norm: Norm | None

    def __init__(self, spec: ModelSpec, *, token_only: bool = False) -> None:
        super().__init__()
        family, width = spec.family, spec.size.width
        if unknown := set(family.inputs) - set(INPUTS):
            raise UserError(f"{family.name}: inputs {sorted(unknown)} are unknown; use some of {', '.join(INPUTS)}.")
        self.token = Embedding(spec.padded_vocabulary, width, split="vocabulary")
        self.position = self.segment = self.norm = None
        if token_only:
            return
        if "position" in family.inputs:
            self.position = Embedding(spec.context, width)
        if "segment" in family.inputs:
            self.segment = Embedding(family.segments, width)
        if family.embedding_norm:
            block = family.encoder or family.decoder
            assert block is not None
            self.norm = Norm(width, kind=block.normalizer, eps=block.norm_eps)
        self.dropout = Dropout(spec.dropout, region="residual")

    def forward(self, batch: dict[str, Tensor], prefix: str, enter: Callable[[Tensor], Tensor]) -> Tensor:
        """[S, B, D] from `<prefix>tokens`, `<prefix>positions` (absent: 0, 1, 2 ...) and `<prefix>segments` [B, S]."""
        ids_SB = batch[prefix + "tokens"].t()
        x = self.token(ids_SB)
        if self.position is not None:
            positions = batch.get(prefix + "positions")
            x = x + self.position(self._count(ids_SB) if positions is None else positions.t())
        if self.segment is not None:
            x = x + self.segment(batch[prefix + "segments"].t())
        if self.norm is not None:
            x = self.norm(x)
        return self.dropout(enter(x))

    def _count(self, ids_SB: Tensor) -> Tensor:
        """0 ... S-1, [S, 1]."""
        assert self.position is not None
        if len(ids_SB) > self.position.rows:
            raise UserError(
                f"A sequence of {len(ids_SB)} has no learned positions; the model has {self.position.rows}."
            )
        return torch.arange(len(ids_SB), device=ids_SB.device)[:, None]
