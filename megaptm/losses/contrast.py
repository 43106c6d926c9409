"""Contrastive loss InfoNCE (van den Oord et al., arXiv:1807.03748, equation 4) with several positive candidates, as in
UNIMO's contrast of images and texts (arXiv:2012.15409, section 2.1)."""

# N samples of the global batch or candidates of a sample, R samples, J images and K texts of a sample, E width

from __future__ import annotations

import torch
from torch import Tensor


def info_nce(scores_RN: Tensor, right_RN: Tensor, there_RN: Tensor | None = None) -> Tensor:
    """Return the negative log-share of the positive candidates in the sum of e^score over all candidates, [R] float32.

    Positives are summed inside the logarithm: at least one must be found, and each gets a gradient in proportion to its
    softmax share. `right_RN` (positives) and `there_RN` (candidates; None: all) are boolean. A sample without positives
    has loss 0 and no gradient.
    """
    scores_RN = scores_RN.to(torch.promote_types(scores_RN.dtype, torch.float32))
    if there_RN is None:
        there_RN = torch.ones_like(right_RN)
    right_RN = right_RN & there_RN
    # Without positives all candidates count as positive: both sums are equal, while log of an empty sum has no
    # gradient.
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
    """Return UNIMO's contrastive loss of the samples `own`, [R] (arXiv:2012.15409, section 2.1 and equation 1).

    Positives are the pairs of a sample's image with its positive texts, and of its caption with its similar images.
    Candidates are all pairs of its image with a text of the batch, and of its caption with an image of the batch.
    Vectors have length 1, so that scores are cosines divided by `temperature`.

    The first text of a sample is its caption. The first `right_N` texts are positive (paraphrases, or retrieved texts);
    later texts are negative (rewritten with another meaning, or captions of other images), as are texts and images of
    other samples. The first image of a sample is its own; later images are positive (retrieved). Images outside
    `seen_NJ` and texts outside `said_NK` are excluded. A sample without positive texts has no loss and is no negative
    of others.
    """
    numbers_N = torch.arange(len(images_NJE), device=images_NJE.device)
    slots_J, slots_K = (torch.arange(side.shape[1], device=side.device) for side in (images_NJE, texts_NKE))
    asked_N = right_N > 0
    seen_NJ, said_NK = seen_NJ & asked_N[:, None], said_NK & asked_N[:, None]
    own_RN = numbers_N[own][:, None] == numbers_N

    texts_RNK = torch.einsum("re,nke->rnk", images_NJE[own][:, 0], texts_NKE) / temperature
    right_RNK = own_RN[:, :, None] & (slots_K < right_N[own][:, None])[:, None, :]
    images_RNJ = torch.einsum("re,nje->rnj", texts_NKE[own][:, 0], images_NJE) / temperature
    # The pair of image and caption already is among the pairs of the image.
    itself_RNJ = own_RN[:, :, None] & (slots_J == 0)

    scores = torch.cat([texts_RNK.flatten(1), images_RNJ.flatten(1)], 1)
    right = torch.cat([right_RNK.flatten(1), (own_RN[:, :, None] & (slots_J > 0)).flatten(1)], 1)
    texts_there = said_NK.flatten().expand(len(own_RN), -1)
    there = torch.cat([texts_there, (seen_NJ & ~itself_RNJ).flatten(1)], 1)
    return info_nce(scores, right, there)
