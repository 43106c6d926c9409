"""Sampling of replacement tokens from a head's logits (ELECTRA)."""

# S sequence, B batch, D width, A target positions of a sample

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor

from megaptm.batch import IGNORED

UNIFORMS = "uniforms"
"""Batch field [B, A] of uniform numbers in [0, 1) for sampling, equal in any layout."""
REPLACED = "replaced"
"""Batch field [B, S] of replaced-token labels, which are known after sampling."""


class SamplingHead(Protocol):
    """Interface of heads that sample tokens."""

    def sample(self, x_SBD: Tensor, batch: dict[str, Tensor], tied: Tensor | None) -> Tensor:
        """Return a token sampled from the head for each target position, [B, A]."""
        ...


def sample_tokens(
    head: SamplingHead, x_SBD: Tensor, batch: dict[str, Tensor], tokens_BS: Tensor, tied: Tensor | None
) -> tuple[Tensor, Tensor]:
    """Sample replacement tokens: return tokens [B, S] with samples at target positions, and whether each differs from
    the original.

    A sampled token that equals the original counts as original (arXiv:2003.10555, section 2). Without uniform numbers
    in the batch nothing is sampled.
    """
    if UNIFORMS not in batch:
        return tokens_BS, torch.zeros_like(tokens_BS, dtype=torch.bool)
    labels_BA = batch["labels"]
    sampled_BA = head.sample(x_SBD, batch, tied)
    # Samples at ignored positions go to an extra column, which is dropped.
    behind = tokens_BS.shape[1]
    at_BA = torch.where(labels_BA == IGNORED, behind, batch["masked_positions"])
    wide = torch.nn.functional.pad(tokens_BS, (0, 1)).scatter(1, at_BA, sampled_BA)
    changed = torch.zeros_like(wide).scatter(1, at_BA, (sampled_BA != labels_BA).long())
    return wide[:, :behind], changed[:, :behind].bool()
