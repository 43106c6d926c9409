"""Tokens drawn from what a head says, for a stack that reads them in the place of what was hidden (ELECTRA)."""

# S sequence, B batch, D width, A asked positions a row

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor

from megaptm.batch import IGNORED

DRAWS = "draws"
"""The batch's field [B, A] of numbers from 0 to below 1 by which tokens are drawn, the same in any layout."""
REPLACED = "replaced"
"""The batch's field [B, S] that asks at which places a token was replaced; the answer is known once it is drawn."""


class DrawingHead(Protocol):
    """A head that can be drawn from."""

    def draw(self, x_SBD: Tensor, batch: dict[str, Tensor], tied: Tensor | None) -> Tensor:
        """[B, A]: a token for each place that it is asked about."""
        ...


def draw_tokens(
    head: DrawingHead, x_SBD: Tensor, batch: dict[str, Tensor], tokens_BS: Tensor, tied: Tensor | None
) -> tuple[Tensor, Tensor]:
    """The text with a token drawn at each place that is asked about, [B, S], and whether it is another than was there.

    A token that is drawn as it was counts as original (arXiv:2003.10555, section 2). Where the batch has no numbers to
    draw by, nothing is drawn.
    """
    if DRAWS not in batch:
        return tokens_BS, torch.zeros_like(tokens_BS, dtype=torch.bool)
    labels_BA = batch["labels"]
    drawn_BA = head.draw(x_SBD, batch, tied)
    # What is not asked is written behind the text, where nobody reads it.
    behind = tokens_BS.shape[1]
    at_BA = torch.where(labels_BA == IGNORED, behind, batch["masked_positions"])
    wide = torch.nn.functional.pad(tokens_BS, (0, 1)).scatter(1, at_BA, drawn_BA)
    changed = torch.zeros_like(wide).scatter(1, at_BA, (drawn_BA != labels_BA).long())
    return wide[:, :behind], changed[:, :behind].bool()
