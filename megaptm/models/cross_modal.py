"""Images and texts in the one space of a stack that reads both (UNIMO, arXiv:2012.15409, section 2.1)."""

# S places of a row, B batch, D width, K texts of a row, N rows of the whole batch, R some of them

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from megaptm.batch import COMPARED_TEXTS, IGNORED
from megaptm.losses.contrast import cross_modal_contrast
from megaptm.models.contrast import ContrastHead
from megaptm.models.places import at_places

TEMPERATURE = 0.1
"""What cosines are divided by. The paper has one, and does not say it."""


class CrossModalHead(ContrastHead):
    """CMCL. An image's vector is what is said where the whole of it stands, the first region behind the texts' places;
    a text's what is said where it begins, by `text_places`. None sees another: a row's texts and its image are
    documents of their own.

    A row's features are its image's vector and its texts', each of length 1, and which of the texts there are.
    """

    def features(self, *streams_SBD: Tensor, batch: dict[str, Tensor]) -> Tensor:
        """[B, D (1 + K) + K]; of rows that do not say where texts begin, one begins at the first place."""
        (x_SBD,) = streams_SBD
        x_BSD = x_SBD.transpose(0, 1)
        rows, places, _ = x_BSD.shape
        regions = batch["region_features"].shape[1] if "region_features" in batch else places
        places_BK = batch.get("text_places")
        if places_BK is None:
            places_BK = torch.full((rows, COMPARED_TEXTS), IGNORED, device=x_BSD.device)
            places_BK[:, 0] = 0
        there_BK = (places_BK != IGNORED).float()
        images_BD = F.normalize(x_BSD[:, places - regions].float(), dim=-1)
        texts_BKD = F.normalize(at_places(x_BSD, places_BK.clamp(min=0)).float(), dim=-1)
        return torch.cat([images_BD, (texts_BKD * there_BK[:, :, None]).flatten(1), there_BK], -1)

    def compare(self, features_NF: Tensor, answers_N: Tensor, own: slice) -> Tensor:
        """[R]; an answer is how many of a row's texts say what its image shows."""
        width = (features_NF.shape[1] - COMPARED_TEXTS) // (1 + COMPARED_TEXTS)
        images_ND, texts, there_NK = features_NF.split([width, width * COMPARED_TEXTS, COMPARED_TEXTS], dim=-1)
        texts_NKD = texts.unflatten(1, (COMPARED_TEXTS, width))
        return cross_modal_contrast(
            images_ND, texts_NKD, answers_N.clamp(min=0), there_NK > 0.5, own, temperature=TEMPERATURE
        )
