"""Assembly of a training engine from model, optimizer and hooks."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from megaptm.config import Layout, LossScaleConfig, OptimizerConfig, SpikeConfig
from megaptm.errors import UserError
from megaptm.models.head_costs import HEADS
from megaptm.parallel.context import ContextHook, context_ranks
from megaptm.parallel.contrast import ContrastHook
from megaptm.parallel.document_offsets import DocumentOffsetsHook
from megaptm.parallel.engine import Engine
from megaptm.parallel.global_tokens import GlobalTokensHook
from megaptm.parallel.hooks import EngineHook
from megaptm.parallel.initial import Initializer
from megaptm.parallel.loss_scale import LossScale
from megaptm.parallel.model import ParallelModel, build_parallel_model
from megaptm.parallel.optimizers import build_optimizer
from megaptm.parallel.recurrence_cache import RecurrenceHook
from megaptm.parallel.spikes import Spikes
from megaptm.spec import ModelSpec


def build_engine(
    spec: ModelSpec,
    layout: Layout,
    optimizer: OptimizerConfig,
    *,
    losses: Mapping[str, float],
    seed: int,
    hooks: Sequence[EngineHook] = (),
    open_initializer: Callable[[], Initializer] | None = None,
    loss_scale: LossScaleConfig | None = None,
    spikes: SpikeConfig | None = None,
    **options: Any,
) -> Engine:
    """Build a training engine whose weights have no values yet: call `Engine.init_weights` or `Engine.restore`.

    `hooks`: hooks of the run, besides those of the model. `loss_scale`: options for fp16. `spikes`: reaction to
    spikes of the loss, if any. `options`: see `build_parallel_model`.
    """
    model = build_parallel_model(spec, layout, losses=losses, hooks=hooks, **options)
    for hook in hooks:
        hook.attach(model)
    return Engine(
        model,
        build_optimizer(model, optimizer),
        losses=losses,
        seed=seed,
        hooks=[*_model_hooks(model, losses), *hooks],
        open_initializer=open_initializer,
        loss_scale=LossScale(loss_scale or LossScaleConfig()) if model.precision == "fp16" else None,
        spikes=None if spikes is None else Spikes(spikes),
    )


def _model_hooks(model: ParallelModel, losses: Iterable[str]) -> list[EngineHook]:
    """Return the engine hooks that a model and its losses need. Raise UserError if these exclude each other."""
    context = context_ranks(model.ranks)
    hooks: list[EngineHook] = [GlobalTokensHook(), DocumentOffsetsHook(model.spec.family, context)]
    contrastive = [name for name in losses if name in HEADS and HEADS[name].contrasts]
    if model.spec.has_recurrence_cache:
        hooks.append(RecurrenceHook([stage.model for stage in model.stages], model.ranks))
    if contrastive:
        hooks.append(ContrastHook(contrastive))
    if context.size > 1:
        hooks.append(ContextHook(model.spec, context))
    if model.spec.has_recurrence_cache and contrastive:
        raise UserError(
            f"{model.spec.name} has a recurrence cache, and {contrastive[0]} compares samples in two passes, "
            "which would read the cache twice. Set model.memory=0, or choose another objective."
        )
    return hooks
