"""Resolve the model of a config: the family's table of sizes, with the config's changes."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import replace
from typing import Any

from pydantic import ValidationError

from megaptm.config.schema import Config, ModelConfig, Shape
from megaptm.errors import UserError
from megaptm.families import find_family, find_family_with_direction
from megaptm.spec import (
    Block,
    Family,
    InputSpec,
    LayerlessFamily,
    LayerlessSpec,
    ModelSpec,
    Size,
    attention_options,
    change,
    with_attention_options,
)

SHAPE_KEYS = tuple(Shape.model_fields)
LOSS_KEYS = ("z_loss", "label_smoothing", "negatives")
"""Keys that configure the losses of token heads."""
SHARING_KEYS = {"share": "sublayers", "groups": "groups", "cycle": "cycle"}
"""Fields of `SharingSpec` by the key of a config's model."""


def _shape_values(shape: Shape, table: Size | None) -> dict[str, Any]:
    """Return the shape of a stack: the config's values, or else those of the table."""
    configured = {name: getattr(shape, name) for name in SHAPE_KEYS}
    return {name: getattr(table, name) if value is None and table else value for name, value in configured.items()}


def _with_block_keys(block: Block, model: ModelConfig) -> Block:
    """Return the block of a family with the changes of a config's model.

    Invalid options of attention are omitted; `model_rules` reports them.
    """
    sharing = {field: value for key, field in SHARING_KEYS.items() if (value := getattr(model, key)) is not None}
    for name, value in model.attention.items():
        with suppress(ValidationError):
            block = with_attention_options(block, {name: value})
    return change(block, sharing=sharing)


def configured_family(model: ModelConfig) -> Family | LayerlessFamily | None:
    """Return the family of a config's model, with the configured direction of attention; None if it is unknown."""
    return find_family_with_direction(model.family, causal=model.causal)


def with_input_keys(record: InputSpec, model: ModelConfig) -> InputSpec:
    """Return an input of a family's model with the changes of a config's model."""
    configured = {field: getattr(model, key, None) for key, field in record.options.items()}
    return replace(record, **{field: value for field, value in configured.items() if value is not None})


def resolve_spec(config: Config) -> ModelSpec | LayerlessSpec:
    """Resolve the model of a config: the family's model with the config's changes.

    The config must have been checked (`config.load_config`). Raises `UserError` for an unknown family.
    """
    family = find_family(config.model.family)
    if isinstance(family, LayerlessFamily):
        return family.make_spec(config.model, config.built_objective)
    return resolve_model(config)


def resolve_model(config: Config) -> ModelSpec:
    """Resolve the model of a config, for a family with layers. Raises `UserError` for a family without."""
    if isinstance(family := find_family(config.model.family), LayerlessFamily):
        raise UserError(f"{config.model.family} is a family of {family.title}, which has no layers: {family.usage}.")
    return model_spec(config.model, config.built_objective.losses)


def model_spec(model: ModelConfig, losses: Iterable[str] = ()) -> ModelSpec:
    """Return the model spec that a config's section `model` describes, with a head for each of these losses."""
    family = configured_family(model)
    assert isinstance(family, Family)
    # Each loss of the objective needs a head, even if the paper has none.
    if missing_heads := [loss for loss in losses if loss not in family.heads]:
        family = change(family, heads=(*family.heads, *missing_heads))
    family = change(family, stacks={name: _with_block_keys(block, model) for name, block in family.stacks.items()})
    for record in family.inputs:
        family = family.with_input(with_input_keys(record, model))
    if model.init_std is not None:
        family = change(family, init={"std": model.init_std})
    loss_values = {name: value for name in LOSS_KEYS if (value := getattr(model, name)) is not None}
    if loss_values:
        family = change(family, loss=loss_values)
    table = family.sizes.get(model.size)
    shape = _shape_values(model, table)
    rows = {} if table is None else table.stacks
    # Contexts of stacks with rows of their own differ, such as those of images and text.
    stacks = {name: _shape_values(model, row) | {"context": row.context} for name, row in rows.items()}
    for name, own in model.stacks.items():
        stacks[name] = stacks.get(name, shape | {"context": None}) | own.model_dump(exclude_none=True)
    # The context of the model applies to all stacks without their own.
    del shape["context"]
    own_context = None if table is None else table.context
    context = own_context or family.context if model.context is None else model.context
    embedding = model.embedding if table is None or model.embedding is not None else table.embedding
    tied = table.tied if table is not None and model.tied is None else model.tied
    inputs = {key: value for record in family.inputs for key, value in record.size_defaults.items()}
    inputs |= {} if table is None else table.inputs
    for record in family.inputs:
        for key in record.size_keys:
            if (value := getattr(model, key, None)) is not None:
                inputs[key] = value
            elif record.fits_context and model.context not in (None, family.context):
                inputs.pop(key, None)
    size = Size(
        **shape,
        embedding=embedding,
        tied=tied,
        inputs=inputs,
        context=own_context,
        # The first layer of some kinds of layers has the width of the token table.
        stacks={
            name: Size(**numbers, embedding=None if family.layer is None else embedding)
            for name, numbers in stacks.items()
        },
    )
    return ModelSpec(
        family=family.for_size(size),
        size=size,
        vocabulary=family.tokenizer.vocabulary if model.vocabulary is None else model.vocabulary,
        context=context,
        dropout=family.dropout if model.dropout is None else model.dropout,
        mup_base_width=model.mup_base_width,
    )


def _common_options(options: Iterable[dict[str, Any]]) -> dict[str, Any]:
    """Return the options of attention that have the same value in all stacks that have them."""
    values: dict[str, set[Any]] = defaultdict(set)
    for name, value in (item for stack in options for item in stack.items()):
        values[name].add(value)
    return {name: value for name, (value, *differing) in values.items() if not differing}


def with_resolved_model(config: Config) -> Config:
    """Return the config with all sizes of the model filled in, so that a later change of a table does not affect the
    run."""
    spec = resolve_spec(config)
    if isinstance(spec, LayerlessSpec):
        model_values = {name: getattr(spec.size, name) for name in spec.family.size_fields}
        model_values |= {"vocabulary": spec.vocabulary}
        return config.model_copy(update={"model": config.model.model_copy(update=model_values)})
    shape = {name: getattr(spec.size, name) for name in (*SHAPE_KEYS, "embedding", "tied")}
    stacks = {
        stack: Shape(**{name: getattr(size, name) for name in SHAPE_KEYS}) for stack, size in spec.size.stacks.items()
    }
    other_values = {name: getattr(spec, name) for name in ("vocabulary", "context", "dropout")}
    other_values |= {
        name: getattr(spec.family.loss, name) for name in LOSS_KEYS if name != "negatives" or spec.family.loss.negatives
    }
    for record in spec.family.inputs:
        other_values |= record.derived_sizes(spec)
    other_values |= spec.size.inputs
    other_values |= {"init_std": spec.family.init.std} if spec.family.init.uses_std else {}
    other_values |= {
        key: getattr(record, field) for record in spec.family.inputs for key, field in record.options.items()
    }
    # Values in which stacks differ are omitted: no key can express them, so they remain the family's.
    blocks = spec.family.stacks.values()
    for key, field in SHARING_KEYS.items():
        values = {getattr(block.sharing, field) for block in blocks}
        other_values |= {key: values.pop()} if len(values) == 1 else {}
    other_values["attention"] = _common_options(attention_options(block) for block in blocks if block.layer is None)
    model = config.model.model_copy(update={**shape, "stacks": stacks, **other_values})
    return config.model_copy(update={"model": model})
