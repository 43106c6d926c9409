"""Losses that compare all rows of the global batch, exact in every layout.

A pass without gradients gives the features of all micro-batches, and data ranks exchange them. Each takes the losses of
its own rows among all, and their gradient for the features of all; summed over data ranks, that is the gradient of the
whole loss. With its rows' gradients in hand each micro-batch is passed a second time, by itself, and its loss is a sum
(GradCache, arXiv:2101.06983, section 3.2). Costs one forward pass more; the features of the global batch and their
gradient, N x F numbers each, on each rank of the last stage; and what its rows say of all: N x N / data scores. One
micro-batch of one data rank that is the whole batch needs none of this.
"""

# N rows of the global batch, R those of a data rank, F features of a row

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import cast

import torch
import torch.distributed as dist
from megatron.core import parallel_state
from torch import Tensor

from megaptm.batch import MicroBatch
from megaptm.bricks import HEADS
from megaptm.errors import UserError
from megaptm.models.contrast import ContrastHead, gradient_field
from megaptm.parallel.pipeline import Pipeline, no_tokens


@torch.no_grad()
def compare_by_features(
    pipeline: Pipeline, names: Sequence[str], microbatches: list[MicroBatch], *, step: int | None
) -> dict[str, Tensor]:
    """Of losses that compare rows of the global batch: a pass for the features, with the dropout of the step's; and
    what `compare_rows` makes of them, on the last stage."""
    if not names:
        return {}

    def keep(features: dict[str, Tensor]) -> tuple[Tensor, Tensor, dict[str, Tensor]]:
        zero = next(iter(features.values())).new_zeros(())
        return zero, no_tokens(zero), features

    features = pipeline.run(microbatches, keep, step=step, backward=False, features=True)
    last = pipeline.last
    if not last.chunk.last or last.head is None:
        return {}
    heads = {name: cast(ContrastHead, last.head[name]) for name in names}
    return compare_rows(heads, features, microbatches, parallel_state.get_data_parallel_group())


def compare_rows(
    heads: dict[str, ContrastHead],
    features: list[dict[str, Tensor]],
    microbatches: list[dict[str, Tensor]],
    group: dist.ProcessGroup,
) -> dict[str, Tensor]:
    """Loss -> its sum over this rank's rows; gradients of features go into the micro-batches.

    `features` are those of each micro-batch; `group` has the data ranks, all of which have as many rows.
    """
    sums = {}
    for name, head in heads.items():
        mine = torch.cat([_right(one[name], batch, head) for one, batch in zip(features, microbatches, strict=True)])
        whole = _gathered(mine, group).requires_grad_()
        answers = _gathered(torch.cat([batch[HEADS[name].answers] for batch in microbatches]), group)
        first = dist.get_rank(group) * len(mine)
        with torch.enable_grad():
            losses = head.compare(whole, answers, slice(first, first + len(mine)))
            total = losses.sum()
        if losses.shape != mine.shape[:1]:
            raise UserError(
                f"{type(head).__name__}.compare gave {_shape(losses)} for {len(mine)} of {len(whole)} rows: "
                "it must give the loss of each of the rows `own`, and of no other."
            )
        (gradient,) = torch.autograd.grad(total, whole)
        sums[name] = total.detach()
        for batch, part in zip(microbatches, _summed(gradient, group).split(_rows(features, name)), strict=True):
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


def _right(features: Tensor, batch: dict[str, Tensor], head: ContrastHead) -> Tensor:
    """The features, if they are what a head must give: sums over all rows need more digits than bfloat16 has."""
    rows = len(batch[head.answers])
    if features.dtype != torch.float32 or features.ndim != 2 or len(features) != rows:
        raise UserError(
            f"{type(head).__name__}.features gave {_shape(features)} in {str(features.dtype).removeprefix('torch.')} "
            f"for {rows} rows: it must give [{rows}, F] in float32, for instance by .float()."
        )
    return features


def _shape(tensor: Tensor) -> str:
    return str(list(tensor.shape))


def _rows(features: Iterable[dict[str, Tensor]], name: str) -> list[int]:
    return [len(one[name]) for one in features]


def _gathered(mine: Tensor, group: dist.ProcessGroup) -> Tensor:
    """[R, ...] of each data rank -> [N, ...], in their order."""
    whole = mine.new_empty(len(mine) * dist.get_world_size(group), *mine.shape[1:])
    dist.all_gather_into_tensor(whole, mine.contiguous(), group=group)
    return whole


def _summed(gradient_NF: Tensor, group: dist.ProcessGroup) -> Tensor:
    """[N, F] of each data rank -> the sum's [R, F] of this one's rows."""
    own = gradient_NF.new_empty(len(gradient_NF) // dist.get_world_size(group), *gradient_NF.shape[1:])
    dist.reduce_scatter_tensor(own, gradient_NF.contiguous(), group=group)
    return own
