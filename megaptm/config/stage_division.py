"""Layers of each pipeline stage: rules, and the cut by FLOPs where a config has none."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from megaptm.config.model import resolve
from megaptm.config.objective_fit import sequence_lengths
from megaptm.config.schema import Config, Layout
from megaptm.errors import UserError
from megaptm.models.chunk import allows_heads_alone, chunks
from megaptm.models.stage_costs import ChainCosts, count_chain, layers_by_cost
from megaptm.spec import LayerlessSpec, ModelSpec


def cut_errors(layout: Layout, spec: ModelSpec, title: str) -> Iterator[str]:
    """Yield errors of the division of a model into stages. `title`: its name in messages."""
    cut, number = layout.layers_by_chunk, layout.pipeline * layout.virtual
    name = "layout.pipeline" if layout.virtual == 1 else "layout.pipeline x layout.virtual"
    if layout.virtual > 1 and layout.pipeline == 1:
        yield f"layout.virtual ({layout.virtual}) needs layout.pipeline of at least 2."
    elif cut is None:
        if number > spec.layers:
            yield f"{name} ({number}) must be at most the {spec.layers} layers of {title}."
    elif layout.pipeline == 1:
        yield "layout.layers_per_stage needs layout.pipeline of at least 2; remove it."
    elif len(cut) != number:
        yield f"layout.layers_per_stage must have {number} entries ({name}), not {len(cut)}; auto cuts by FLOPs."
    elif sum(cut) != spec.layers:
        yield f"layout.layers_per_stage must have the {spec.layers} layers of {title} in all, not {sum(cut)}."
    elif 0 in cut[:-1]:
        yield "layout.layers_per_stage: only the last stage, which has the heads, may have 0 layers."
    else:
        if not cut[-1] and not allows_heads_alone(spec):
            yield f"layout.layers_per_stage: the last stage of {title} needs a layer; its heads cannot be alone."
        try:
            chunks(spec, number, cut)
        except UserError as error:
            yield str(error)


def with_cut(config: Config) -> Config:
    """Return the config with numbers in `layout.layers_per_stage`; absent if they are equal. Raises `UserError` if
    there are too few layers."""
    spec, layout = resolve(config), config.layout
    if isinstance(spec, LayerlessSpec):
        return config
    batch = config.batch_spec

    def count() -> ChainCosts:
        return count_chain(
            spec,
            sequence_lengths(batch, spec.family),
            num_predicted=batch.num_predicted,
            appended=batch.num_appended,
            heads=config.built_objective.losses,
            recompute=layout.recompute,
            recompute_every=layout.recompute_every,
        )

    return config.model_copy(update={"layout": cut_layout(layout, spec, count)})


def cut_layout(layout: Layout, spec: ModelSpec, count: Callable[[], ChainCosts]) -> Layout:
    """Return the layout with numbers in `layers_per_stage`; None if they are equal. `count`: costs for a cut by
    cost."""
    number = layout.pipeline * layout.virtual
    if layout.layers_by_chunk is not None or (layout.layers_per_stage is None and is_evenly_cut(spec, number)):
        return layout
    if number == 1:
        return layout.model_copy(update={"layers_per_stage": None})
    cut = layers_by_cost(spec, count(), pipeline=layout.pipeline, virtual=layout.virtual)
    return layout.model_copy(update={"layers_per_stage": None if len({*cut}) == 1 else cut})


def is_evenly_cut(spec: ModelSpec, number: int) -> bool:
    """Whether a model can be cut into chunks of equally many layers."""
    if spec.layers % number:
        return False
    try:
        chunks(spec, number)
    except UserError:  # a head reads layers of several chunks
        return False
    return True
