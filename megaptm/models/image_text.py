"""Images and texts in one space (CLIP, arXiv:2103.00020)."""

# S places of a row, B batch, D width, E features of a side, N rows of the whole batch, R some of them

from __future__ import annotations

import math
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from megaptm.batch import IGNORED
from megaptm.bricks import HeadBrick
from megaptm.bricks.image_heads import ROWS_COMPARED
from megaptm.layers.split import Linear
from megaptm.models.contrast import ContrastHead
from megaptm.spec import ModelSpec

LARGEST = math.log(100)
"""Of the logarithm of what cosines are multiplied by (arXiv:2103.00020, 2.5)."""


class ImageTextHead(ContrastHead):
    """What is said at an image's own place, the first, and at the end of a text, where a causal stack has read all of
    it; the mean of the two cross-entropies of the N x N cosines, times the exponential of a number that is learned.

    A row's features are its image's, its text's, each of length 1, and that exponential.
    """

    in_float32 = ("scale",)
    """Parameters that are never in bfloat16: there 1 / 0.07 would change by 1.6 percent, or not at all."""

    def __init__(self, spec: ModelSpec, brick: HeadBrick) -> None:
        super().__init__(spec, brick)
        image, text = (reading.stack for reading in brick.readings)
        self.image, self.text = Linear.of(brick.maps[image]), Linear.of(brick.maps[text])
        self.scale = nn.Parameter(torch.empty(1))

    def features(self, *streams_SBD: Tensor, batch: dict[str, Tensor]) -> Tensor:
        """[B, 2 E + 1]; of a batch that does not say where texts end, they end at the last place."""
        image_SBD, text_SBD = streams_SBD
        rows = torch.arange(text_SBD.shape[1], device=text_SBD.device)
        end_B = batch[self.answers].clamp(min=0) if self.answers in batch else torch.full_like(rows, len(text_SBD) - 1)
        sides = self.image(image_SBD[0]), self.text(text_SBD[end_B, rows])
        scale = _Bounded.apply(self.scale).float().exp()
        return torch.cat([*(F.normalize(side.float(), dim=-1) for side in sides), scale.expand(len(rows), 1)], -1)

    def compare(self, features_NF: Tensor, answers_N: Tensor, own: slice) -> Tensor:
        """[R]; a row without a text is compared with none, and none with it. Of many rows what they say of all is
        computed again in the backward pass, `ROWS_COMPARED` at a time."""
        rows = range(*own.indices(len(features_NF)))
        if len(rows) <= ROWS_COMPARED:
            return self._compared(features_NF, answers_N, own)
        parts = [slice(at, min(at + ROWS_COMPARED, rows.stop)) for at in range(rows.start, rows.stop, ROWS_COMPARED)]
        again = partial(checkpoint, self._compared, features_NF, answers_N, use_reentrant=False)
        return torch.cat([again(part) for part in parts])

    def _compared(self, features_NF: Tensor, answers_N: Tensor, own: slice) -> Tensor:
        width = features_NF.shape[1] // 2
        images_NE, texts_NE, scale_N1 = features_NF.split([width, width, 1], dim=-1)
        # The same of each row: the mean's gradient is the whole one's share for each.
        scale, asked_N = scale_N1.mean(), answers_N != IGNORED
        right_R = torch.arange(len(features_NF), device=features_NF.device)[own]
        right_R = torch.where(asked_N[own], right_R, IGNORED)
        loss_R = torch.zeros((), device=features_NF.device)
        for mine_RE, all_NE in ((images_NE[own], texts_NE), (texts_NE[own], images_NE)):
            scores_RN = (scale * mine_RE @ all_NE.t()).masked_fill(~asked_N, -torch.inf)
            loss_R = loss_R + F.cross_entropy(scores_RN, right_R, reduction="none") / 2
        return loss_R


class _Bounded(torch.autograd.Function):
    """A number, at most `LARGEST`. At the bound it may learn to become less: gradients that would raise it further are
    left out. That of each row has the same sign, so no layout changes what is left out."""

    @staticmethod
    def forward(ctx: Any, number: Tensor) -> Tensor:
        ctx.save_for_backward(number)
        return number.clamp(max=LARGEST)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:
        (number,), (gradient,) = ctx.saved_tensors, gradients
        return torch.where((number >= LARGEST) & (gradient < 0), 0, gradient)
