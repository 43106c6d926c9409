"""Vocabulary projection and cross-entropy in one function, without materializing all logits."""

# N samples, D width, V padded vocabulary, C samples of a chunk

from __future__ import annotations

from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch._subclasses.fake_tensor import is_fake

from megaptm.batch import IGNORED
from megaptm.layers.accumulate import gradient_sum_of, sum_dtype
from megaptm.layers.soft_cap import soft_cap
from megaptm.layers.table_gradient import TableGradient, scale_gradients
from megaptm.losses.cross_entropy import ALONE, CrossEntropy, is_cross_entropy_fused
from megaptm.losses.token_costs import LOGIT_BYTES, num_rows_projected

SAMPLED_LOGIT_BYTES = 26
"""Bytes of a logit while tokens are sampled: the logit, its float32 copy and exponential, and int64 shares and sums."""


class Projected(NamedTuple):
    """Input of a vocabulary projection: the logits are `hidden @ weight.T + bias`."""

    hidden: Tensor
    """Hidden states [N, D] that are projected on the vocabulary."""
    weight: Tensor
    """Weight [V, D] of the vocabulary projection."""
    bias: Tensor | None
    """Bias [V] of the vocabulary projection."""

    def select(self, rows: Any) -> Projected:
        """Return a subset of the positions of a vocabulary projection."""
        return self._replace(hidden=self.hidden[rows])

    def logits(self) -> Tensor:
        """Return the logits [N, V] of a vocabulary projection."""
        return F.linear(*self)


class TokenLoss(nn.Module):
    """Cross-entropy, summed over positions, of the logits `hidden @ weight.T + bias`. Rows of the table above
    `vocabulary` are excluded.

    Projection and loss are one module, because they are split over ranks together.
    """

    ranks = ALONE
    """Tensor ranks that divide the vocabulary of the token loss."""

    def __init__(
        self, vocabulary: int, *, z_loss: float = 0.0, label_smoothing: float = 0.0, cap: float | None = None
    ) -> None:
        """`z_loss`: weight of the squared log-normalizer. `label_smoothing`: probability mass spread evenly over the
        vocabulary. Both apply in training only. `cap`: soft cap of the logits."""
        super().__init__()
        self.vocabulary, self.z_loss, self.label_smoothing, self.cap = vocabulary, z_loss, label_smoothing, cap

    def forward(self, hidden_ND: Tensor, weight_VD: Tensor, bias_V: Tensor | None, labels_N: Tensor) -> Tensor:
        """Return the cross-entropy, float32, summed over positions whose label is not `IGNORED`."""
        if drops_unlabeled(hidden_ND):
            counted = (labels_N != IGNORED).nonzero().squeeze(1)
            if len(counted) < len(labels_N):
                hidden_ND, labels_N = hidden_ND[counted], labels_N[counted]
        z_loss, smoothing = (self.z_loss, self.label_smoothing) if self.training else (0.0, 0.0)
        cross_entropy = CrossEntropy(self.vocabulary, z_loss, smoothing, self.ranks, self.cap)
        loss: Tensor = _ProjectedCrossEntropy.apply(
            hidden_ND, weight_VD, bias_V, labels_N, cross_entropy, torch.is_grad_enabled()
        )
        return loss

    @torch.no_grad()
    def sample(self, hidden_ND: Tensor, weight_VD: Tensor, bias_V: Tensor | None, draws_N: Tensor) -> Tensor:
        """Sample a token for each hidden state, [N], by inverse transform of a uniform number in [0, 1)."""
        tokens = []
        rows = num_rows_projected(len(hidden_ND), len(weight_VD), SAMPLED_LOGIT_BYTES)
        for hidden_CD, draws_C in zip(hidden_ND.split(rows), draws_N.split(rows), strict=True):
            logits_CV = self.logits(hidden_CD, weight_VD, bias_V).float()
            tokens.append(pick_token(cumulative_shares(logits_CV, logits_CV.amax(-1, keepdim=True)), draws_C))
        return torch.cat(tokens)

    def logits(self, hidden: Tensor, weight_VD: Tensor, bias_V: Tensor | None) -> Tensor:
        """Return the logits of hidden states, [..., D] -> [..., vocabulary]."""
        bias = bias_V[: self.vocabulary] if bias_V is not None else None
        return soft_cap(F.linear(hidden, weight_VD[: self.vocabulary], bias), self.cap)


class ReplicatedTokenLoss(TokenLoss):
    """Token loss with an embedding table that is replicated on tensor ranks."""


def _bytes_per_logit(hidden: Tensor, cap: float | None = None) -> int:
    """Return the bytes per logit. With triton the gradient replaces the logit; otherwise there is a float32 softmax,
    and its float32 input in other formats. A soft cap needs its slope."""
    element = hidden.element_size()
    return (element if is_cross_entropy_fused(hidden) else LOGIT_BYTES[element]) + (0 if cap is None else element)


def drops_unlabeled(hidden_ND: Tensor) -> bool:
    """Whether the token loss drops positions without a label before the vocabulary projection.

    Not on GPUs, where counting them would synchronize with the host; there they are computed and multiplied by zero.
    Fake tensors (`parallel.dry_run`) have no values to count.
    """
    return hidden_ND.device.type == "cpu" and not is_fake(hidden_ND)


def cumulative_shares(logits_CV: Tensor, largest_C1: Tensor) -> Tensor:
    """Return cumulative sums over the vocabulary, [C, V], of token probabilities, in units of 2^-34 of the largest one.

    int64 sums do not depend on the order of addition, unlike float sums on GPUs. They are exact as float64 too, for
    fewer than 2^19 tokens.
    """
    return ((logits_CV - largest_C1).exp() * 2.0**34).round().long().cumsum(-1)


def pick_token(shares_CV: Tensor, draws_C: Tensor) -> Tensor:
    """Return the sampled token [C]: the one whose interval of the cumulative sum contains the uniform number in [0,
    1)."""
    thresholds_C1 = (draws_C[:, None].double() * shares_CV[:, -1:]).long()
    # NaN in a diverged run gives an arbitrary token. The loss reports the divergence.
    return torch.searchsorted(shares_CV, thresholds_C1, right=True).squeeze(1).clamp(max=shares_CV.shape[1] - 1)


class _ProjectedCrossEntropy(torch.autograd.Function):
    """Autograd function of vocabulary projection and cross-entropy. It computes the gradient in the forward pass, while
    a chunk's logits are in memory; `backward` only scales it.

    Memory is one chunk of logits plus the gradients; plain cross-entropy holds N x V values three times.
    """

    @staticmethod
    def forward(
        ctx: Any,
        hidden_ND: Tensor,
        weight_VD: Tensor,
        bias_V: Tensor | None,
        labels_N: Tensor,
        cross_entropy: CrossEntropy,
        wants_gradient: bool,
    ) -> Tensor:
        rows_projected = num_rows_projected(
            len(hidden_ND), len(weight_VD), _bytes_per_logit(hidden_ND, cross_entropy.cap)
        )
        ctx.weight, ctx.bias_dtype = weight_VD, bias_V.dtype if bias_V is not None else None
        d_weight = TableGradient(weight_VD, rows=len(hidden_ND), chunk=rows_projected)
        d_hidden = torch.empty_like(hidden_ND)
        d_bias: Tensor | None = None
        terms, unfinished = [hidden_ND.new_zeros(0, dtype=torch.float32)], []
        for start in range(0, len(hidden_ND), rows_projected):
            rows = slice(start, start + rows_projected)
            hidden_CD = hidden_ND[rows]
            logits_CV = F.linear(hidden_CD, weight_VD, bias_V)
            terms_C, d_CV = cross_entropy(logits_CV, labels_N[rows], gradient=wants_gradient)
            terms.append(terms_C)
            if d_CV is None:
                continue
            if d_CV.is_cuda:
                torch.mm(d_CV, weight_VD, out=d_hidden[rows])
            else:
                d_hidden[rows] = d_CV @ weight_VD  # products tuned for CPUs have no `out`
            if cross_entropy.ranks.begin_sum is not None:
                unfinished.append(cross_entropy.ranks.begin_sum(d_hidden[rows]))
            d_weight.add(d_CV, hidden_CD)
            if bias_V is not None:
                d_bias_of_chunk = d_CV.sum(0, dtype=sum_dtype(d_CV.dtype))
                d_bias = d_bias_of_chunk if d_bias is None else d_bias.add_(d_bias_of_chunk)
            del logits_CV, d_CV  # the next chunk takes their memory
        for wait in unfinished:
            wait()
        if wants_gradient:
            if bias_V is not None and d_bias is None:
                d_bias = torch.zeros_like(bias_V, dtype=torch.float32)
            ctx.gradients = (d_hidden, d_weight, d_bias)
        return torch.cat(terms).sum()

    @staticmethod
    def backward(ctx: Any, *d_losses: Tensor) -> tuple[Tensor | None, ...]:
        (d_loss,) = d_losses
        gradients = scale_gradients(
            *ctx.gradients, d_loss=d_loss, bias_dtype=ctx.bias_dtype, gradient_sum=gradient_sum_of(ctx.weight)
        )
        del ctx.gradients
        return *gradients, *[None] * 3
