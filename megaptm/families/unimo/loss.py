"""Contrastive loss of UNIMO (arXiv:2012.15409, section 2.1)."""

# N samples of the global batch, R some of them, J images and K texts of a sample, E width

from __future__ import annotations

import torch
from torch import Tensor

from megaptm.losses.contrast import info_nce


def cross_modal_contrast(
    images_NJE: Tensor,
    texts_NKE: Tensor,
    num_positive_N: Tensor,
    valid_images_NJ: Tensor,
    valid_texts_NK: Tensor,
    own: slice,
    *,
    temperature: float,
) -> Tensor:
    """Return UNIMO's contrastive loss of the samples `own`, [R] (equation 1).

    Positives are the pairs of a sample's image with its positive texts, and of its caption with its similar images.
    Candidates are all pairs of its image with a text of the batch, and of its caption with an image of the batch.
    Vectors have length 1, so that scores are cosines divided by `temperature`.

    The first text of a sample is its caption. The first `num_positive_N` texts are positive (paraphrases, or retrieved
    texts); later texts are negative (rewritten with another meaning, or captions of other images), as are texts and
    images of other samples. The first image of a sample is its own; later images are positive (retrieved). Images
    outside `valid_images_NJ` and texts outside `valid_texts_NK` are excluded. A sample without positive texts has no
    loss and is no negative of others.
    """
    indices_N = torch.arange(len(images_NJE), device=images_NJE.device)
    slots_J, slots_K = (torch.arange(side.shape[1], device=side.device) for side in (images_NJE, texts_NKE))
    has_positive_N = num_positive_N > 0
    valid_images_NJ, valid_texts_NK = (
        valid_images_NJ & has_positive_N[:, None],
        valid_texts_NK & has_positive_N[:, None],
    )
    own_RN = indices_N[own][:, None] == indices_N

    texts_RNK = torch.einsum("re,nke->rnk", images_NJE[own][:, 0], texts_NKE) / temperature
    positive_RNK = own_RN[:, :, None] & (slots_K < num_positive_N[own][:, None])[:, None, :]
    images_RNJ = torch.einsum("re,nje->rnj", texts_NKE[own][:, 0], images_NJE) / temperature
    # The pair of image and caption already is among the pairs of the image.
    own_pair_RNJ = own_RN[:, :, None] & (slots_J == 0)

    scores = torch.cat([texts_RNK.flatten(1), images_RNJ.flatten(1)], 1)
    positive = torch.cat([positive_RNK.flatten(1), (own_RN[:, :, None] & (slots_J > 0)).flatten(1)], 1)
    texts_valid = valid_texts_NK.flatten().expand(len(own_RN), -1)
    candidates = torch.cat([texts_valid, (valid_images_NJ & ~own_pair_RNJ).flatten(1)], 1)
    return info_nce(scores, positive, candidates)
