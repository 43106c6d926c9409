"""Contrastive losses over all samples of the global batch, exact in every layout.

With one micro-batch per data rank, data ranks exchange features in its forward pass, and their gradients in its
backward pass. With several, the activations of all would have to be kept until the last features are known. So a pass
without gradients computes the features first, and data ranks exchange them. Each rank computes the losses of its own
samples against all, and their gradient for all features. Summed over data ranks, that is the gradient of the full loss.
Each micro-batch then runs a second time by itself; its loss is a sum weighted by these gradients (GradCache,
arXiv:2101.06983, section 3.2).

Costs: on each rank of the last stage the features of the global batch and their gradient, N x F elements each, and N x
N / data scores; with several micro-batches, one more forward pass.
"""

# N samples of the global batch, R those of a data rank, F features of a sample

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, cast

import torch
import torch.distributed as dist
from megatron.core import parallel_state
from torch import Tensor

from megaptm.batch import MicroBatch
from megaptm.errors import UserError
from megaptm.layers.attention import without_cudnn
from megaptm.models.contrast import ContrastHead, gradient_field
from megaptm.models.head_costs import HEADS
from megaptm.models.output import ModelOutput
from megaptm.parallel.groups import rank_device
from megaptm.parallel.hooks import EngineHook
from megaptm.parallel.pipeline import Pipeline, zero_token_count


class ContrastHook(EngineHook):
    """Engine hook that computes the features of all samples before the passes of a step with contrastive losses."""

    def __init__(self, losses: Sequence[str]) -> None:
        self._losses = losses
        """Names of the model's contrastive losses."""

    @contextmanager
    def wrap_passes(
        self, pipeline: Pipeline, microbatches: list[MicroBatch], *, step: int | None
    ) -> Iterator[Mapping[str, Tensor]]:
        is_single = len(microbatches) == 1
        for head in self._contrastive_heads(pipeline):
            head.gather = _gather_samples if is_single else None
        losses = self._labeled_losses(microbatches)
        if is_single or not losses:
            yield {}
            return
        # Both passes need the same attention kernel, and thereby the same dropout masks. torch rejects cuDNN's kernel
        # if a mask needs a gradient (a learned bias on the scores), never the case in the pass without gradients.
        with without_cudnn():
            yield compare_by_features(pipeline, losses, microbatches, step=step)

    def _contrastive_heads(self, pipeline: Pipeline) -> list[ContrastHead]:
        """Return the contrastive heads that this rank holds."""
        modules = pipeline.last.chunk.last and pipeline.last.head
        return [cast(ContrastHead, modules[name]) for name in self._losses] if modules else []

    def _labeled_losses(self, microbatches: list[MicroBatch]) -> list[str]:
        """Return the contrastive losses that have labels in this step. Batches of another task have none; all ranks
        have batches of the same task."""
        return [name for name in self._losses if any(HEADS[name].label_field in batch for batch in microbatches)]


@torch.no_grad()
def compare_by_features(
    pipeline: Pipeline, losses: Sequence[str], microbatches: list[MicroBatch], *, step: int | None
) -> dict[str, Tensor]:
    """Compute the features of all micro-batches without gradients, with the dropout of the step, and return
    `_compare_samples` of them. Return zeros on ranks without the contrastive heads."""

    def reduce(output: ModelOutput) -> tuple[Tensor, Tensor, dict[str, Tensor]]:
        zero = next(iter(output.features.values())).new_zeros(())
        return zero, zero_token_count(zero), output.features

    features = pipeline.run(microbatches, reduce, step=step, backward=False, features=True)
    last = pipeline.last
    if not last.chunk.last or last.head is None:
        return {name: torch.zeros((), device=rank_device()) for name in losses}
    heads = {name: cast(ContrastHead, last.head[name]) for name in losses}
    return _compare_samples(heads, features, microbatches, parallel_state.get_data_parallel_group())


def _compare_samples(
    heads: dict[str, ContrastHead],
    features: list[dict[str, Tensor]],
    microbatches: list[dict[str, Tensor]],
    group: dist.ProcessGroup,
) -> dict[str, Tensor]:
    """Return each contrastive loss, summed over this rank's samples, and add the gradients of the features to the
    micro-batches.

    `features`: contrastive features of each micro-batch. `group`: the data ranks, which have equally many samples.
    """
    sums = {}
    for name, head in heads.items():
        own_RF = torch.cat(
            [_check_features(output[name], batch, head) for output, batch in zip(features, microbatches, strict=True)]
        )
        all_NF = _gather_ranks(own_RF, group).requires_grad_()
        labels_N = _gather_ranks(torch.cat([batch[HEADS[name].label_field] for batch in microbatches]), group)
        first = dist.get_rank(group) * len(own_RF)
        with torch.enable_grad():
            losses_R = head.compare(all_NF, labels_N, slice(first, first + len(own_RF)))
            total = losses_R.sum()
        if losses_R.shape != own_RF.shape[:1]:
            raise UserError(
                f"{type(head).__name__}.compare returned {_format_shape(losses_R)} for {len(own_RF)} of {len(all_NF)} "
                "samples. It must return one loss for each of the samples `own`."
            )
        (gradient_NF,) = torch.autograd.grad(total, all_NF)
        sums[name] = total.detach()
        sizes = [len(output[name]) for output in features]
        for batch, part in zip(microbatches, _scatter_sum(gradient_NF, group).split(sizes), strict=True):
            batch[gradient_field(name)] = part
    return sums


def _gather_samples(head: ContrastHead, own_RF: Tensor, labels_R: Tensor) -> tuple[Tensor, Tensor, slice]:
    """Return contrastive features and labels of all samples, and the rows of this data rank (`models.contrast.Gather`).

    Gradients of the features are summed over data ranks.
    """
    group = parallel_state.get_data_parallel_group()
    own_RF = _check_features(own_RF, {head.label_field: labels_R}, head)
    first = dist.get_rank(group) * len(own_RF)
    return _GatherFeatures.apply(own_RF, group), _gather_ranks(labels_R, group), slice(first, first + len(own_RF))


class _GatherFeatures(torch.autograd.Function):
    """Autograd function that gathers contrastive features of all data ranks; its backward pass sums their gradients
    over data ranks."""

    @staticmethod
    def forward(ctx: Any, own_RF: Tensor, group: dist.ProcessGroup) -> Tensor:
        ctx.group = group
        return _gather_ranks(own_RF, group)

    @staticmethod
    def backward(ctx: Any, gradient_NF: Tensor) -> tuple[Tensor, None]:
        return _scatter_sum(gradient_NF, ctx.group), None


def _check_features(features: Tensor, batch: dict[str, Tensor], head: ContrastHead) -> Tensor:
    """Return the contrastive features if they have the required shape and dtype. Sums over all samples need more
    precision than bfloat16."""
    num_samples = len(batch[head.label_field])
    if features.dtype != torch.float32 or features.ndim != 2 or len(features) != num_samples:
        dtype = str(features.dtype).removeprefix("torch.")
        raise UserError(
            f"{type(head).__name__}.features returned {_format_shape(features)} in {dtype} for {num_samples} samples. "
            f"It must return [{num_samples}, F] in float32, for instance by .float()."
        )
    return features


def _format_shape(tensor: Tensor) -> str:
    return str(list(tensor.shape))


def _gather_ranks(own: Tensor, group: dist.ProcessGroup) -> Tensor:
    """Gather tensors [R, ...] of all data ranks to [N, ...], in rank order."""
    gathered = own.new_empty(len(own) * dist.get_world_size(group), *own.shape[1:])
    dist.all_gather_into_tensor(gathered, own.contiguous(), group=group)
    return gathered


def _scatter_sum(gradient_NF: Tensor, group: dist.ProcessGroup) -> Tensor:
    """Sum gradients [N, F] of features over data ranks, and return the [R, F] of this rank's samples."""
    own = gradient_NF.new_empty(len(gradient_NF) // dist.get_world_size(group), *gradient_NF.shape[1:])
    dist.reduce_scatter_tensor(own, gradient_NF.contiguous(), group=group)
    return own
