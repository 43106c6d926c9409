"""Losses that compare all rows of the global batch, exact in every layout.

A pass without gradients gives the features of all micro-batches; data ranks exchange them, and the gradient of each
feature is taken over all at once. With its rows' gradients in hand each micro-batch is passed a second time, by itself,
and its loss is a sum (GradCache, arXiv:2101.06983, section 3.2). Costs one forward pass more, and the features of the
global batch: N x F numbers on each rank of the last stage.
"""

# N rows of the global batch, F features of a row

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager

import torch
import torch.distributed as dist
from torch import Tensor

from megaptm.bricks import HEADS
from megaptm.models.heads import ContrastHead, gradient_field


def compare_rows(
    heads: dict[str, ContrastHead],
    features: list[dict[str, Tensor]],
    batches: list[dict[str, Tensor]],
    group: dist.ProcessGroup,
) -> dict[str, Tensor]:
    """Loss -> its sum over this rank's rows; gradients of features go into the micro-batches.

    `features` are those of each micro-batch; `group` has the data ranks, all of which have as many rows.
    """
    sums = {}
    for name, head in heads.items():
        mine = torch.cat([one[name] for one in features])
        whole = _gathered(mine, group).requires_grad_()
        answers = _gathered(torch.cat([batch[HEADS[name].answers] for batch in batches]), group)
        with torch.enable_grad():
            losses = head.compare(whole, answers)
            total = losses.sum()
        (gradient,) = torch.autograd.grad(total, whole)
        own = slice(dist.get_rank(group) * len(mine), (dist.get_rank(group) + 1) * len(mine))
        sums[name] = losses[own].detach().sum()
        for batch, part in zip(batches, gradient[own].split(_rows(features, name)), strict=True):
            batch[gradient_field(name)] = part
    return sums


@contextmanager
def one_attention_kernel() -> Iterator[None]:
    """Within it both passes take the same kernel of attention, and so draw the same dropout.

    torch refuses cuDNN's where a mask needs a gradient (a learned bias on the scores), and in the first pass none does.
    """
    enabled = torch.backends.cuda.cudnn_sdp_enabled()
    torch.backends.cuda.enable_cudnn_sdp(False)
    try:
        yield
    finally:
        torch.backends.cuda.enable_cudnn_sdp(enabled)


def _rows(features: Iterable[dict[str, Tensor]], name: str) -> list[int]:
    return [len(one[name]) for one in features]


def _gathered(mine: Tensor, group: dist.ProcessGroup) -> Tensor:
    """[R, ...] of each data rank -> [N, ...], in their order."""
    ranks = [torch.empty_like(mine) for _ in range(dist.get_world_size(group))]
    dist.all_gather(ranks, mine.contiguous(), group=group)
    return torch.cat(ranks)
