"""Contrastive head of a text and an n-gram of it (InfoWord, arXiv:1910.08350, section 4)."""

# S sequence, B batch, D width, N samples of the global batch, R some of them

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from megaptm.batch import IGNORED
from megaptm.layers.split import Linear
from megaptm.losses.contrast import info_nce
from megaptm.models.contrast import ContrastHead
from megaptm.models.head_costs import HeadCosts
from megaptm.models.target_positions import states_at
from megaptm.spec import ModelSpec

TEMPERATURE = 0.1
"""Temperature of InfoWord's comparison, by which cosines are divided."""


class InfoMaxHead(ContrastHead):
    """InfoNCE between the first position of a text and the first positions of all n-grams of the batch.

    The paper multiplies hidden states directly. Here both sides are projected and normalized, so that scores do not
    grow with the width, as in CLIP. Features of a sample are its text vector and its n-gram vector.
    """

    def __init__(self, spec: ModelSpec, costs: HeadCosts) -> None:
        super().__init__(spec, costs)
        self.project = Linear.from_shape(costs.linears["project"])

    def features(self, *streams_SBD: Tensor, batch: dict[str, Tensor]) -> Tensor:
        """Return the features of text and n-gram for InfoWord's comparison, [B, 2 D]. If a sample has no n-gram, the
        vector of the n-gram is that of the text."""
        (x_SBD,) = streams_SBD
        start_B = batch.get(self.label_field)
        if start_B is None:
            start_B = torch.zeros(x_SBD.shape[1], dtype=torch.int64, device=x_SBD.device)
        positions_B2 = torch.stack([torch.zeros_like(start_B), start_B.clamp(min=0)], 1)
        sides_B2D = self.project(states_at(x_SBD.transpose(0, 1), positions_B2))
        return F.normalize(sides_B2D.float(), dim=-1).flatten(1)

    def compare(self, features_NF: Tensor, answers_N: Tensor, own: slice) -> Tensor:
        """Return the contrastive loss of InfoWord, [R]. Samples without an n-gram are excluded."""
        texts_ND, ngrams_ND = features_NF.chunk(2, dim=-1)
        labeled_N = answers_N != IGNORED
        rows_N = torch.arange(len(features_NF), device=features_NF.device)
        right_RN = (rows_N[own, None] == rows_N) & labeled_N
        scores_RN = texts_ND[own] @ ngrams_ND.t() / TEMPERATURE
        return info_nce(scores_RN, right_RN, labeled_N.expand_as(right_RN))
