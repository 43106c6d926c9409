"""Contrastive loss InfoNCE (van den Oord et al., arXiv:1807.03748, equation 4) with several positive candidates."""

# N candidates of a sample, R samples

from __future__ import annotations

import torch
from torch import Tensor


def info_nce(scores_RN: Tensor, positive_RN: Tensor, candidate_RN: Tensor | None = None) -> Tensor:
    """Return the contrastive loss InfoNCE [R] in float32: the negative logarithm of the positive candidates' share in
    the sum of e^score over all candidates.

    Positives are summed inside the logarithm: at least one must be found, and each gets a gradient in proportion to its
    softmax share. `positive_RN` and `candidate_RN` (None: all) are boolean. A sample without positives has loss 0 and
    no gradient.
    """
    scores_RN = scores_RN.to(torch.promote_types(scores_RN.dtype, torch.float32))
    if candidate_RN is None:
        candidate_RN = torch.ones_like(positive_RN)
    positive_RN = positive_RN & candidate_RN
    # Without positives all candidates count as positive: both sums are equal, while log of an empty sum has no
    # gradient.
    no_positive_R1 = ~positive_RN.any(1, keepdim=True)
    positive_RN, candidate_RN = positive_RN | no_positive_R1, candidate_RN | no_positive_R1
    all_R, positive_R = (
        scores_RN.masked_fill(~included_RN, -torch.inf).logsumexp(1) for included_RN in (candidate_RN, positive_RN)
    )
    return all_R - positive_R
