"""One pass of a step's micro-batches through the stages of the model, and losses on stages that are not the last."""

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
    """This rank's chunks of the model, in the order of its stages, and megatron-core's schedules over them."""

    def __init__(self, chunks: Sequence[DistributedDataParallel], ranks: Ranks, *, seed: int) -> None:
        self.chunks, self.ranks, self.seed = [*chunks], ranks, seed

    @property
    def last(self) -> Model:
        """The model's part on the last of the chunks."""
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
        """All micro-batches ([B, ...] each); on the last stage, what `reduce` keeps of each one's output. With a step
        also its dropout; `options` are those of the model's forward."""
        if step is not None:
            seed_step(self.seed, step, self.ranks)
        for chunk in self.chunks:
            chunk.module.model.hash_by(None if step is None else f"{self.seed}:{step}")

        def forward_step(iterator: Iterator[MicroBatch], chunk: Any) -> tuple[Any, Any]:
            return chunk(next(iterator), **options), reduce

        # Of the one stream that travels between stages: all stacks' lie end to end.
        length = sum(stream_lengths(microbatches[0], self.last.spec.family).values())
        kept: list[Any] = get_forward_backward_func()(
            forward_step_func=forward_step,
            data_iterator=[iter(microbatches) for _ in self.chunks],
            model=self.chunks,
            num_microbatches=len(microbatches),
            seq_length=length,
            micro_batch_size=len(microbatches[0]["tokens"]),
            forward_only=not backward,
        )
        return kept


def no_tokens(like: Tensor) -> Tensor:
    """What schedules would divide by, if losses were not divided already."""
    return torch.zeros((), dtype=torch.int, device=like.device)


class _WithLoss(torch.autograd.Function):
    """The stream as it is; backward, its gradient for it and 1 for the loss."""

    @staticmethod
    def forward(ctx: Any, stream: Tensor, loss: Tensor) -> Tensor:
        ctx.save_for_backward(torch.ones_like(loss))
        return stream.clone()  # a schedule frees what it has sent, and no view of something else

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        (one,) = ctx.saved_tensors
        return gradients[0], one


class InnerLosses:
    """Losses of heads that are not on the last chunk: what such a chunk's `Model.add_losses` is, summed over the
    micro-batches of a pass.

    A schedule hands on one tensor and waits for its gradient. So a loss is hung on that tensor, which it does not
    change: when its gradient comes back, the loss's own begins, with a scale that is known before the pass, as for all
    losses.
    """

    def __init__(self) -> None:
        self.sums: dict[str, Tensor] = {}
        self._scales: Mapping[str, Tensor] = {}

    def begin(self, scales: Mapping[str, Tensor]) -> None:
        """A pass begins, in which each loss counts with this scale."""
        self.sums, self._scales = {}, scales

    def __call__(self, stream: Tensor, losses: dict[str, Loss]) -> Tensor:
        terms = {name: loss for name, (loss, _) in losses.items() if name in self._scales}
        for name, term in terms.items():
            self.sums[name] = self.sums.get(name, 0) + term.detach().double()
        if not terms:
            return stream
        total: Tensor = torch.stack([term * self._scales[name] for name, term in terms.items()]).sum()
        added: Tensor = _WithLoss.apply(stream, total)
        return added
