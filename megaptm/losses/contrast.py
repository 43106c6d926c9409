"""What belongs together against what does not: InfoNCE (van den Oord et al., arXiv:1807.03748, equation 4), where more
than one candidate may be right, as in UNIMO's contrast of images and texts (arXiv:2012.15409, section 2.1)."""

# R rows, N candidates of a row

from __future__ import annotations

import torch
from torch import Tensor


def info_nce(scores_RN: Tensor, right_RN: Tensor, there_RN: Tensor | None = None) -> Tensor:
    """[R], in float32 at least: less the logarithm of the share that right candidates have of the sum of e^score over
    all that are there.

    Right ones are summed within the logarithm: some of them must be found, and the gradient is shared among them by how
    near each is already. `right_RN` and `there_RN` are bool; absent, all are there. What is not there is neither right
    nor wrong. A row with nothing right gives 0, and no gradient.
    """
    scores_RN = scores_RN.to(torch.promote_types(scores_RN.dtype, torch.float32))
    if there_RN is None:
        there_RN = torch.ones_like(right_RN)
    right_RN = right_RN & there_RN
    # In a row with nothing right all is: its two sums are the same, where the logarithm of none has no gradient.
    nothing_R1 = ~right_RN.any(1, keepdim=True)
    right_RN, there_RN = right_RN | nothing_R1, there_RN | nothing_R1
    all_R, some_R = (scores_RN.masked_fill(~counted_RN, -torch.inf).logsumexp(1) for counted_RN in (there_RN, right_RN))
    return all_R - some_R
