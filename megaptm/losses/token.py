"""Vocabulary projection and cross-entropy in one function, without materializing all logits."""

# N samples, D width, V padded vocabulary, C samples of a chunk

from __future__ import annotations

from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from megaptm.batch import IGNORED
from megaptm.layers.accumulate import gradient_sum_of
from megaptm.layers.table_gradient import TableGradient, scaled
from megaptm.losses.token_costs import ROWS_PROJECTED

SAMPLING_CHUNK = 256
"""Samples whose tokens are sampled at once: 100 MB at vocabulary 30,522 and fp32."""


class Projected(NamedTuple):
    """Input of a vocabulary projection; logits are `hidden @ weight.T + bias`."""

    hidden: Tensor
    """Hidden states [N, D]."""
    weight: Tensor
    """Projection [V, D]."""
    bias: Tensor | None
    """Bias [V]."""

    def select(self, rows: Any) -> Projected:
        """Return a subset of the samples."""
        return self._replace(hidden=self.hidden[rows])

    def logits(self) -> Tensor:
        """Return logits [N, V]."""
        return F.linear(*self)


class TokenLoss(nn.Module):
    """Summed cross-entropy of `hidden @ weight.T + bias`; rows of the table above `vocabulary` are excluded.

    Projection and loss are one module, because they are split over ranks together.
    """

    def __init__(self, vocabulary: int, *, z_loss: float = 0.0, label_smoothing: float = 0.0) -> None:
        """`z_loss`: weight of the squared log-normalizer. `label_smoothing`: probability mass spread evenly over the
        vocabulary. Both apply in training only."""
        super().__init__()
        self.vocabulary, self.z_loss, self.label_smoothing = vocabulary, z_loss, label_smoothing

    def forward(self, hidden_ND: Tensor, weight_VD: Tensor, bias_V: Tensor | None, labels_N: Tensor) -> Tensor:
        """Return the float32 sum over samples whose label is not `IGNORED`."""
        if drops_unlabeled(hidden_ND):
            counted = (labels_N != IGNORED).nonzero().squeeze(1)
            if len(counted) < len(labels_N):
                hidden_ND, labels_N = hidden_ND[counted], labels_N[counted]
        z_loss, smoothing = (self.z_loss, self.label_smoothing) if self.training else (0.0, 0.0)
        loss: Tensor = _ProjectedCrossEntropy.apply(
            hidden_ND, weight_VD, bias_V, labels_N, self.vocabulary, z_loss, smoothing, torch.is_grad_enabled()
        )
        return loss

    @torch.no_grad()
    def sample(self, hidden_ND: Tensor, weight_VD: Tensor, bias_V: Tensor | None, draws_N: Tensor) -> Tensor:
        """Sample a token for each hidden state, [N], by inverse transform of a number in [0, 1)."""
        tokens = []
        for hidden_CD, draws_C in zip(hidden_ND.split(SAMPLING_CHUNK), draws_N.split(SAMPLING_CHUNK), strict=True):
            logits_CV = self.logits(hidden_CD, weight_VD, bias_V).float()
            tokens.append(pick(cumulative_shares(logits_CV, logits_CV.amax(-1, keepdim=True)), draws_C))
        return torch.cat(tokens)

    def logits(self, hidden: Tensor, weight_VD: Tensor, bias_V: Tensor | None) -> Tensor:
        """Return logits, [..., D] -> [..., vocabulary]."""
        bias = bias_V[: self.vocabulary] if bias_V is not None else None
        return F.linear(hidden, weight_VD[: self.vocabulary], bias)


class ReplicatedTokenLoss(TokenLoss):
    """Token loss for a table that is replicated on tensor ranks."""


def drops_unlabeled(hidden_ND: Tensor) -> bool:
    """Whether samples without a label are dropped before the product.

    Not on GPUs, where counting them would synchronize with the host; there they are computed and multiplied by zero.
    """
    return hidden_ND.device.type == "cpu"


def cumulative_shares(logits_CV: Tensor, largest_C1: Tensor) -> Tensor:
    """Return cumulative sums over the vocabulary, [C, V], of probabilities in units of 2^-34 of the largest one.

    int64 sums do not depend on the order of addition, unlike float sums on GPUs. Exact also as float64 for fewer than
    2^19 tokens.
    """
    return ((logits_CV - largest_C1).exp() * 2.0**34).round().long().cumsum(-1)


def pick(shares_CV: Tensor, draws_C: Tensor) -> Tensor:
    """Return the token [C] whose share of the cumulative sum contains a number in [0, 1)."""
    thresholds_C1 = (draws_C[:, None].double() * shares_CV[:, -1:]).long()
    # NaN in a diverged run gives an arbitrary token. The loss reports the divergence.
    return torch.searchsorted(shares_CV, thresholds_C1, right=True).squeeze(1).clamp(max=shares_CV.shape[1] - 1)


class _ProjectedCrossEntropy(torch.autograd.Function):
    """Compute the gradient while a chunk's probabilities are in memory; `backward` only scales it.

    Memory is one chunk of logits plus the gradients; plain cross-entropy holds N x V values three times.
    """

    @staticmethod
    def forward(
        ctx: Any,
        hidden_ND: Tensor,
        weight_VD: Tensor,
        bias_V: Tensor | None,
        labels_N: Tensor,
        vocabulary: int,
        z_loss: float,
        smoothing: float,
        wants_gradient: bool,
    ) -> Tensor:
        ctx.weight, ctx.bias_dtype = weight_VD, bias_V.dtype if bias_V is not None else None
        d_weight = TableGradient(weight_VD, rows=len(hidden_ND), chunk=ROWS_PROJECTED)
        loss = hidden_ND.new_zeros((), dtype=torch.float32)
        d_hidden = torch.empty_like(hidden_ND)
        d_bias = torch.zeros_like(bias_V, dtype=torch.float32) if bias_V is not None else None
        for start in range(0, len(hidden_ND), ROWS_PROJECTED):
            rows = slice(start, start + ROWS_PROJECTED)
            hidden_CD, labels_C1 = hidden_ND[rows], labels_N[rows].clamp(min=0)[:, None]
            counted_C1 = (labels_N[rows] != IGNORED)[:, None]
            logits_CV = F.linear(hidden_CD, weight_VD, bias_V)
            logits_CV[:, vocabulary:] = float("-inf")
            d_CV = torch.softmax(logits_CV, -1, dtype=torch.float32)
            # The normalizer follows from the largest probability, which is at least 1/V: no second pass of
            # exponentials, and no logarithm of a probability that underflowed.
            largest_C1, at_C1 = logits_CV.max(-1, keepdim=True)
            normalizer_C1 = largest_C1.float() - d_CV.gather(1, at_C1).log()
            terms_C1 = normalizer_C1 - (1 - smoothing) * logits_CV.gather(1, labels_C1).float()
            if smoothing:
                real_CV = logits_CV[:, :vocabulary]
                terms_C1 -= smoothing / vocabulary * real_CV.sum(-1, keepdim=True, dtype=torch.float32)
            if z_loss:
                terms_C1 += z_loss * normalizer_C1.square()
            loss += (terms_C1 * counted_C1).sum()
            if not wants_gradient:
                continue
            # Gradient of the logits: probabilities minus targets. In place, because each pass over C x V values costs
            # time.
            if z_loss:
                d_CV.mul_(1 + 2 * z_loss * normalizer_C1)
            d_CV.scatter_add_(1, labels_C1, d_CV.new_full((), smoothing - 1.0).expand(len(labels_C1), 1))
            if smoothing:
                d_CV[:, :vocabulary] -= smoothing / vocabulary
            if logits_CV.dtype != d_CV.dtype:
                d_CV = logits_CV.copy_(d_CV)
            # Samples without a label are masked on the narrow side of each product.
            torch.mul(d_CV @ weight_VD, counted_C1, out=d_hidden[rows])
            d_weight.add(d_CV, hidden_CD * counted_C1)
            if d_bias is not None:
                d_bias += (d_CV.t() @ counted_C1.to(d_CV.dtype)).squeeze(1)
        if wants_gradient:
            ctx.gradients = (d_hidden, d_weight, d_bias)
        return loss

    @staticmethod
    def backward(ctx: Any, *d_losses: Tensor) -> tuple[Tensor | None, ...]:
        (d_loss,) = d_losses
        gradients = scaled(
            *ctx.gradients, d_loss=d_loss, bias_dtype=ctx.bias_dtype, gradient_sum=gradient_sum_of(ctx.weight)
        )
        del ctx.gradients
        return *gradients, *[None] * 5
