"""Pipeline parallelism: passes of micro-batches through the stages, and losses on stages other than the last."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from megatron.core.distributed import DistributedDataParallel
from megatron.core.pipeline_parallel import get_forward_backward_func
from torch import Tensor

from megaptm.batch import MicroBatch
from megaptm.models.loss import Loss
from megaptm.models.model import Model, stream_lengths
from megaptm.parallel.groups import Ranks, seed_step


class Pipeline:
    """Pipeline chunks of this rank in stage order, run by megatron-core's schedules."""

    def __init__(self, chunks: Sequence[DistributedDataParallel], ranks: Ranks, *, seed: int) -> None:
        self.chunks, self.ranks, self.seed = [*chunks], ranks, seed

    @property
    def last(self) -> Model:
        """Model part of this rank's last pipeline chunk."""
        model: Model = self.chunks[-1].module.model
        return model

    def run(
        self,
        microbatches: list[MicroBatch],
        reduce: Callable[[Any], tuple[Tensor, Tensor, Any]],
        *,
        step: int | None,
        backward: bool,
        **options: Any,
    ) -> list[Any]:
        """Run all micro-batches (fields [B, ...]) through the pipeline. Return, on the last stage, the third result of
        `reduce` for each output.

        With `step`, dropout is that of the step. `options` are passed to the model's forward.
        """
        if step is not None:
            seed_step(self.seed, step, self.ranks)
        for chunk in self.chunks:
            chunk.module.model.set_hash_seed_key(None if step is None else f"{self.seed}:{step}")

        def forward_step(iterator: Iterator[MicroBatch], chunk: Any) -> tuple[Any, Any]:
            return chunk(next(iterator), **options), reduce

        # Length of the tensor sent between stages: the sequences of all stacks are concatenated. Schedules divide it by
        # the context ranks, which the micro-batches already are.
        length = sum(stream_lengths(microbatches[0], self.last.spec.family).values()) * self.ranks.context_size
        reduced: list[Any] = get_forward_backward_func()(
            forward_step_func=forward_step,
            data_iterator=[iter(microbatches) for _ in self.chunks],
            model=self.chunks,
            num_microbatches=len(microbatches),
            seq_length=length,
            micro_batch_size=len(microbatches[0]["tokens"]),
            forward_only=not backward,
        )
        return reduced


def zero_token_count(like: Tensor) -> Tensor:
    """Return a token count of zero. megatron-core's schedules would divide by it, but losses are already divided."""
    return torch.zeros((), dtype=torch.int, device=like.device)


class _AttachLoss(torch.autograd.Function):
    """Autograd function that attaches a loss to hidden states, which it returns unchanged. Its backward pass gives the
    loss the gradient 1."""

    @staticmethod
    def forward(ctx: Any, stream: Tensor, loss: Tensor) -> Tensor:
        ctx.save_for_backward(torch.ones_like(loss))
        return stream.clone()  # a schedule frees the tensor it has sent, so it must not be a view

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        (loss_gradient,) = ctx.saved_tensors
        return gradients[0], loss_gradient


class InnerLosses:
    """Losses of heads on pipeline chunks other than the last, summed over the micro-batches of a pass
    (`Model.add_losses`).

    A schedule sends one tensor and waits for its gradient. The loss is attached to that tensor without changing it.
    When the gradient arrives, the backward pass of the loss starts, with a scale that is known before the pass, as for
    all losses.
    """

    def __init__(self) -> None:
        self.sums: dict[str, Tensor] = {}
        self._scales: Mapping[str, Tensor] = {}

    def begin(self, scales: Mapping[str, Tensor]) -> None:
        """Start a pass of the pipeline in which losses have these scales."""
        self.sums, self._scales = {}, scales

    def __call__(self, stream: Tensor, losses: dict[str, Loss]) -> Tensor:
        terms = {name: loss for name, (loss, _) in losses.items() if name in self._scales}
        for name, term in terms.items():
            self.sums[name] = self.sums.get(name, 0) + term.detach().double()
        if not terms:
            return stream
        total: Tensor = torch.stack([term * self._scales[name] for name, term in terms.items()]).sum()
        added: Tensor = _AttachLoss.apply(stream, total)
        return added
