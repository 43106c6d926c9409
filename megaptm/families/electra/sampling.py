"""Sampling of replacement tokens from a generator's logits (ELECTRA, arXiv:2003.10555, section 2)."""

# S sequence, B batch, D width, A target positions of a sample

from __future__ import annotations

import torch
from torch import Tensor

from megaptm.batch import IGNORED
from megaptm.models.sample import UNIFORMS, InputSampler, SamplingHead

REPLACED = "replaced"
"""Batch field [B, S] of replaced-token labels, which are known after sampling."""


class ReplacedTokenSampler(InputSampler):
    """Sampler of ELECTRA's replacement tokens. It marks replaced positions; a sampled token that equals the original
    counts as original."""

    @staticmethod
    def sample(
        head: SamplingHead, x_SBD: Tensor, batch: dict[str, Tensor], tokens_BS: Tensor, tied: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        """Return the tokens with ELECTRA's replacements at masked positions, and marks of the changed ones. Without
        uniform numbers in the batch nothing is sampled."""
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

    @staticmethod
    def label(batch: dict[str, Tensor], marks_BS: Tensor) -> dict[str, Tensor]:
        if REPLACED not in batch:
            return batch
        return {**batch, REPLACED: torch.where(batch[REPLACED] == IGNORED, IGNORED, marks_BS.long())}
