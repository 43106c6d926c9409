"""Images and texts in the one space of a stack that reads both (UNIMO, arXiv:2012.15409, section 2.1)."""

# S places of a row, B batch, D width, J images of a row, K texts of it, N rows of the whole batch, R some of them

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from megaptm.batch import COMPARED_IMAGES, COMPARED_TEXTS, IGNORED
from megaptm.losses.contrast import cross_modal_contrast
from megaptm.models.contrast import ContrastHead
from megaptm.models.places import at_places

TEMPERATURE = 0.1
"""What cosines are divided by. The paper has one, and does not say it."""


class CrossModalHead(ContrastHead):
    """CMCL. An image's vector is what is said where the whole of it stands, by `image_places`; a text's what is said
    where it begins, by `text_places`. None sees another: a row's texts and its images are documents of their own.

    A row's features are its images' vectors and its texts', each of length 1, and which of both there are.
    """

    def features(self, *streams_SBD: Tensor, batch: dict[str, Tensor]) -> Tensor:
        """[B, (D + 1) (J + K)]; of rows that do not say where texts and images begin, a text begins at the first place,
        and an image behind the texts' places."""
        (x_SBD,) = streams_SBD
        x_BSD = x_SBD.transpose(0, 1)
        places = x_BSD.shape[1]
        regions = batch["region_features"].shape[1] if "region_features" in batch else places
        images, seen_BJ = _vectors(x_BSD, batch.get("image_places"), COMPARED_IMAGES, first=places - regions)
        texts, said_BK = _vectors(x_BSD, batch.get("text_places"), COMPARED_TEXTS, first=0)
        return torch.cat([images, texts, seen_BJ, said_BK], -1)

    def compare(self, features_NF: Tensor, answers_N: Tensor, own: slice) -> Tensor:
        """[R]; an answer is how many of a row's texts say what its image shows."""
        counts = (COMPARED_IMAGES, COMPARED_TEXTS)
        width = features_NF.shape[1] // sum(counts) - 1
        images, texts, seen_NJ, said_NK = features_NF.split([width * counts[0], width * counts[1], *counts], dim=-1)
        return cross_modal_contrast(
            images.unflatten(1, (COMPARED_IMAGES, width)),
            texts.unflatten(1, (COMPARED_TEXTS, width)),
            answers_N.clamp(min=0),
            seen_NJ > 0.5,
            said_NK > 0.5,
            own,
            temperature=TEMPERATURE,
        )


def _vectors(x_BSD: Tensor, places_BK: Tensor | None, most: int, *, first: int) -> tuple[Tensor, Tensor]:
    """[B, K D], what is said at places, of length 1, and zeros where a row has fewer than `most`; and [B, K], 1 where
    it has one. Of rows that do not say where there is one, at `first`."""
    if places_BK is None:
        places_BK = torch.full((len(x_BSD), most), IGNORED, device=x_BSD.device)
        places_BK[:, 0] = first
    there_BK = (places_BK != IGNORED).float()
    vectors_BKD = F.normalize(at_places(x_BSD, places_BK.clamp(min=0)).float(), dim=-1)
    return (vectors_BKD * there_BK[:, :, None]).flatten(1), there_BK
