"""How far a text's words are from an image's regions: the cheapest way to move one onto the other (optimal transport).

The plan is found by proximal steps, IPOT (Xie et al., arXiv:1802.04307, algorithm 1, with one inner round), as UNITER
does (arXiv:1909.11740, section 3.2).
"""

# B batch, T words of a text, R regions, D width

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

STEP, ROUNDS = 0.5, 50
"""The released code's: how far a proximal step goes, and how many there are."""
SHORTEST = 1e-5
"""Length below which a vector is not made one of length 1."""


def cosine_costs(words_BTD: Tensor, regions_BRD: Tensor) -> Tensor:
    """[B, T, R], 0 to 2: one less the cosine of each pair."""
    words_BTD, regions_BRD = (F.normalize(x, dim=-1, eps=SHORTEST) for x in (words_BTD, regions_BRD))
    return 1 - words_BTD @ regions_BRD.transpose(1, 2)


@torch.no_grad()
def transport_plan(
    costs_BTR: Tensor, words_there_BT: Tensor, regions_there_BR: Tensor, *, step: float = STEP, rounds: int = ROUNDS
) -> Tensor:
    """[B, T, R]: how much of each word goes to each region; zero at padding, all together 1 a row.

    Words, and regions, are worth the same each. What words give is exact after any number of rounds, what regions get
    nearly so: the longer it runs, the nearer.
    """
    pairs_BTR = words_there_BT[:, :, None] & regions_there_BR[:, None, :]
    kernel_BTR = torch.where(pairs_BTR, (-costs_BTR / step).exp(), 0)
    words_BT, regions_BR = (_shares(there.to(costs_BTR.dtype)) for there in (words_there_BT, regions_there_BR))
    plan_BTR, scale_BT = pairs_BTR.to(costs_BTR.dtype), words_BT
    least = torch.finfo(costs_BTR.dtype).tiny  # padding is divided by it, and has no share
    for _ in range(rounds):
        moved_BTR = kernel_BTR * plan_BTR
        scale_BR = regions_BR / torch.einsum("btr,bt->br", moved_BTR, scale_BT).clamp(min=least)
        scale_BT = words_BT / torch.einsum("btr,br->bt", moved_BTR, scale_BR).clamp(min=least)
        plan_BTR = scale_BT[:, :, None] * moved_BTR * scale_BR[:, None, :]
    return plan_BTR


def transport_distance(
    words_BTD: Tensor, regions_BRD: Tensor, words_there_BT: Tensor, regions_there_BR: Tensor
) -> Tensor:
    """[B]: what the plan costs, float32 at least. No gradient comes through the plan."""
    exact = torch.promote_types(words_BTD.dtype, torch.float32)
    costs_BTR = cosine_costs(words_BTD.to(exact), regions_BRD.to(exact))
    plan_BTR = transport_plan(costs_BTR.detach(), words_there_BT, regions_there_BR)
    return (costs_BTR * plan_BTR).sum((1, 2))


def _shares(there: Tensor) -> Tensor:
    """The same for each that is there, together 1 a row."""
    return there / there.sum(-1, keepdim=True).clamp(min=1)
