"""Cross-entropy of a chunk of logits and its gradient, in one pass over the chunk on GPUs.

On a GPU with triton, the kernels of `losses.cross_entropy_kernels` replace the logits by their gradient. Elsewhere
torch operations compute the same in float32.
"""

# C samples of a chunk, V columns of the logits (of this rank)

from __future__ import annotations

import importlib.util
from dataclasses import dataclass
from functools import cache

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import is_fake

from megaptm.batch import IGNORED
from megaptm.layers.accumulate import sum_dtype
from megaptm.layers.split import TensorRanks

ALONE = TensorRanks()

torch.library.define(
    "megaptm::cross_entropy_",
    "(Tensor(a!) logits, Tensor labels, int vocabulary, float z_loss, float smoothing, bool gradient) -> Tensor",
)
torch.library.define("megaptm::row_statistics", "(Tensor logits, Tensor labels, int real, int first) -> Tensor")
torch.library.define(
    "megaptm::cross_entropy_gradient_",
    "(Tensor(a!) logits, Tensor labels, Tensor normalizer, int real, int first, int vocabulary, float z_loss, "
    "float smoothing) -> ()",
)


@dataclass(frozen=True)
class CrossEntropy:
    """Token cross-entropy over a vocabulary whose logits one or several tensor ranks hold."""

    vocabulary: int
    """Number of tokens of the vocabulary. Later columns of the logits are padding and have no probability."""
    z_loss: float = 0.0
    """Weight of the z-loss, the squared log-normalizer."""
    smoothing: float = 0.0
    """Label smoothing: probability mass of the target that is spread evenly over the vocabulary."""
    ranks: TensorRanks = ALONE
    """Tensor ranks that divide the vocabulary; each holds the same number of columns of the logits."""
    cap: float | None = None
    """Soft cap of the logits (`OutputSpec.cap`)."""

    def __call__(self, logits_CV: Tensor, labels_C: Tensor, *, gradient: bool) -> tuple[Tensor, Tensor | None]:
        """Return the loss of each position, float32 [C], and the gradient of their sum in the dtype of the logits,
        which are overwritten. Both are zero for the label `IGNORED`."""
        if self.cap is None:
            return self._of_capped(logits_CV, labels_C, gradient=gradient)
        logits_CV.div_(self.cap).tanh_()
        slope_CV = 1 - logits_CV.square() if gradient else None
        terms_C, d_CV = self._of_capped(logits_CV.mul_(self.cap), labels_C, gradient=gradient)
        return terms_C, d_CV if d_CV is None or slope_CV is None else d_CV.mul_(slope_CV)

    def _of_capped(self, logits_CV: Tensor, labels_C: Tensor, *, gradient: bool) -> tuple[Tensor, Tensor | None]:
        """Return losses and gradient of logits that are capped already."""
        if not is_cross_entropy_fused(logits_CV):
            return self._by_torch(logits_CV, labels_C, gradient=gradient)
        ops = torch.ops.megaptm
        if self.ranks.sum is None:
            terms_C = ops.cross_entropy_(logits_CV, labels_C, self.vocabulary, self.z_loss, self.smoothing, gradient)
            return terms_C, logits_CV if gradient else None
        real, first = self._real_columns(logits_CV)
        statistics_4C = ops.row_statistics(logits_CV, labels_C, real, first)
        largest_C = self._max_over_ranks(statistics_4C[0])
        statistics_4C[1] *= (statistics_4C[0] - largest_C).exp()
        self.ranks.sum(statistics_4C[1:])
        normalizer_C = largest_C + statistics_4C[1].log()
        if gradient:
            ops.cross_entropy_gradient_(
                logits_CV, labels_C, normalizer_C, real, first, self.vocabulary, self.z_loss, self.smoothing
            )
        terms_C = self._losses_from_statistics(normalizer_C, statistics_4C[2], statistics_4C[3])
        return terms_C * (labels_C != IGNORED), logits_CV if gradient else None

    def _real_columns(self, logits_CV: Tensor) -> tuple[int, int]:
        """Return the number of this rank's logit columns without padding, and the token of the first one."""
        first = self.ranks.rank * logits_CV.shape[1]
        return min(max(0, self.vocabulary - first), logits_CV.shape[1]), first

    def _max_over_ranks(self, largest: Tensor) -> Tensor:
        """Return the maximum of a tensor over tensor ranks."""
        assert self.ranks.largest is not None
        largest = largest.clone()
        self.ranks.largest(largest)
        return largest

    def _losses_from_statistics(self, normalizer: Tensor, label_logit: Tensor, sum_: Tensor | None) -> Tensor:
        """Return cross-entropy losses from log-normalizer, logit of the label and sum of the logits."""
        terms = normalizer - (1 - self.smoothing) * label_logit
        if self.smoothing and sum_ is not None:
            terms -= self.smoothing / self.vocabulary * sum_
        if self.z_loss:
            terms += self.z_loss * normalizer.square()
        return terms

    def _by_torch(self, logits_CV: Tensor, labels_C: Tensor, *, gradient: bool) -> tuple[Tensor, Tensor | None]:
        real, first = self._real_columns(logits_CV)
        dtype = sum_dtype(logits_CV.dtype)
        counted_C1 = (labels_C != IGNORED)[:, None]
        logits_CV[:, real:] = -torch.inf
        column_C1 = labels_C[:, None] - first
        inside_C1 = (column_C1 >= 0) & (column_C1 < logits_CV.shape[1]) & counted_C1
        column_C1 = torch.where(inside_C1, column_C1, 0)
        label_logit_C1 = torch.where(inside_C1, logits_CV.gather(1, column_C1).to(dtype), 0.0)
        sum_C1 = logits_CV[:, :real].sum(-1, keepdim=True, dtype=dtype) if self.smoothing else None
        if self.ranks.sum is None:
            d_CV = torch.softmax(logits_CV, -1, dtype=dtype)
            # The normalizer follows from the largest probability, which is at least 1/V: no second pass of
            # exponentials, and no logarithm of a probability that underflowed.
            largest_C1, at_C1 = logits_CV.max(-1, keepdim=True)
            normalizer_C1 = largest_C1.to(dtype) - d_CV.gather(1, at_C1).log()
        else:
            # A rank may hold padding only.
            largest_C1 = logits_CV.amax(-1, keepdim=True).to(dtype).clamp_(min=torch.finfo(dtype).min)
            largest_C1 = self._max_over_ranks(largest_C1)
            d_CV = (logits_CV - largest_C1).exp_()
            sums_C1 = [d_CV.sum(-1, keepdim=True), label_logit_C1, *([] if sum_C1 is None else [sum_C1])]
            sums = torch.stack(sums_C1)
            self.ranks.sum(sums)
            total_C1, label_logit_C1 = sums[0], sums[1]
            sum_C1 = sums[2] if self.smoothing else None
            d_CV.div_(total_C1)
            normalizer_C1 = largest_C1 + total_C1.log()
        terms_C = (self._losses_from_statistics(normalizer_C1, label_logit_C1, sum_C1) * counted_C1).squeeze(1)
        if not gradient:
            return terms_C, None
        # Probabilities minus targets. In place, because each pass over C x V values costs time.
        factor_C1 = counted_C1 * (1 + 2 * self.z_loss * normalizer_C1) if self.z_loss else counted_C1
        if self.z_loss or not _are_all(counted_C1):
            d_CV.mul_(factor_C1)
        d_CV.scatter_add_(1, column_C1, inside_C1.to(dtype) * (self.smoothing - 1.0))
        if self.smoothing:
            d_CV[:, :real] -= counted_C1 * (self.smoothing / self.vocabulary)
        return terms_C, d_CV if logits_CV.dtype == d_CV.dtype else logits_CV.copy_(d_CV)


def _are_all(flags: Tensor) -> bool:
    """Whether all flags are True, if the host can tell without waiting for a device. False for fake tensors
    (`parallel.dry_run`)."""
    return flags.device.type == "cpu" and not is_fake(flags) and bool(flags.all())


def is_cross_entropy_fused(logits_CV: Tensor) -> bool:
    """Whether triton kernels compute the cross-entropy."""
    return logits_CV.is_cuda and _has_triton()


@cache
def _has_triton() -> bool:
    return importlib.util.find_spec("triton") is not None


@torch.library.impl("megaptm::cross_entropy_", "CUDA")
def _cross_entropy(
    logits_CV: Tensor, labels_C: Tensor, vocabulary: int, z_loss: float, smoothing: float, gradient: bool
) -> Tensor:
    from megaptm.losses import cross_entropy_kernels as kernels

    return kernels.cross_entropy_(logits_CV, labels_C, vocabulary, z_loss, smoothing, gradient)


@torch.library.register_fake("megaptm::cross_entropy_")
def _(logits_CV: Tensor, labels_C: Tensor, *_: object) -> Tensor:
    return logits_CV.new_empty(len(logits_CV), dtype=torch.float32)


@torch.library.impl("megaptm::row_statistics", "CUDA")
def _row_statistics(logits_CV: Tensor, labels_C: Tensor, real: int, first: int) -> Tensor:
    from megaptm.losses import cross_entropy_kernels as kernels

    return kernels.row_statistics(logits_CV, labels_C, real, first)


@torch.library.register_fake("megaptm::row_statistics")
def _(logits_CV: Tensor, *_: object) -> Tensor:
    return logits_CV.new_empty(4, len(logits_CV), dtype=torch.float32)


@torch.library.impl("megaptm::cross_entropy_gradient_", "CUDA")
def _cross_entropy_gradient(
    logits_CV: Tensor,
    labels_C: Tensor,
    normalizer_C: Tensor,
    real: int,
    first: int,
    vocabulary: int,
    z_loss: float,
    smoothing: float,
) -> None:
    from megaptm.losses import cross_entropy_kernels as kernels

    kernels.cross_entropy_gradient_(logits_CV, labels_C, normalizer_C, real, first, vocabulary, z_loss, smoothing)


@torch.library.register_fake("megaptm::cross_entropy_gradient_")
def _(*_: object) -> None: ...
