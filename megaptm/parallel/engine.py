"""Training engine of stacks of layers: takes a spec and a layout, runs training steps."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import nullcontext
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from megatron.core import parallel_state
from megatron.core.distributed import DistributedDataParallel, DistributedDataParallelConfig
from megatron.core.distributed.finalize_model_grads import finalize_model_grads
from torch import Tensor

from megaptm.batch import IGNORED, MicroBatch
from megaptm.bricks import HEADS
from megaptm.bricks.kernels import AUTO
from megaptm.checkpoint.tensors import TensorPiece, TensorReader
from megaptm.config import CommunicationConfig, Layout, OptimizerConfig
from megaptm.errors import UserError
from megaptm.models.loss import count_asked
from megaptm.parallel import state
from megaptm.parallel.batches import share_batches, with_marked_places
from megaptm.parallel.collectives import numbers
from megaptm.parallel.contrast import compare_by_features, one_attention_kernel
from megaptm.parallel.groups import Ranks, device, open_groups
from megaptm.parallel.initial import InitialFrom
from megaptm.parallel.memory import RowMemory
from megaptm.parallel.optimizers import build_optimizer, set_rates, update
from megaptm.parallel.pipeline import InnerLosses, Pipeline, no_tokens
from megaptm.parallel.stage import Stage, attach_main_grads, build_stages, fill, reduce_untouched, transformer_config
from megaptm.parallel.step_result import REMEDY, DivergedError, NothingAskedError, StepResult
from megaptm.parallel.teacher import build_teacher, slice_of_teacher
from megaptm.parallel.tied_parameters import TiedParameters
from megaptm.processes import keep_freed_memory
from megaptm.spec import Distillation, ModelSpec


class Engine:
    """Model and optimizer of this rank in a layout."""

    def __init__(
        self,
        spec: ModelSpec,
        layout: Layout,
        optimizer: OptimizerConfig,
        *,
        losses: Mapping[str, float],
        seed: int,
        precision: str = "fp32",
        communication: CommunicationConfig | None = None,
        timeout_minutes: float = 30.0,
        filled: bool = True,
        marks: bool = False,
        attention_kernel: str = AUTO,
        initial_by_name: Mapping[str, Callable[[Tensor], Tensor]] | None = None,
        distillation: Distillation | None = None,
        teacher: TensorReader | None = None,
        initial_from: Callable[[], InitialFrom] | None = None,
    ) -> None:
        """Arguments beyond the spec, layout and optimizer:

        - `marks`: whether batches mark global tokens (`global_tokens`). If not, the projections of global tokens are
          frozen.
        - `attention_kernel`: one of `bricks.kernels.KERNELS`, or `auto`.
        - `timeout_minutes`: time limit of collectives, the same as for `groups.join`.
        - `initial_by_name`: parameter -> function from its usual initial value to the one it gets.
        - `initial_from`: opens a function from a parameter's name and usual initial value to the one it gets. It is
          called if there is no checkpoint to restore.
        - `distillation`: settings of distillation from `teacher`, a checkpoint.
        - `filled`: whether to set initial values now. Otherwise call `fill` or `restore` before the first step.
        """
        if device().type == "cpu":
            keep_freed_memory()
        self.spec, self.layout, self.seed, self.precision = spec, layout, seed, precision
        self._distillation = distillation
        self.losses = self._with_teacher(losses)
        self._initial_by_name = initial_by_name or {}
        self._initial_from = initial_from
        self._compared = [name for name in losses if name in HEADS and HEADS[name].contrasts]
        self.ranks: Ranks = open_groups(layout, timeout_minutes=timeout_minutes)
        communication = communication or CommunicationConfig()
        config = transformer_config(spec, layout, communication, precision, self._finalize_gradients)
        self.stages: list[Stage] = build_stages(
            spec,
            layout,
            self.ranks,
            config,
            losses=self.losses,
            marks=marks,
            kernel=attention_kernel,
            distillation=distillation,
        )
        if distillation is not None and not distillation.cached:
            assert teacher is not None, "a student needs its teacher's weights"
            self.stages[-1].teachers = (
                build_teacher(
                    distillation,
                    layout,
                    self.ranks,
                    reader=teacher,
                    precision=precision,
                    marks=marks,
                    kernel=attention_kernel,
                ),
            )
        if distillation is not None and distillation.initial:
            assert teacher is not None, "a slice is of something"
            self._initial_from = partial(slice_of_teacher, distillation, teacher)
        self._inner_losses = [InnerLosses() for _ in self.stages]
        for stage, inner in zip(self.stages, self._inner_losses, strict=True):
            stage.model.add_losses = inner
        if spec.remembers and self._compared:
            raise UserError(
                f"{spec.name} remembers what it reads, and {self._compared[0]} compares rows in two passes: set "
                "model.memory=0, or take another objective."
            )
        self.memories, self._held_out = self._new_memories(), self._new_memories()
        self.tied_parameters = TiedParameters(self.stages, layout, self.ranks, timeout_minutes=timeout_minutes)
        overlap_grad_reduce = communication.overlap_grad_reduce and self.ranks.data_size > 1
        data_config = DistributedDataParallelConfig(
            use_distributed_optimizer=layout.distributed_optimizer,
            grad_reduce_in_fp32=True,
            overlap_grad_reduce=overlap_grad_reduce,
        )
        self.chunks = [
            DistributedDataParallel(config, data_config, stage, disable_bucketing=index > 0)
            for index, stage in enumerate(self.stages)
        ]
        self.pipeline = Pipeline(self.chunks, self.ranks, seed=seed)
        # Otherwise gradients would be summed over data ranks after as many micro-batches as in the first step.
        no_sync = [chunk.no_sync for chunk in self.chunks]
        config.no_sync_func = no_sync if len(no_sync) > 1 else no_sync[0]
        attach_main_grads((one for stage in self.stages for one in stage.parameters()), overlaps=overlap_grad_reduce)
        self._weights = _filled(self.losses.values())
        self.optimizer = build_optimizer(self.chunks, self.stages, layout, optimizer, precision)
        if filled:
            self.fill()

    def weigh(self, weights: Mapping[str, float]) -> None:
        """Change the weights of the losses, starting with the next pass."""
        weights = self._with_teacher(weights)
        self.losses = {name: weights[name] for name in self.losses}
        self._weights = _filled(self.losses.values())

    def _with_teacher(self, losses: Mapping[str, float]) -> dict[str, float]:
        """Return the weights with those of the distillation losses, if there is a teacher."""
        return dict(losses) if self._distillation is None else self._distillation.weigh(losses)

    def fill(self) -> None:
        """Set the initial weights, a function of the seed."""
        initial_from = None if self._initial_from is None else self._initial_from()
        for stage in self.stages:
            fill(stage, seed=self.seed, initial_by_name=self._initial_by_name, initial_from=initial_from)
        self.optimizer.megatron.reload_model_params()

    def pieces(self) -> Iterator[TensorPiece]:
        """Yield the tensors that this process writes to a checkpoint."""
        return state.pieces(self)

    def restore(self, reader: TensorReader, *, step: int) -> None:
        """Continue from a checkpoint of any layout, written after `step` steps."""
        state.restore(self, reader, step=step)

    def step(self, microbatches: list[MicroBatch] | None, *, step: int, lr: float) -> StepResult:
        """Run one optimizer step over this data rank's micro-batches (fields [B, ...]; `microbatches` is None except on
        tensor rank 0).

        Raise DivergedError on every process, and leave weights and moments unchanged, if the loss or a gradient is not
        finite on any of them. Raise NothingAskedError if no loss has a label.
        """
        for chunk in self.chunks:
            chunk.train()
            chunk.zero_grad_buffer()
        for stage in self.stages:
            stage.model.begin_step(seed=self.seed, step=step)
        self.optimizer.megatron.zero_grad()
        losses, counts = self._run(self._share(microbatches), step=step)
        if not any(counts.values()):
            raise NothingAskedError(
                f"step {step + 1} was refused before it changed a weight: nothing is asked in it, every label of "
                f"{', '.join(counts)} is {IGNORED}; mend the objective, or look at that step's samples with `megaptm "
                "corpus inspect`."
            )
        loss = self._weighted(losses)
        set_rates(self.optimizer, step=step, lr=lr)
        # With the distributed optimizer each element of the gradient is on one data rank only.
        replicas = 1 if self.layout.distributed_optimizer else self.ranks.data_size
        norm = update(self.optimizer, loss=loss, replicas=replicas)
        if not math.isfinite(norm):
            of_which = ", ".join(f"{name} {mean}" for name, mean in losses.items() if not math.isfinite(mean))
            raise DivergedError(
                f"step {step + 1} was refused before it changed a weight: its loss is {loss:.6g}"
                f"{f' ({of_which})' if of_which else ''} and the norm of its gradient {norm}; {REMEDY}"
            )
        # Only after the update: a rejected step must not change the recurrence cache.
        for memory in self.memories:
            memory.keep()
        return StepResult(losses, loss, norm, counts)

    def _new_memories(self) -> list[RowMemory]:
        """Return an empty recurrence cache per chunk, for models that have one."""
        return [RowMemory(stage.model) for stage in self.stages] if self.spec.remembers else []

    @torch.no_grad()
    def evaluate(self, microbatches: list[MicroBatch] | None) -> StepResult:
        """Return the losses of micro-batches without dropout and without training. Evaluation has its own recurrence
        cache, which it keeps between calls."""
        for chunk in self.chunks:
            chunk.eval()
        losses, counts = self._run(self._share(microbatches))
        for memory in self._held_out:
            memory.keep()
        return StepResult(losses, self._weighted(losses), 0.0, counts)

    def _weighted(self, losses: Mapping[str, float]) -> float:
        return sum(weight * losses[name] for name, weight in self.losses.items())

    def _share(self, microbatches: list[MicroBatch] | None) -> list[MicroBatch]:
        given = None if microbatches is None else [with_marked_places(one) for one in microbatches]
        shared = share_batches(given, parallel_state.get_tensor_model_parallel_group())
        return [{name: field.to(device(), non_blocking=True) for name, field in batch.items()} for batch in shared]

    def _run(
        self, microbatches: list[MicroBatch], *, step: int | None = None
    ) -> tuple[dict[str, float], dict[str, int]]:
        """Return means and label counts of the losses. With `step`, use its dropout and compute gradients."""
        # Not copied to the host yet, which would wait for the slowest rank before launching any work.
        counts = self._global_counts(microbatches)
        memories = self.memories if step is not None else self._held_out
        for stage, memory in zip(self.stages, memories, strict=False):
            memory.begin(sum(len(batch["tokens"]) for batch in microbatches), anew=step is None)
            stage.memory = memory
        scale = (self._weights / counts.clamp(min=1)).float()
        for inner in self._inner_losses:
            inner.begin(dict(zip(self.losses, scale, strict=True)))

        def weigh(sums: dict[str, tuple[Tensor, Tensor]]) -> tuple[Tensor, Tensor, Tensor]:
            terms = torch.stack([sums[name][0] if name in sums else scale.new_zeros(()) for name in self.losses])
            return (terms * scale).sum(), no_tokens(terms), terms.detach()

        apart = self._compared_apart(microbatches)
        with one_attention_kernel() if apart else nullcontext():
            compared = compare_by_features(self.pipeline, apart, microbatches, step=step)
            # In evaluation the features pass already gives the value of contrastive losses.
            told = step is None and {*self.losses} == {*apart}
            reduced = [] if told else self.pipeline.run(microbatches, weigh, step=step, backward=step is not None)
        return self._global_means(reduced, counts, compared)

    def _compared_apart(self, microbatches: list[MicroBatch]) -> list[str]:
        """Return the contrastive losses of this step that need the features pass, because their samples span several
        passes.

        Batches of another task have no labels for them; all ranks have batches of the same task.
        """
        if len(microbatches) == 1 and parallel_state.get_data_parallel_world_size() == 1:
            return []
        return [name for name in self._compared if any(HEADS[name].answers in batch for batch in microbatches)]

    def _global_counts(self, microbatches: list[MicroBatch]) -> Tensor:
        """Return the number of labels of each loss in the global batch: its denominator, known before the first
        pass."""
        distill = self.stages[-1].model.distill

        def asked(loss: str, batch: MicroBatch) -> Tensor:
            if loss in HEADS:
                return count_asked(batch, HEADS[loss].answers)
            assert distill is not None
            return distill.count(loss, batch)

        local = torch.stack([torch.stack([asked(loss, one) for one in microbatches]).sum() for loss in self.losses])
        dist.all_reduce(local, group=parallel_state.get_data_parallel_group())
        return local

    def _global_means(
        self, reduced: list[Tensor], counts: Tensor, compared: Mapping[str, Tensor]
    ) -> tuple[dict[str, float], dict[str, int]]:
        total = torch.zeros(len(self.losses), dtype=torch.float64, device=device())
        for terms in reduced:
            total += terms.double()
        for index, name in enumerate(self.losses):
            if name in compared:  # the minimized surrogate has the loss's gradient, not its value
                total[index] = compared[name]
            for inner in self._inner_losses:
                total[index] += inner.sums.get(name, 0)
        dist.all_reduce(total, group=parallel_state.get_data_parallel_group())
        # Each loss is known only on the stage that has its head.
        dist.all_reduce(total, group=parallel_state.get_pipeline_model_parallel_group())
        sums, asked = numbers(torch.stack([total, counts.double()]))
        means = {name: value / max(count, 1) for name, value, count in zip(self.losses, sums, asked, strict=True)}
        return means, {name: int(count) for name, count in zip(self.losses, asked, strict=True)}

    def _finalize_gradients(self, chunks: list[Any], num_tokens: Tensor | None = None, **_: Any) -> None:
        # `num_tokens` is not used: losses are already divided by the counts of the global batch.
        for chunk in chunks:
            reduce_untouched(chunk)
        finalize_model_grads(chunks, None)
        self.tied_parameters.sum_gradients()


def _filled(numbers: Iterable[float]) -> Tensor:
    """Build a tensor of numbers on the device. A copy from the host would wait for all work launched before it."""
    return torch.stack([torch.full((), number, dtype=torch.float64, device=device()) for number in numbers])
