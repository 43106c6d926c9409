"""Head of UNIMO: contrast of images and texts (arXiv:2012.15409, section 2.1)."""

# S sequence, B batch, D width, J images and K texts of a sample, N samples of the global batch, R some of them

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from megaptm.batch import IGNORED
from megaptm.families.unimo.head_costs import MAX_COMPARED_IMAGES, MAX_COMPARED_TEXTS
from megaptm.families.unimo.loss import cross_modal_contrast
from megaptm.models.contrast import ContrastHead
from megaptm.models.target_positions import states_at

TEMPERATURE = 0.1
"""Temperature of UNIMO's comparison, by which cosines are divided. The paper does not publish its value."""


class CrossModalHead(ContrastHead):
    """Head of cross-modal contrast (CMCL). The vector of an image is the hidden state at its position in
    `image_starts`; that of a text, the hidden state at its first position (`text_starts`). Images and texts of a sample
    are separate documents: they do not attend to each other.

    Features of a sample are the normalized vectors of its images and texts, and flags for which exist.
    """

    def features(self, *streams_SBD: Tensor, batch: dict[str, Tensor]) -> Tensor:
        """Return the features of UNIMO's comparison, [B, (D + 1) (J + K)]. If the batch has no positions, a text starts
        at position 0, and an image after the text positions."""
        (x_SBD,) = streams_SBD
        x_BSD = x_SBD.transpose(0, 1)
        positions = x_BSD.shape[1]
        regions = batch["region_features"].shape[1] if "region_features" in batch else positions
        images, valid_images_BJ = _normalized_vectors(
            x_BSD, batch.get("image_starts"), MAX_COMPARED_IMAGES, first=positions - regions
        )
        texts, valid_texts_BK = _normalized_vectors(x_BSD, batch.get("text_starts"), MAX_COMPARED_TEXTS, first=0)
        return torch.cat([images, texts, valid_images_BJ, valid_texts_BK], -1)

    def compare(self, features_NF: Tensor, answers_N: Tensor, own: slice) -> Tensor:
        """Return the cross-modal contrastive loss, [R]. The label of a sample is its number of positive texts."""
        counts = (MAX_COMPARED_IMAGES, MAX_COMPARED_TEXTS)
        width = features_NF.shape[1] // sum(counts) - 1
        images, texts, valid_images_NJ, valid_texts_NK = features_NF.split(
            [width * counts[0], width * counts[1], *counts], dim=-1
        )
        return cross_modal_contrast(
            images.unflatten(1, (MAX_COMPARED_IMAGES, width)),
            texts.unflatten(1, (MAX_COMPARED_TEXTS, width)),
            answers_N.clamp(min=0),
            valid_images_NJ > 0.5,
            valid_texts_NK > 0.5,
            own,
            temperature=TEMPERATURE,
        )


def _normalized_vectors(x_BSD: Tensor, positions_BK: Tensor | None, count: int, *, first: int) -> tuple[Tensor, Tensor]:
    """Return normalized vectors [B, K D], zero where a sample has fewer than `count`, and flags [B, K]. If
    `positions_BK` is None, there is one position, `first`."""
    if positions_BK is None:
        positions_BK = torch.full((len(x_BSD), count), IGNORED, device=x_BSD.device)
        positions_BK[:, 0] = first
    valid_BK = (positions_BK != IGNORED).float()
    vectors_BKD = F.normalize(states_at(x_BSD, positions_BK.clamp(min=0)).float(), dim=-1)
    return (vectors_BKD * valid_BK[:, :, None]).flatten(1), valid_BK
