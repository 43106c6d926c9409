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
"""Step size and number of proximal steps in the released code."""
SHORTEST = 1e-5
"""Smallest length by which a vector is normalized."""


def cosine_costs(words_BTD: Tensor, regions_BRD: Tensor) -> Tensor:
    """Return 1 minus the cosine of each pair, [B, T, R] in 0 to 2."""
    words_BTD, regions_BRD = (F.normalize(x, dim=-1, eps=SHORTEST) for x in (words_BTD, regions_BRD))
    return 1 - words_BTD @ regions_BRD.transpose(1, 2)


@torch.no_grad()
def transport_plan(
    costs_BTR: Tensor, words_there_BT: Tensor, regions_there_BR: Tensor, *, step: float = STEP, rounds: int = ROUNDS
) -> Tensor:
    """Return the transport plan [B, T, R]: mass moved from each token to each region. Zero at padding; the sum is 1 per
    sample.

    Tokens have equal mass, and so have regions. Row sums are exact after any number of rounds; column sums converge.
    """
    pairs_BTR = words_there_BT[:, :, None] & regions_there_BR[:, None, :]
    kernel_BTR = torch.where(pairs_BTR, (-costs_BTR / step).exp(), 0)
    words_BT, regions_BR = (_shares(there.to(costs_BTR.dtype)) for there in (words_there_BT, regions_there_BR))
    plan_BTR, scale_BT = pairs_BTR.to(costs_BTR.dtype), words_BT
    least = torch.finfo(costs_BTR.dtype).tiny  # divisor for padding, which has no mass
    for _ in range(rounds):
        moved_BTR = kernel_BTR * plan_BTR
        scale_BR = regions_BR / torch.einsum("btr,bt->br", moved_BTR, scale_BT).clamp(min=least)
        scale_BT = words_BT / torch.einsum("btr,br->bt", moved_BTR, scale_BR).clamp(min=least)
        plan_BTR = scale_BT[:, :, None] * moved_BTR * scale_BR[:, None, :]
    return plan_BTR


def transport_distance(
    words_BTD: Tensor, regions_BRD: Tensor, words_there_BT: Tensor, regions_there_BR: Tensor
) -> Tensor:
    """Return the cost of the transport plan, [B] float32. No gradient flows through the plan."""
    exact = torch.promote_types(words_BTD.dtype, torch.float32)
    costs_BTR = cosine_costs(words_BTD.to(exact), regions_BRD.to(exact))
    plan_BTR = transport_plan(costs_BTR.detach(), words_there_BT, regions_there_BR)
    return (costs_BTR * plan_BTR).sum((1, 2))


def _shares(there: Tensor) -> Tensor:
    """Return equal shares for valid elements; the sum is 1 per sample."""
    return there / there.sum(-1, keepdim=True).clamp(min=1)
