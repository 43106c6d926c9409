"""A text and an n-gram of it in one space (InfoWord, arXiv:1910.08350, section 4)."""

# S places of a row, B batch, D width, N rows of the whole batch, R some of them

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from megaptm.batch import IGNORED
from megaptm.bricks import HeadBrick
from megaptm.layers.split import Linear
from megaptm.losses.contrast import info_nce
from megaptm.models.contrast import ContrastHead
from megaptm.models.places import at_places
from megaptm.spec import ModelSpec

TEMPERATURE = 0.1
"""What cosines are divided by."""


class InfoMaxHead(ContrastHead):
    """InfoNCE of a text, by its first place, among the n-grams of the batch, each by its own first place.

    The paper multiplies what the encoder says as it is; here both sides go through one map and have length 1, so that
    scores do not grow with the width, as in CLIP. A row's features are its text's vector and its n-gram's.
    """

    def __init__(self, spec: ModelSpec, brick: HeadBrick) -> None:
        super().__init__(spec, brick)
        self.project = Linear.of(brick.maps["project"])

    def features(self, *streams_SBD: Tensor, batch: dict[str, Tensor]) -> Tensor:
        """[B, 2 D]; of rows that do not say where an n-gram begins, its vector is the text's."""
        (x_SBD,) = streams_SBD
        start_B = batch.get(self.answers)
        if start_B is None:
            start_B = torch.zeros(x_SBD.shape[1], dtype=torch.int64, device=x_SBD.device)
        places_B2 = torch.stack([torch.zeros_like(start_B), start_B.clamp(min=0)], 1)
        sides_B2D = self.project(at_places(x_SBD.transpose(0, 1), places_B2))
        return F.normalize(sides_B2D.float(), dim=-1).flatten(1)

    def compare(self, features_NF: Tensor, answers_N: Tensor, own: slice) -> Tensor:
        """[R]; a row without an n-gram is compared with none, and none with it."""
        texts_ND, ngrams_ND = features_NF.chunk(2, dim=-1)
        asked_N = answers_N != IGNORED
        rows_N = torch.arange(len(features_NF), device=features_NF.device)
        right_RN = (rows_N[own, None] == rows_N) & asked_N
        scores_RN = texts_ND[own] @ ngrams_ND.t() / TEMPERATURE
        return info_nce(scores_RN, right_RN, asked_N.expand_as(right_RN))
