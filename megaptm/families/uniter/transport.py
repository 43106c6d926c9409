"""Optimal transport distance between the tokens of a text and the regions of an image.

The plan is computed by proximal steps, IPOT (Xie et al., arXiv:1802.04307, algorithm 1, with one inner iteration), as
in UNITER (arXiv:1909.11740, section 3.2).
"""

# B batch, T tokens of a text, R regions, D width

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

STEP, ROUNDS = 0.5, 50
"""Step size and number of proximal steps of UNITER's optimal transport in the released code."""
MIN_LENGTH = 1e-5
"""Minimum length by which a vector is divided when it is normalized."""


def cosine_costs(words_BTD: Tensor, regions_BRD: Tensor) -> Tensor:
    """Return UNITER's transport cost of each pair of token and region, 1 minus their cosine, [B, T, R] in 0 to 2."""
    words_BTD, regions_BRD = (F.normalize(x, dim=-1, eps=MIN_LENGTH) for x in (words_BTD, regions_BRD))
    return 1 - words_BTD @ regions_BRD.transpose(1, 2)


@torch.no_grad()
def transport_plan(
    costs_BTR: Tensor, valid_words_BT: Tensor, valid_regions_BR: Tensor, *, step: float = STEP, rounds: int = ROUNDS
) -> Tensor:
    """Return UNITER's transport plan [B, T, R]: mass moved from each token to each region. Zero at padding; the sum is
    1 per sample.

    Tokens have equal mass, and so have regions. Row sums are exact after any number of rounds; column sums converge.
    """
    pairs_BTR = valid_words_BT[:, :, None] & valid_regions_BR[:, None, :]
    kernel_BTR = torch.where(pairs_BTR, (-costs_BTR / step).exp(), 0)
    words_BT, regions_BR = (_equal_shares(valid.to(costs_BTR.dtype)) for valid in (valid_words_BT, valid_regions_BR))
    plan_BTR, scale_BT = pairs_BTR.to(costs_BTR.dtype), words_BT
    min_mass = torch.finfo(costs_BTR.dtype).tiny  # divisor for padding, which has no mass
    for _ in range(rounds):
        moved_BTR = kernel_BTR * plan_BTR
        scale_BR = regions_BR / torch.einsum("btr,bt->br", moved_BTR, scale_BT).clamp(min=min_mass)
        scale_BT = words_BT / torch.einsum("btr,br->bt", moved_BTR, scale_BR).clamp(min=min_mass)
        plan_BTR = scale_BT[:, :, None] * moved_BTR * scale_BR[:, None, :]
    return plan_BTR


def transport_distance(
    words_BTD: Tensor, regions_BRD: Tensor, valid_words_BT: Tensor, valid_regions_BR: Tensor
) -> Tensor:
    """Return the cost of UNITER's transport plan, [B] float32. No gradient flows through the plan."""
    exact = torch.promote_types(words_BTD.dtype, torch.float32)
    costs_BTR = cosine_costs(words_BTD.to(exact), regions_BRD.to(exact))
    plan_BTR = transport_plan(costs_BTR.detach(), valid_words_BT, valid_regions_BR)
    return (costs_BTR * plan_BTR).sum((1, 2))


def _equal_shares(valid: Tensor) -> Tensor:
    """Return equal shares of mass for valid tokens or regions; the sum is 1 per sample."""
    return valid / valid.sum(-1, keepdim=True).clamp(min=1)
