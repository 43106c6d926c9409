"""Model of this rank in a layout: pipeline stages, data-parallel gradient buffers and copies of tied parameters."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from megatron.core.distributed import DistributedDataParallelConfig
from megatron.core.distributed.finalize_model_grads import finalize_model_grads
from torch import Tensor

from megaptm.config import CommunicationConfig, Layout
from megaptm.layers.kernel_choice import AUTO
from megaptm.parallel.compiled import compile_layers
from megaptm.parallel.full_sharding import FullySharded, FullyShardedStage
from megaptm.parallel.gradients import ChunkGradients, attach_main_grads
from megaptm.parallel.groups import Ranks, open_groups
from megaptm.parallel.hooks import EngineHook
from megaptm.parallel.stage import Stage, build_stages, transformer_config
from megaptm.parallel.tied_parameters import TiedParameters
from megaptm.spec import ModelSpec


@dataclass(frozen=True)
class ParallelModel:
    """Part of the model that this rank holds in a layout."""

    spec: ModelSpec
    layout: Layout
    precision: str
    ranks: Ranks
    stages: list[Stage]
    """Pipeline chunks of this rank, in pipeline order."""
    chunks: list[ChunkGradients] | list[FullyShardedStage]
    """Pipeline chunks of this rank with their gradient buffers, in pipeline order."""
    tied_parameters: TiedParameters
    compiles: bool = False
    """Whether torch.compile compiles the layers."""

    @property
    def sharded(self) -> FullySharded | None:
        """Fully sharded model; None if the layout does not shard fully."""
        return self.stages[0].sharded

    @property
    def gradient_replicas(self) -> int:
        """Number of data and context ranks that hold each element of the gradient."""
        return 1 if self.layout.divides_optimizer else self.ranks.replicas

    def train(self, mode: bool = True) -> None:
        """Switch dropout of the model on or off."""
        for chunk in self.chunks:
            chunk.train(mode)

    def finalize_gradients(self, chunks: list[Any], num_tokens: Tensor | None = None, **_: Any) -> None:
        """Sum gradients over ranks after the last backward pass of a step. Called by megatron-core's schedules."""
        # `num_tokens` is not used: losses are already divided by the counts of the global batch.
        if self.sharded is not None:
            chunks[0].finalize_gradients()
            return
        for chunk in chunks:
            chunk.reduce_untouched()
        finalize_model_grads(chunks, None)
        self.tied_parameters.sum_gradients()


def build_parallel_model(
    spec: ModelSpec,
    layout: Layout,
    *,
    losses: Iterable[str],
    precision: str = "fp32",
    communication: CommunicationConfig | None = None,
    timeout_minutes: float = 30.0,
    global_tokens: bool = False,
    attention_kernel: str = AUTO,
    compiles: bool = False,
    log: Callable[[str], None] = lambda line: None,
    hooks: Sequence[EngineHook] = (),
) -> ParallelModel:
    """Create the process groups of the layout, and build this rank's part of the model, without values of its weights.

    - `losses`: losses to train; the heads of other losses are frozen.
    - `timeout_minutes`: time limit of collectives, the same as for `groups.join_process_group`.
    - `global_tokens`: whether batches mark global tokens. If not, the projections of global tokens are frozen.
    - `attention_kernel`: one of `layers.kernel_choice.KERNELS`, or `auto`.
    - `compiles`: whether torch.compile compiles the layers.
    - `log`: receives a line for each kind of layer that cannot be compiled.
    - `hooks`: hooks that may extend the model.
    """
    ranks = open_groups(layout, timeout_minutes=timeout_minutes)
    communication = communication or CommunicationConfig()
    config = transformer_config(spec, layout, communication, precision)
    stages = build_stages(
        spec,
        layout,
        ranks,
        config,
        losses=losses,
        global_tokens=global_tokens,
        kernel=attention_kernel,
        hooks=hooks,
    )
    if compiles:
        for stage in stages:
            compile_layers(stage.model, log)
    if (sharded := stages[0].sharded) is not None:
        [stage] = stages
        sharded_stage = FullyShardedStage(stage)
        attach_main_grads(sharded.parameters(), overlaps=False)
        tied = TiedParameters(stages, layout, ranks, timeout_minutes=timeout_minutes)
        model = ParallelModel(spec, layout, precision, ranks, stages, [sharded_stage], tied, compiles)
        config.no_sync_func, config.finalize_model_grads_func = sharded_stage.no_sync, model.finalize_gradients
        return model
    tied_parameters = TiedParameters(stages, layout, ranks, timeout_minutes=timeout_minutes)
    overlap_grad_reduce = communication.overlap_grad_reduce and ranks.replicas > 1
    data_config = DistributedDataParallelConfig(
        use_distributed_optimizer=layout.distributed_optimizer,
        grad_reduce_in_fp32=True,
        overlap_grad_reduce=overlap_grad_reduce,
    )
    chunks = [
        ChunkGradients(config, data_config, stage, disable_bucketing=index > 0) for index, stage in enumerate(stages)
    ]
    # Otherwise gradients would be summed over data ranks after as many micro-batches as in the first step.
    no_sync = [chunk.no_sync for chunk in chunks]
    config.no_sync_func = no_sync if len(no_sync) > 1 else no_sync[0]
    model = ParallelModel(spec, layout, precision, ranks, stages, chunks, tied_parameters, compiles)
    config.finalize_model_grads_func = model.finalize_gradients
    return model
