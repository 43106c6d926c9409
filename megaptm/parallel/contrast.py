"""Losses that compare all samples of the global batch, exact in every layout.

A pass without gradients computes the features of all micro-batches, and data ranks exchange them. Each rank computes
the losses of its own samples against all, and their gradient for all features. Summed over data ranks, that is the
gradient of the full loss. Each micro-batch then runs a second time by itself; its loss is a sum weighted by these
gradients (GradCache, arXiv:2101.06983, section 3.2).

Costs: one more forward pass; on each rank of the last stage the features of the global batch and their gradient, N x F
elements each, and N x N / data scores. A global batch of one micro-batch on one data rank needs none of this.
"""

# N samples of the global batch, R those of a data rank, F features of a sample

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
    """Run the features pass, with the dropout of the step, and return `compare_rows` of its features on the last
    stage."""
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
    """Return the sum of each loss over this rank's samples, and add gradients of features to the micro-batches.

    `features`: those of each micro-batch. `group`: the data ranks, which have equally many samples.
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
    """Force the same attention kernel, and thereby the same dropout, in both passes.

    torch rejects cuDNN's kernel if a mask needs a gradient (a learned bias on the scores), which is never the case in
    the first pass.
    """
    enabled = torch.backends.cuda.cudnn_sdp_enabled()
    torch.backends.cuda.enable_cudnn_sdp(False)
    try:
        yield
    finally:
        torch.backends.cuda.enable_cudnn_sdp(enabled)


def _right(features: Tensor, batch: dict[str, Tensor], head: ContrastHead) -> Tensor:
    """Return the features if they have the required shape and dtype. Sums over all samples need more precision than
    bfloat16."""
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
    """Gather [R, ...] of each data rank to [N, ...], in rank order."""
    whole = mine.new_empty(len(mine) * dist.get_world_size(group), *mine.shape[1:])
    dist.all_gather_into_tensor(whole, mine.contiguous(), group=group)
    return whole


def _summed(gradient_NF: Tensor, group: dist.ProcessGroup) -> Tensor:
    """Sum [N, F] over data ranks and return the [R, F] of this rank's samples."""
    own = gradient_NF.new_empty(len(gradient_NF) // dist.get_world_size(group), *gradient_NF.shape[1:])
    dist.reduce_scatter_tensor(own, gradient_NF.contiguous(), group=group)
    return own
