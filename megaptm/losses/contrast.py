"""What belongs together against what does not: InfoNCE (van den Oord et al., arXiv:1807.03748, equation 4), where more
than one candidate may be right, as in UNIMO's contrast of images and texts (arXiv:2012.15409, section 2.1)."""

# N rows of the whole batch or candidates of a row, R rows, J images of a row, K texts of it, E width

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


def cross_modal_contrast(
    images_NJE: Tensor,
    texts_NKE: Tensor,
    right_N: Tensor,
    seen_NJ: Tensor,
    said_NK: Tensor,
    own: slice,
    *,
    temperature: float,
) -> Tensor:
    """[R], of each of the rows `own`: its image's pairs with its right texts, and its caption's with images like its
    own, among all pairs of its image with a text of the batch and of its caption with an image of the batch (UNIMO,
    arXiv:2012.15409, section 2.1 and equation 1).

    Vectors have length 1, so that scores are cosines over `temperature`. Of a row's texts the first is its caption, the
    first `right_N` are right (rewritten so that they say the same, or retrieved because they speak of the same), those
    behind are wrong (rewritten so that they do not, or captions of other images), and so is each text and image of
    other rows. Of its images the first is its own, and those behind are right (retrieved because they show the same).
    Images that are not in `seen_NJ` and texts that are not in `said_NK` are left out; a row of which no text is right
    asks nothing, and nobody is compared with it.
    """
    numbers_N = torch.arange(len(images_NJE), device=images_NJE.device)
    slots_J, slots_K = (torch.arange(side.shape[1], device=side.device) for side in (images_NJE, texts_NKE))
    asked_N = right_N > 0
    seen_NJ, said_NK = seen_NJ & asked_N[:, None], said_NK & asked_N[:, None]
    own_RN = numbers_N[own][:, None] == numbers_N

    texts_RNK = torch.einsum("re,nke->rnk", images_NJE[own][:, 0], texts_NKE) / temperature
    right_RNK = own_RN[:, :, None] & (slots_K < right_N[own][:, None])[:, None, :]
    images_RNJ = torch.einsum("re,nje->rnj", texts_NKE[own][:, 0], images_NJE) / temperature
    # The pair itself is among its image's pairs.
    itself_RNJ = own_RN[:, :, None] & (slots_J == 0)

    scores = torch.cat([texts_RNK.flatten(1), images_RNJ.flatten(1)], 1)
    right = torch.cat([right_RNK.flatten(1), (own_RN[:, :, None] & (slots_J > 0)).flatten(1)], 1)
    texts_there = said_NK.flatten().expand(len(own_RN), -1)
    there = torch.cat([texts_there, (seen_NJ & ~itself_RNJ).flatten(1)], 1)
    return info_nce(scores, right, there)
