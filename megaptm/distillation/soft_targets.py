"""Cross-entropy and KL divergence to a teacher's token distribution at a temperature, without materializing all
logits."""

# N samples, D width, V vocabulary (of this rank), C samples of a chunk

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from megaptm.distillation.spec import SOFT_LOGIT_BYTES
from megaptm.layers.accumulate import gradient_sum_of
from megaptm.layers.split import TensorRanks, UsesTensorRanks
from megaptm.layers.table_gradient import TableGradient, scale_gradients
from megaptm.losses.token import Projected, drops_unlabeled
from megaptm.losses.token_costs import num_rows_projected


class LargestLogits(NamedTuple):
    """Largest teacher logits of each sample. All other tokens have probability zero."""

    ids: Tensor
    """Token ids in the full vocabulary, int64 [N, K]."""
    values: Tensor
    """Teacher logits of these ids [N, K]."""
    first: int
    """First vocabulary id of this tensor rank."""
    words: int
    """Number of vocabulary ids of this tensor rank."""

    def select(self, rows: Any) -> LargestLogits:
        """Return the largest teacher logits of a subset of the samples."""
        return self._replace(ids=self.ids[rows], values=self.values[rows])

    def logits(self) -> Tensor:
        """Return the teacher's logits, float32 [N, V]; minus infinity for unknown ones."""
        here = (self.ids >= self.first) & (self.ids < self.first + self.words)
        # Ids of other ranks go into an extra column, which is dropped.
        columns = torch.where(here, self.ids - self.first, self.words)
        wide = self.values.new_full((len(self.ids), self.words + 1), -torch.inf, dtype=torch.float32)
        return wide.scatter_(1, columns, self.values.float())[:, : self.words]


class SoftTargetLoss(UsesTensorRanks, nn.Module):
    """Loss between the token distributions of student and teacher, summed over samples: KL divergence times the squared
    temperature (`kl`; Sanh et al., 2019), or cross-entropy divided by the vocabulary size (`cross-entropy`; released
    code of TinyBERT)."""

    def __init__(self, vocabulary: int, *, temperature: float, soft: str) -> None:
        super().__init__()
        self.vocabulary, self.temperature, self.soft = vocabulary, temperature, soft

    def forward(self, student: Projected, teacher: Projected | LargestLogits, is_target_N: Tensor) -> Tensor:
        """Return the float32 sum of the distillation loss over target samples. Gradients flow to the student only.
        Largest logits of a teacher are treated as its complete distribution."""
        if drops_unlabeled(student.hidden):
            rows = is_target_N.nonzero().squeeze(1)
            student, teacher, is_target_N = student.select(rows), teacher.select(rows), is_target_N[rows]
        loss: Tensor = _SoftTargets.apply(*student, teacher, is_target_N, self, torch.is_grad_enabled())
        return loss

    def chunk(self, student_CV: Tensor, teacher_CV: Tensor) -> tuple[Tensor, Tensor]:
        """Return the distillation loss of each sample [C, 1], summed over this rank's vocabulary, and its gradient with
        respect to logits [C, V]."""
        real = max(0, self.vocabulary - self.ranks.rank * student_CV.shape[1])
        scores = []
        for logits_CV in (student_CV, teacher_CV):
            scores_CV = logits_CV.float() / self.temperature
            scores_CV[:, real:] = -torch.inf
            scores.append(scores_CV - _log_normalizer(scores_CV, self.ranks))
        student_log_CV, teacher_log_CV = scores
        probabilities_CV = teacher_log_CV.exp()
        gradient_CV = student_log_CV.exp() - probabilities_CV
        # Zero times infinity is NaN.
        teacher_log_CV.clamp_(min=torch.finfo(torch.float32).min)
        # Padding rows of the table have no probability, and their logarithms are not finite.
        student_log_CV, teacher_log_CV, probabilities_CV = (
            x[:, :real] for x in (student_log_CV, teacher_log_CV, probabilities_CV)
        )
        if self.soft == "kl":
            # Subtracting the difference of both probability sums, which is zero up to rounding, makes each term
            # non-negative. A small divergence is then not a difference of large numbers.
            terms_CV, scale = (
                probabilities_CV * (teacher_log_CV - student_log_CV) + gradient_CV[:, :real],
                self.temperature**2,
            )
        else:
            terms_CV, scale = -probabilities_CV * student_log_CV, 1 / self.vocabulary
        losses_C1 = terms_CV.sum(-1, keepdim=True) * scale
        return losses_C1, gradient_CV.mul_(scale / self.temperature)


def _log_normalizer(scores_CV: Tensor, ranks: TensorRanks) -> Tensor:
    """Return the log-sum-exp of teacher or student logits over the full vocabulary, [C, 1]."""
    if ranks.sum is None or ranks.largest is None:
        return scores_CV.logsumexp(-1, keepdim=True)
    largest_C1 = scores_CV.amax(-1, keepdim=True)
    ranks.largest(largest_C1)
    sums_C1 = (scores_CV - largest_C1).exp().sum(-1, keepdim=True)
    ranks.sum(sums_C1)
    return largest_C1 + sums_C1.log()


def soft_class_loss(student_NC: Tensor, teacher_NC: Tensor, *, temperature: float, soft: str) -> Tensor:
    """Return the distillation loss of each sample for a few classes, [N]."""
    student_log_NC, teacher_log_NC = (
        (logits.float() / temperature).log_softmax(-1) for logits in (student_NC, teacher_NC)
    )
    if soft == "kl":
        return (teacher_log_NC.exp() * (teacher_log_NC - student_log_NC)).sum(-1) * temperature**2
    return -(teacher_log_NC.exp() * student_log_NC).mean(-1)


class _SoftTargets(torch.autograd.Function):
    """Autograd function that computes the gradient of the distillation loss while a chunk's logits are in memory, as in
    `losses.token`; `backward` only scales it."""

    @staticmethod
    def forward(
        ctx: Any,
        hidden_ND: Tensor,
        weight_VD: Tensor,
        bias_V: Tensor | None,
        teacher: Projected | LargestLogits,
        is_target_N: Tensor,
        module: SoftTargetLoss,
        wants_gradient: bool,
    ) -> Tensor:
        student, total_ranks = Projected(hidden_ND, weight_VD, bias_V), module.ranks.sum
        loss = hidden_ND.new_zeros((), dtype=torch.float32)
        d_hidden = torch.zeros_like(hidden_ND)
        rows_projected = num_rows_projected(len(hidden_ND), len(weight_VD), SOFT_LOGIT_BYTES)
        d_weight = TableGradient(weight_VD, rows=len(hidden_ND), chunk=rows_projected)
        d_bias = torch.zeros_like(bias_V, dtype=torch.float32) if bias_V is not None else None
        for start in range(0, len(hidden_ND), rows_projected):
            rows = slice(start, start + rows_projected)
            is_target_C1 = is_target_N[rows, None]
            losses_C1, d_CV = module.chunk(student.select(rows).logits(), teacher.select(rows).logits())
            loss += (losses_C1 * is_target_C1).sum()
            if not wants_gradient:
                continue
            d_CV.mul_(is_target_C1)
            if d_bias is not None:
                d_bias += d_CV.sum(0)
            d_CV = d_CV.to(weight_VD.dtype)
            d_hidden[rows] = d_CV @ weight_VD
            d_weight.add(d_CV, hidden_ND[rows])
        if total_ranks is not None:
            total_ranks(loss)
            total_ranks(d_hidden)
        ctx.gradients = (d_hidden, d_weight, d_bias)
        ctx.weight, ctx.bias_dtype = weight_VD, bias_V.dtype if bias_V is not None else None
        return loss

    @staticmethod
    def backward(ctx: Any, *d_losses: Tensor) -> tuple[Tensor | None, ...]:
        (d_loss,) = d_losses
        gradients = scale_gradients(
            *ctx.gradients, d_loss=d_loss, bias_dtype=ctx.bias_dtype, gradient_sum=gradient_sum_of(ctx.weight)
        )
        del ctx.gradients
        return *gradients, *[None] * 4
