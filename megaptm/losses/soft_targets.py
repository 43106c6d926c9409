"""Cross-entropy with what a teacher says of each word, at a temperature, without ever holding all logits of either."""

# N rows, D width, V vocabulary (of this rank), C rows of a chunk

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from megaptm.bricks.head import ROWS_PROJECTED
from megaptm.layers.accumulate import gradient_sum_of
from megaptm.layers.product import linear, matmul
from megaptm.layers.table_gradient import TableGradient, scaled
from megaptm.losses.token import drops_unasked


class Projected(NamedTuple):
    """What a head projects on the vocabulary: its logits are `hidden @ weight.T + bias`."""

    hidden: Tensor
    """[N, D]"""
    weight: Tensor
    """[V, D]"""
    bias: Tensor | None
    """[V]"""

    def of(self, rows: Any) -> Projected:
        """Of some rows."""
        return self._replace(hidden=self.hidden[rows])

    def logits(self) -> Tensor:
        """[N, V]"""
        return linear(*self)


class LargestLogits(NamedTuple):
    """Of each row the logits of its likeliest words; all others are of no word that is said."""

    ids: Tensor
    """int64 [N, K], of the whole vocabulary"""
    values: Tensor
    """[N, K]"""
    first: int
    """Of the words that are here."""
    words: int
    """That are here."""

    def of(self, rows: Any) -> LargestLogits:
        """Of some rows."""
        return self._replace(ids=self.ids[rows], values=self.values[rows])

    def logits(self) -> Tensor:
        """float32 [N, V]: minus infinity where none is known."""
        here = (self.ids >= self.first) & (self.ids < self.first + self.words)
        # What is elsewhere goes into a column of its own, which is left out.
        columns = torch.where(here, self.ids - self.first, self.words)
        wide = self.values.new_full((len(self.ids), self.words + 1), -torch.inf, dtype=torch.float32)
        return wide.scatter_(1, columns, self.values.float())[:, : self.words]


@dataclass(frozen=True)
class VocabularyRanks:
    """Who holds the words: alone, or each rank a slice of them."""

    rank: int = 0
    sum: Callable[[Tensor], None] | None = None
    """Over ranks, in place; None: there is one."""
    largest: Callable[[Tensor], None] | None = None

    def normalizer(self, scores_CV: Tensor) -> Tensor:
        """The logarithm [C, 1] of the sum of all exponentials."""
        if self.sum is None or self.largest is None:
            return scores_CV.logsumexp(-1, keepdim=True)
        largest_C1 = scores_CV.amax(-1, keepdim=True)
        self.largest(largest_C1)
        sums_C1 = (scores_CV - largest_C1).exp().sum(-1, keepdim=True)
        self.sum(sums_C1)
        return largest_C1 + sums_C1.log()


class SoftTargetLoss(nn.Module):
    """Summed over rows: the divergence of the student's words from the teacher's times the squared temperature (`kl`;
    Sanh et al., 2019), or their cross-entropy over the number of words (`cross-entropy`; the released code of
    TinyBERT)."""

    def __init__(self, vocabulary: int, *, temperature: float, soft: str) -> None:
        super().__init__()
        self.vocabulary, self.temperature, self.soft = vocabulary, temperature, soft
        self.ranks = VocabularyRanks()
        """`parallel` says otherwise where words are divided."""

    def forward(self, student: Projected, teacher: Projected | LargestLogits, asked_N: Tensor) -> Tensor:
        """The float32 sum over the rows that are asked; gradients are the student's alone. Of a teacher of whom the
        largest logits are known, what it says of these words is taken for all that it says."""
        if drops_unasked(student.hidden):
            rows = asked_N.nonzero().squeeze(1)
            student, teacher, asked_N = student.of(rows), teacher.of(rows), asked_N[rows]
        loss: Tensor = _SoftTargets.apply(*student, teacher, asked_N, self, torch.is_grad_enabled())
        return loss

    def chunk(self, student_CV: Tensor, teacher_CV: Tensor) -> tuple[Tensor, Tensor]:
        """The loss of each row [C, 1], summed over the words that are here, and its gradient for the logits [C, V]."""
        real = max(0, self.vocabulary - self.ranks.rank * student_CV.shape[1])
        scores = []
        for logits_CV in (student_CV, teacher_CV):
            scores_CV = logits_CV.float() / self.temperature
            scores_CV[:, real:] = -torch.inf
            scores.append(scores_CV - self.ranks.normalizer(scores_CV))
        ours_CV, theirs_CV = scores
        said_CV = theirs_CV.exp()
        gradient_CV = ours_CV.exp() - said_CV
        # Zero times infinity is no number.
        theirs_CV.clamp_(min=torch.finfo(torch.float32).min)
        # Words that pad the table are said by nobody; their logarithms are no numbers.
        ours_CV, theirs_CV, said_CV = (one[:, :real] for one in (ours_CV, theirs_CV, said_CV))
        if self.soft == "kl":
            # What both say of all words is 1; the difference of the two sums, zero but for rounding, is taken off, so
            # that each term is zero or more, and a small divergence is no difference of large numbers.
            terms_CV, scale = said_CV * (theirs_CV - ours_CV) + gradient_CV[:, :real], self.temperature**2
        else:
            terms_CV, scale = -said_CV * ours_CV, 1 / self.vocabulary
        losses_C1 = terms_CV.sum(-1, keepdim=True) * scale
        return losses_C1, gradient_CV.mul_(scale / self.temperature)


def soft_class_loss(student_NC: Tensor, teacher_NC: Tensor, *, temperature: float, soft: str) -> Tensor:
    """[N]: the same of few classes, whose logits are all at hand."""
    ours_NC, theirs_NC = ((logits.float() / temperature).log_softmax(-1) for logits in (student_NC, teacher_NC))
    if soft == "kl":
        return (theirs_NC.exp() * (theirs_NC - ours_NC)).sum(-1) * temperature**2
    return -(theirs_NC.exp() * ours_NC).mean(-1)


class _SoftTargets(torch.autograd.Function):
    """Takes the gradient while a chunk's logits are at hand, as `losses.token` does; `backward` only scales it."""

    @staticmethod
    def forward(
        ctx: Any,
        hidden_ND: Tensor,
        weight_VD: Tensor,
        bias_V: Tensor | None,
        teacher: Projected | LargestLogits,
        asked_N: Tensor,
        whole: SoftTargetLoss,
        wants_gradient: bool,
    ) -> Tensor:
        student, total_ranks = Projected(hidden_ND, weight_VD, bias_V), whole.ranks.sum
        loss = hidden_ND.new_zeros((), dtype=torch.float32)
        d_hidden = torch.zeros_like(hidden_ND)
        d_weight = TableGradient(weight_VD, rows=len(hidden_ND), chunk=ROWS_PROJECTED)
        d_bias = torch.zeros_like(bias_V, dtype=torch.float32) if bias_V is not None else None
        for start in range(0, len(hidden_ND), ROWS_PROJECTED):
            rows = slice(start, start + ROWS_PROJECTED)
            asked_C1 = asked_N[rows, None]
            losses_C1, d_CV = whole.chunk(student.of(rows).logits(), teacher.of(rows).logits())
            loss += (losses_C1 * asked_C1).sum()
            if not wants_gradient:
                continue
            d_CV.mul_(asked_C1)
            if d_bias is not None:
                d_bias += d_CV.sum(0)
            d_CV = d_CV.to(weight_VD.dtype)
            d_hidden[rows] = matmul(d_CV, weight_VD)
            d_weight.add(d_CV, hidden_ND[rows])
        if total_ranks is not None:
            total_ranks(loss)
            total_ranks(d_hidden)
        ctx.gradients = (d_hidden, d_weight, d_bias)
        ctx.weight, ctx.bias_dtype = weight_VD, bias_V.dtype if bias_V is not None else None
        # Of a table in slices megatron-core's modules take the gradient, and not the engine's sum.
        ctx.kept = gradient_sum_of(weight_VD) if total_ranks is None else None
        return loss

    @staticmethod
    def backward(ctx: Any, *d_losses: Tensor) -> tuple[Tensor | None, ...]:
        (d_loss,) = d_losses
        found = scaled(*ctx.gradients, d_loss=d_loss, bias_dtype=ctx.bias_dtype, kept=ctx.kept)
        del ctx.gradients
        return *found, *[None] * 4
