"""Training engine of stacks of layers: runs training steps and evaluations of a parallel model."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace

import torch
import torch.distributed as dist
from megatron.core import parallel_state
from torch import Tensor

from megaptm.batch import IGNORED, MicroBatch
from megaptm.checkpoint.tensors import TensorPiece, TensorReader
from megaptm.models.head_costs import HEADS
from megaptm.models.loss import num_labels
from megaptm.models.output import ModelOutput
from megaptm.parallel import state
from megaptm.parallel.batches import share_batches
from megaptm.parallel.collectives import copy_to_host
from megaptm.parallel.groups import rank_device, replica_group
from megaptm.parallel.hooks import EngineHook
from megaptm.parallel.initial import Initializer, init_weights
from megaptm.parallel.loss_scale import LossScale
from megaptm.parallel.model import ParallelModel
from megaptm.parallel.optimizers import Optimizer
from megaptm.parallel.pipeline import InnerLosses, Pipeline, zero_token_count
from megaptm.parallel.replicas import check_replicas
from megaptm.parallel.spikes import Spikes
from megaptm.parallel.step_result import REMEDY, DivergedError, NoLabelsError, RollBackError, StepResult


class Engine:
    """Training engine: model, optimizer and hooks of this rank in a layout."""

    def __init__(
        self,
        model: ParallelModel,
        optimizer: Optimizer,
        *,
        losses: Mapping[str, float],
        seed: int,
        hooks: Sequence[EngineHook] = (),
        open_initializer: Callable[[], Initializer] | None = None,
        loss_scale: LossScale | None = None,
        spikes: Spikes | None = None,
    ) -> None:
        """`losses`: loss -> weight. `open_initializer` is called by `init_weights`. Call `init_weights` or `restore`
        before the first training step."""
        self.model, self.optimizer, self.seed, self.hooks = model, optimizer, seed, hooks
        self.loss_scale, self.spikes = loss_scale, spikes
        self.ranks = model.ranks
        self.pipeline = Pipeline(model.chunks, model.ranks, seed=seed)
        self._open_initializer = open_initializer
        self._inner_losses = [InnerLosses() for _ in model.stages]
        for stage, inner in zip(model.stages, self._inner_losses, strict=True):
            stage.model.add_losses = inner
            stage.hooks = hooks
        self.set_loss_weights(losses)

    def set_loss_weights(self, weights: Mapping[str, float]) -> None:
        """Change the weights of the losses, starting with the next forward pass."""
        self.losses = dict(weights)
        for hook in self.hooks:
            self.losses = hook.loss_weights(self.losses)
        self._weights = _on_device(self.losses.values())

    def init_weights(self) -> None:
        """Set the initial weights of the model, a function of the seed."""
        initializer = next(filter(None, (hook.model_initializer() for hook in self.hooks)), None)
        if initializer is None and self._open_initializer is not None:
            initializer = self._open_initializer()
        for stage in self.model.stages:
            init_weights(stage, seed=self.seed, initializer=initializer)
        self.optimizer.megatron.reload_model_params()

    def pieces(self) -> Iterator[TensorPiece]:
        """Yield the pieces of weights and optimizer state that this rank writes to a checkpoint."""
        yield from state.optimizer_pieces(self.optimizer, self.ranks)
        if self.loss_scale is not None:
            yield from self.loss_scale.pieces(self.ranks)
        if self.spikes is not None:
            yield from self.spikes.pieces(self.ranks)
        for hook in self.hooks:
            yield from hook.pieces()

    def restore(self, reader: TensorReader, *, step: int) -> None:
        """Restore weights and optimizer state from a checkpoint of any layout, written after `step` steps."""
        if self.loss_scale is not None:
            self.loss_scale.restore(reader)
        if self.spikes is not None:
            self.spikes.restore(reader)
        state.restore_optimizer(self.optimizer, reader, step=self._num_updates(step))
        for hook in self.hooks:
            hook.restore(reader)

    def train_step(self, microbatches: list[MicroBatch] | None, *, step: int, lr: float) -> StepResult:
        """Run one optimizer step over this data rank's micro-batches (fields [B, ...]; `microbatches` is None except on
        tensor rank 0).

        Raise DivergedError on every process, and leave weights and moments unchanged, if the loss or a gradient is not
        finite on any of them; with a loss scale, skip such a step and lower the scale first. Raise NoLabelsError if no
        loss has a label.
        """
        self.model.train()
        self.zero_grad()
        for stage in self.model.stages:
            stage.model.begin_step(seed=self.seed, step=step)
        losses, counts = self._forward_backward(self._share_microbatches(microbatches), step=step)
        loss = self._weighted_sum(losses)
        if not any(counts.values()):
            raise NoLabelsError(
                f"step {step + 1} was rejected and changed no weight: no sample has a label, all labels of "
                f"{', '.join(counts)} are {IGNORED}. Correct the objective, or look at the samples of that step with "
                f"`megaptm inspect RUN` (--step {step + 1})."
            )
        scale = 1.0 if self.loss_scale is None else self.loss_scale.value
        norm, shared_loss = self.optimizer.gradient_norm(loss=loss, replicas=self.model.gradient_replicas)
        norm /= scale
        result = StepResult(losses, loss, norm, counts, loss_scale=None if self.loss_scale is None else scale)
        if not math.isfinite(norm):
            if self.loss_scale is not None and self.loss_scale.skip():
                return replace(result, is_skipped=True)
            not_finite = ", ".join(f"{name} {mean}" for name, mean in losses.items() if not math.isfinite(mean))
            named = f" ({not_finite})" if not_finite else ""
            if self.spikes is not None and self.spikes.count_not_finite_step():
                description = f"loss {loss:.6g}{named}, gradient norm {norm:.6g}"
                if self.spikes.action == "roll-back":
                    raise RollBackError(description)
                # Unlike a spike of finite values, it must not change recurrence caches.
                return replace(result, spike=description, is_skipped=True)
            raise DivergedError(
                f"step {step + 1} was rejected and changed no weight: its loss is {loss:.6g}{named} and its gradient "
                f"norm is {norm}; {REMEDY}"
            )
        # All processes decide by the same bits.
        if self.spikes is not None and (spike := self.spikes.find(loss=shared_loss, gradient_norm=norm)) is not None:
            result = replace(result, spike=spike)
            if self.spikes.action == "stop":
                raise DivergedError(
                    f"step {step + 1} was rejected and changed no weight: a spike, {spike} (train.spikes.action is "
                    f"stop); {REMEDY}"
                )
            if self.spikes.action == "roll-back":
                raise RollBackError(spike)
            if self.spikes.action == "skip-step":
                self.spikes.skipped += 1
                for hook in self.hooks:
                    hook.after_step()  # recurrence caches go on with the text
                return replace(result, is_skipped=True)
        for hook in self.hooks:
            hook.before_update(self.optimizer, step=step, scale=scale)
        self.optimizer.clip_gradients(norm, scale=scale)
        self.optimizer.set_rates(step=self._num_updates(step), lr=lr)
        self.optimizer.step()
        if self.loss_scale is not None:
            self.loss_scale.update()
        for hook in self.hooks:
            hook.after_step()
        return replace(result, metrics={name: value for hook in self.hooks for name, value in hook.metrics().items()})

    def check_replicas(self) -> None:
        """Raise ReplicaError on every process if ranks that hold the same weights differ. With full sharding there is
        one copy of each weight."""
        if self.model.sharded is None:
            weights = {part.placement.name: part.replica for part in self.optimizer.parts}
            # Compiled kernels of tensor ranks, each tuned by its process, may add gradients in another order. Sequence
            # parallelism sums these over tensor ranks.
            may_round = self.model.compiles and not self.model.layout.sequence_parallel
            copied = {part.placement.name for part in self.optimizer.parts if part.placement.axis is None}
            check_replicas(weights, set() if may_round else copied, self.ranks)

    def _num_updates(self, step: int) -> int:
        """Return the number of updates that the optimizer made in the first `step` training steps."""
        return step - sum(state.skipped for state in (self.loss_scale, self.spikes) if state is not None)

    def zero_grad(self) -> None:
        """Set all gradients of the model to zero."""
        for chunk in self.model.chunks:
            chunk.zero_grad_buffer()
        self.optimizer.megatron.zero_grad()

    @torch.no_grad()
    def evaluate(self, microbatches: list[MicroBatch] | None) -> StepResult:
        """Return the losses of validation micro-batches, without dropout and gradients."""
        self.model.train(False)
        losses, counts = self._forward_backward(self._share_microbatches(microbatches), step=None)
        for hook in self.hooks:
            hook.after_step()
        return StepResult(losses, self._weighted_sum(losses), 0.0, counts)

    def _weighted_sum(self, losses: Mapping[str, float]) -> float:
        return sum(weight * losses[name] for name, weight in self.losses.items())

    def _share_microbatches(self, microbatches: list[MicroBatch] | None) -> list[MicroBatch]:
        """Broadcast the micro-batches to all tensor ranks, and copy them to the device."""
        for hook in self.hooks:
            microbatches = microbatches and [hook.prepare_batch(batch) for batch in microbatches]
        shared = share_batches(microbatches, parallel_state.get_tensor_model_parallel_group())
        return [{name: field.to(rank_device(), non_blocking=True) for name, field in batch.items()} for batch in shared]

    def _forward_backward(
        self, microbatches: list[MicroBatch], *, step: int | None
    ) -> tuple[dict[str, float], dict[str, int]]:
        """Run the forward and backward passes of a step; return means and label counts of the losses. Without `step`,
        run only forward passes, without dropout."""
        # Not copied to the host yet, which would wait for the slowest rank before launching any work.
        counts = self._global_counts(microbatches)
        scale = (self._weights / counts.clamp(min=1)).float()
        if step is not None and self.loss_scale is not None:
            scale = scale * self.loss_scale.value
        for inner in self._inner_losses:
            inner.begin(dict(zip(self.losses, scale, strict=True)))

        def reduce(output: ModelOutput) -> tuple[Tensor, Tensor, Tensor]:
            terms = torch.stack(
                [output.losses[name][0] if name in output.losses else scale.new_zeros(()) for name in self.losses]
            )
            return (terms * scale).sum(), zero_token_count(terms), terms.detach()

        with ExitStack() as stack:
            known: dict[str, Tensor] = {}
            for hook in self.hooks:
                known |= stack.enter_context(hook.wrap_passes(self.pipeline, microbatches, step=step))
            needs_pass = step is not None or known.keys() != self.losses.keys()
            reduced = (
                self.pipeline.run(microbatches, reduce, step=step, backward=step is not None) if needs_pass else []
            )
        return self._global_means(reduced, counts, known)

    def _global_counts(self, microbatches: list[MicroBatch]) -> Tensor:
        """Return the number of labels of each loss in the global batch: its denominator, known before the first forward
        pass."""
        local = torch.stack(
            [torch.stack([self._count_labels(loss, batch) for batch in microbatches]).sum() for loss in self.losses]
        )
        dist.all_reduce(local, group=replica_group())
        return local

    def _count_labels(self, loss: str, batch: MicroBatch) -> Tensor:
        if loss in HEADS:
            return num_labels(batch, HEADS[loss].label_field)
        counts = (hook.count_labels(loss, batch) for hook in self.hooks)
        return next(count for count in counts if count is not None)

    def _global_means(
        self, reduced: list[Tensor], counts: Tensor, known: Mapping[str, Tensor]
    ) -> tuple[dict[str, float], dict[str, int]]:
        """Return mean and label count of each loss over the global batch. `known`: sums over this rank's samples that
        hooks computed."""
        total = torch.zeros(len(self.losses), dtype=torch.float64, device=rank_device())
        for terms in reduced:
            total += terms.double()
        for index, name in enumerate(self.losses):
            if name in known:  # the minimized surrogate has the loss's gradient, not its value
                total[index] = known[name]
            for inner in self._inner_losses:
                total[index] += inner.sums.get(name, 0)
        dist.all_reduce(total, group=replica_group())
        # Each loss is known only on the stage that has its head.
        dist.all_reduce(total, group=parallel_state.get_pipeline_model_parallel_group())
        sums, label_counts = copy_to_host(torch.stack([total, counts.double()]))
        means = {
            name: value / max(count, 1) for name, value, count in zip(self.losses, sums, label_counts, strict=True)
        }
        return means, {name: int(count) for name, count in zip(self.losses, label_counts, strict=True)}


def _on_device(values: Iterable[float]) -> Tensor:
    """Create a tensor on the device from Python numbers. `torch.tensor` would copy from the host, and this copy would
    wait for all launched kernels."""
    return torch.stack([torch.full((), value, dtype=torch.float64, device=rank_device()) for value in values])
