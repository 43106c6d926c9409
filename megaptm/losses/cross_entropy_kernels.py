"""Triton kernels of the token cross-entropy: one triton program per position. Imported only where triton is
installed."""

# mypy: allow-untyped-defs, allow-untyped-calls

# C samples of a chunk, V columns of the logits (of this rank)

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from megaptm.batch import IGNORED

MAX_BLOCK = 16384
"""Maximum logit columns that a triton program processes at once."""
# A finite number: the difference of two infinities is NaN, and a rank may hold padding only.
SMALLEST = tl.constexpr(torch.finfo(torch.float32).min)
NO_LABEL = tl.constexpr(IGNORED)


@triton.jit
def _row_statistics(row, real, BLOCK: tl.constexpr):
    """Return maximum of a row of logits, sum of exponentials of differences from it, and sum of the logits."""
    largest = SMALLEST
    total = 0.0
    sum_ = 0.0
    for start in range(0, real, BLOCK):
        columns = start + tl.arange(0, BLOCK)
        x = tl.load(row + columns, mask=columns < real, other=float("-inf")).to(tl.float32)
        new = tl.maximum(largest, tl.max(x, 0))
        total = total * tl.exp(largest - new) + tl.sum(tl.exp(x - new), 0)
        sum_ += tl.sum(tl.where(columns < real, x, 0.0), 0)
        largest = new
    return largest, total, sum_


@triton.jit
def _write_gradient(
    row,
    column,
    normalizer,
    real,
    width,
    vocabulary,
    z_loss,
    smoothing,
    BLOCK: tl.constexpr,
):
    """Replace a row of logits by its gradient, which is zero for padding. `column`: column of the label; may be outside
    the row."""
    factor = 1.0 + 2.0 * z_loss * normalizer
    spread = smoothing / vocabulary
    for start in range(0, width, BLOCK):
        columns = start + tl.arange(0, BLOCK)
        x = tl.load(row + columns, mask=columns < real, other=float("-inf")).to(tl.float32)
        d = tl.exp(x - normalizer) * factor - spread - tl.where(columns == column, 1.0 - smoothing, 0.0)
        d = tl.where(columns < real, d, 0.0)
        tl.store(row + columns, d.to(row.dtype.element_ty), mask=columns < width)


@triton.jit
def _write_zeros(row, width, BLOCK: tl.constexpr):
    zeros = tl.zeros((BLOCK,), dtype=tl.float32).to(row.dtype.element_ty)
    for start in range(0, width, BLOCK):
        columns = start + tl.arange(0, BLOCK)
        tl.store(row + columns, zeros, mask=columns < width)


@triton.jit
def _label_logit(row, column, real):
    """Return the logit of a label; 0 if its column is outside the row."""
    return tl.load(row + column, mask=(column >= 0) & (column < real), other=0.0).to(tl.float32)


@triton.jit
def cross_entropy_kernel(
    logits,
    labels,
    terms,
    width,
    vocabulary,
    z_loss,
    smoothing,
    GRADIENT: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Compute cross-entropy and gradient of a position, on one tensor rank. Rows of logits are `width` apart, which
    includes padding."""
    sample = tl.program_id(0)
    row = logits + sample.to(tl.int64) * width
    label = tl.load(labels + sample)
    if label == NO_LABEL:
        tl.store(terms + sample, 0.0)
        if GRADIENT:
            _write_zeros(row, width, BLOCK)
    else:
        # First, because a warp may write the gradient while others still read. `_row_statistics` has a barrier.
        label_logit = _label_logit(row, label, vocabulary)
        largest, total, sum_ = _row_statistics(row, vocabulary, BLOCK)
        normalizer = largest + tl.log(total)
        loss = normalizer - (1.0 - smoothing) * label_logit
        loss += z_loss * normalizer * normalizer - smoothing / vocabulary * sum_
        tl.store(terms + sample, loss)
        if GRADIENT:
            _write_gradient(row, label, normalizer, vocabulary, width, vocabulary, z_loss, smoothing, BLOCK)


@triton.jit
def statistics_kernel(logits, labels, statistics, samples, width, real, first, BLOCK: tl.constexpr):
    """Compute maximum, sum of exponentials, logit of the label and sum of logits over the columns of a tensor rank."""
    sample = tl.program_id(0)
    row = logits + sample.to(tl.int64) * width
    largest, total, sum_ = _row_statistics(row, real, BLOCK)
    tl.store(statistics + sample, largest)
    tl.store(statistics + samples + sample, total)
    tl.store(statistics + 2 * samples + sample, _label_logit(row, tl.load(labels + sample) - first, real))
    tl.store(statistics + 3 * samples + sample, sum_)


@triton.jit
def gradient_kernel(
    logits,
    labels,
    normalizers,
    width,
    real,
    first,
    vocabulary,
    z_loss,
    smoothing,
    BLOCK: tl.constexpr,
):
    """Compute the gradient of the logit columns of a tensor rank, from the log-normalizer over all ranks."""
    sample = tl.program_id(0)
    row = logits + sample.to(tl.int64) * width
    label = tl.load(labels + sample)
    if label == NO_LABEL:
        _write_zeros(row, width, BLOCK)
    else:
        normalizer = tl.load(normalizers + sample)
        _write_gradient(row, label - first, normalizer, real, width, vocabulary, z_loss, smoothing, BLOCK)


def launch_options(width: int) -> dict[str, int]:
    """Return the block size of a triton program and its number of warps: 16 columns for each thread."""
    block = min(triton.next_power_of_2(width), MAX_BLOCK)
    return {"BLOCK": block, "num_warps": max(1, min(32, block // 512))}


def cross_entropy_(
    logits_CV: Tensor, labels_C: Tensor, vocabulary: int, z_loss: float, smoothing: float, gradient: bool
) -> Tensor:
    """Return the cross-entropy of each position [C]. With `gradient`, replace the contiguous logits by their
    gradient."""
    samples, width = logits_CV.shape
    terms_C = logits_CV.new_empty(samples, dtype=torch.float32)
    if samples:
        cross_entropy_kernel[(samples,)](
            logits_CV, labels_C, terms_C, width, vocabulary, z_loss, smoothing, gradient, **launch_options(width)
        )
    return terms_C


def row_statistics(logits_CV: Tensor, labels_C: Tensor, real: int, first: int) -> Tensor:
    """Return statistics [4, C] of rows of logits: maximum, sum of exponentials of differences from it, logit of the
    label, and sum. They cover this rank's `real` columns; column 0 is token `first`."""
    samples, width = logits_CV.shape
    statistics_4C = logits_CV.new_empty(4, samples, dtype=torch.float32)
    if samples:
        statistics_kernel[(samples,)](
            logits_CV, labels_C, statistics_4C, samples, width, real, first, **launch_options(width)
        )
    return statistics_4C


def cross_entropy_gradient_(
    logits_CV: Tensor,
    labels_C: Tensor,
    normalizer_C: Tensor,
    real: int,
    first: int,
    vocabulary: int,
    z_loss: float,
    smoothing: float,
) -> None:
    """Replace the contiguous logits by the gradient of the cross-entropy."""
    samples, width = logits_CV.shape
    if samples:
        gradient_kernel[(samples,)](
            logits_CV,
            labels_C,
            normalizer_C,
            width,
            real,
            first,
            vocabulary,
            z_loss,
            smoothing,
            **launch_options(width),
        )
