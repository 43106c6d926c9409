"""Contrastive head of CLIP (arXiv:2103.00020)."""

# S sequence, B batch, D width, E features of a side, N samples of the global batch, R some of them

from __future__ import annotations

import math
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from megaptm.batch import IGNORED
from megaptm.families.clip.head_costs import ROWS_COMPARED
from megaptm.layers.split import Linear
from megaptm.models.contrast import ContrastHead
from megaptm.models.head_costs import HeadCosts
from megaptm.spec import ModelSpec

LARGEST = math.log(100)
"""Maximum of the log temperature of CLIP's contrastive head (arXiv:2103.00020, 2.5)."""


class ImageTextHead(ContrastHead):
    """CLIP's contrastive head: mean of the cross-entropies of the N x N cosines in both directions, times a learned
    temperature.

    Reads an image at its class token, and a text at its end token. Features of a sample are the normalized vectors of
    image and text, and the temperature.
    """

    in_float32 = ("scale",)
    """Parameters of CLIP's head that stay float32: in bfloat16 1 / 0.07 could change only by 1.6 percent, or not at
    all."""

    def __init__(self, spec: ModelSpec, costs: HeadCosts) -> None:
        super().__init__(spec, costs)
        image, text = (reading.stack for reading in costs.head_inputs)
        self.image, self.text = Linear.from_shape(costs.linears[image]), Linear.from_shape(costs.linears[text])
        self.scale = nn.Parameter(torch.empty(1))

    def features(self, *streams_SBD: Tensor, batch: dict[str, Tensor]) -> Tensor:
        """Return the features of the image-text head, [B, 2 E + 1]. If the batch has no end positions, texts end at the
        last position."""
        image_SBD, text_SBD = streams_SBD
        rows = torch.arange(text_SBD.shape[1], device=text_SBD.device)
        end_B = (
            batch[self.label_field].clamp(min=0)
            if self.label_field in batch
            else torch.full_like(rows, len(text_SBD) - 1)
        )
        sides = self.image(image_SBD[0]), self.text(text_SBD[end_B, rows])
        scale = _ClampTemperature.apply(self.scale).float().exp()
        return torch.cat([*(F.normalize(side.float(), dim=-1) for side in sides), scale.expand(len(rows), 1)], -1)

    def compare(self, features_NF: Tensor, answers_N: Tensor, own: slice) -> Tensor:
        """Return the loss of the image-text head, [R]. Samples without a text are excluded. Scores of many samples are
        recomputed in the backward pass, `ROWS_COMPARED` at a time."""
        rows = range(*own.indices(len(features_NF)))
        if len(rows) <= ROWS_COMPARED:
            return self._contrastive_loss(features_NF, answers_N, own)
        parts = [slice(at, min(at + ROWS_COMPARED, rows.stop)) for at in range(rows.start, rows.stop, ROWS_COMPARED)]
        again = partial(checkpoint, self._contrastive_loss, features_NF, answers_N, use_reentrant=False)
        return torch.cat([again(part) for part in parts])

    def _contrastive_loss(self, features_NF: Tensor, answers_N: Tensor, own: slice) -> Tensor:
        width = features_NF.shape[1] // 2
        images_NE, texts_NE, scale_N1 = features_NF.split([width, width, 1], dim=-1)
        # Equal in each sample: the gradient of the mean distributes the total evenly.
        scale, labeled_N = scale_N1.mean(), answers_N != IGNORED
        right_R = torch.arange(len(features_NF), device=features_NF.device)[own]
        right_R = torch.where(labeled_N[own], right_R, IGNORED)
        loss_R = torch.zeros((), device=features_NF.device)
        for own_RE, all_NE in ((images_NE[own], texts_NE), (texts_NE[own], images_NE)):
            scores_RN = (scale * own_RE @ all_NE.t()).masked_fill(~labeled_N, -torch.inf)
            loss_R = loss_R + F.cross_entropy(scores_RN, right_R, reduction="none") / 2
        return loss_R


class _ClampTemperature(torch.autograd.Function):
    """Autograd function that clamps CLIP's log temperature to at most `LARGEST`. At the bound, gradients that would
    increase the value are dropped. Every sample's gradient has the same sign, so the layout does not change what is
    dropped."""

    @staticmethod
    def forward(ctx: Any, number: Tensor) -> Tensor:
        ctx.save_for_backward(number)
        return number.clamp(max=LARGEST)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:
        (number,), (gradient,) = ctx.saved_tensors, gradients
        return torch.where((number >= LARGEST) & (gradient < 0), 0, gradient)
