"""Resolve the model of a config: the family's table of sizes, with the config's changes."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import fields, replace
from typing import Any

from megaptm.config.schema import Config, ModelConfig, Shape
from megaptm.errors import UserError
from megaptm.families import find_family
from megaptm.families.words import WordFamily, WordSize, WordSpec
from megaptm.objectives.ranking import WindowRanking
from megaptm.objectives.windows import CBOW
from megaptm.spec import PATTERN_NUMBERS, Block, Family, ModelSpec, PixelStatistics, Size, change

SHAPE = tuple(Shape.model_fields)
OF_TABLES = tuple(one.name for one in fields(WordSize) if one.name not in SHAPE)
"""Keys of a config's model that only word vectors have."""
CLUSTERS = ("cutoffs", "division")
"""Keys of the vocabulary's clusters."""
OF_CHARACTERS = ("filters", "highway", "character_width")
"""Keys of the character layers."""
LOSSES = ("z_loss", "label_smoothing", "negatives")
"""Keys of a token's loss."""
SHARING = ("share", "groups", "cycle")
OF_BLOCKS = (*SHARING, "attention_dropout", *PATTERN_NUMBERS)


def _numbers(shape: Shape, table: Size | None) -> dict[str, Any]:
    """Return the shape of a stack: the config's values, or else those of the table."""
    given = {name: getattr(shape, name) for name in SHAPE}
    return {name: getattr(table, name) if value is None and table else value for name, value in given.items()}


def _of_stack(model: ModelConfig, own: Size) -> dict[str, Any]:
    """Return the shape of a stack with its own row in the table. Its context is its own: positions of images and text
    differ."""
    return _numbers(model, own) | {"context": own.context}


def _read(said: dict[str, Any], block: Block) -> dict[str, Any]:
    """Return the values that a block uses."""
    return {name: one for name, one in said.items() if {*PATTERN_NUMBERS.get(name, block.words)} & {*block.words}}


def resolve(config: Config) -> ModelSpec | WordSpec:
    """Return the model or the word vectors of a config, with its changes.

    The config must have been checked (`config.load`). Raises `UserError` for an unknown family.
    """
    family = find_family(config.model.family)
    if not isinstance(family, WordFamily):
        return resolve_model(config)
    task = config.built_objective
    return replace(
        word_spec(config.model, family),
        tags=task.tags if isinstance(task, WindowRanking) else 0,
        positions=2 * task.window if isinstance(task, CBOW) and task.position_weights else 0,
    )


def resolve_model(config: Config) -> ModelSpec:
    """Return the model of a config, with its changes. Raises `UserError` for word vectors."""
    if isinstance(find_family(config.model.family), WordFamily):
        raise UserError(
            f"{config.model.family} is a table of words and no stack of layers: train it, export it with `megaptm "
            "export words`, and ask `megaptm evaluate` and `megaptm.load_words` for neighbors."
        )
    return model_spec(config.model, config.built_objective.losses)


def word_spec(model: ModelConfig, family: WordFamily) -> WordSpec:
    """Return the word vectors that a section `model` describes."""
    table = family.sizes.get(model.size, next(iter(family.sizes.values())))
    said = {name: value for name in family.numbers if (value := getattr(model, name)) is not None}
    vocabulary = family.vocabulary if model.vocabulary is None else model.vocabulary
    return WordSpec(family=family, size=replace(table, **said), vocabulary=vocabulary)


def model_spec(model: ModelConfig, losses: Iterable[str] = ()) -> ModelSpec:
    """Return the model that a section `model` describes, with a head for each of these losses."""
    family = find_family(model.family)
    assert isinstance(family, Family)
    # Each loss of the objective needs a head, even if the paper has none.
    if more := [loss for loss in losses if loss not in family.heads]:
        family = change(family, heads=(*family.heads, *more))
    said = {name: value for name in OF_BLOCKS if (value := getattr(model, name)) is not None}
    if said:
        family = change(
            family, stacks={name: change(block, **_read(said, block)) for name, block in family.stacks.items()}
        )
    if model.tasks is not None:
        family = change(family, tasks=model.tasks)
    if model.init_std is not None:
        family = change(family, init_std=model.init_std)
    losses_said = {name: value for name in LOSSES if (value := getattr(model, name)) is not None}
    if losses_said:
        family = change(family, **losses_said)
    table = family.sizes.get(model.size)
    shape = _numbers(model, table)
    stacks = {} if table is None else {name: _of_stack(model, own) for name, own in table.stacks.items()}
    for name, own in model.stacks.items():
        stacks[name] = stacks.get(name, shape | {"context": None}) | own.model_dump(exclude_none=True)
    # The context of the model applies to all stacks without their own.
    del shape["context"]
    own_context = None if table is None else table.context
    context = own_context or family.context if model.context is None else model.context
    embedding = model.embedding if table is None or model.embedding is not None else table.embedding
    axial = model.axial
    if axial is None and table is not None and model.context in (None, family.context):
        axial = table.axial
    by_frequency: dict[str, Any] = {
        name: getattr(table or Size(layers=1, width=1, heads=1, ffn=1), name) if value is None else value
        for name in (*CLUSTERS, *OF_CHARACTERS)
        for value in [getattr(model, name)]
    }
    spec = ModelSpec(
        family=family,
        size=Size(
            **shape,
            embedding=embedding,
            axial=axial,
            patch=table.patch if table is not None and model.patch is None else model.patch,
            detector=table.detector if table is not None and model.detector is None else model.detector,
            context=own_context,
            **by_frequency,
            # The first layer of some recurrent stacks has the width of the token table.
            stacks={
                name: Size(**numbers, embedding=embedding if family.is_recurrent else None)
                for name, numbers in stacks.items()
            },
        ),
        vocabulary=family.vocabulary if model.vocabulary is None else model.vocabulary,
        context=context,
        dropout=family.dropout if model.dropout is None else model.dropout,
    )
    return spec.with_pixels(PixelStatistics(model.pixel_mean or spec.pixels.mean, model.pixel_std or spec.pixels.std))


def resolved(config: Config) -> Config:
    """Return the config with all sizes of the model filled in, so that a later change of a table does not affect the
    run."""
    spec = resolve(config)
    if isinstance(spec, WordSpec):
        written = {name: getattr(spec.size, name) for name in spec.family.numbers}
        written |= {"vocabulary": spec.vocabulary}
        return config.model_copy(update={"model": config.model.model_copy(update=written)})
    shape = {name: getattr(spec.size, name) for name in (*SHAPE, "embedding", *CLUSTERS)}
    if any(block.position == "axial" for block in spec.family.stacks.values()):
        shape["axial"] = spec.axial
    stacks = {stack: Shape(**{name: getattr(size, name) for name in SHAPE}) for stack, size in spec.size.stacks.items()}
    rest = {name: getattr(spec, name) for name in ("vocabulary", "context", "dropout")}
    rest |= {name: getattr(spec.family, name) for name in LOSSES if name != "negatives" or spec.family.negatives}
    rest |= {name: getattr(spec.size, name) for name in OF_CHARACTERS if spec.family.reads_characters}
    if spec.family.reads_images:
        rest |= {"patch": spec.size.patch, "pixel_mean": spec.pixels.mean, "pixel_std": spec.pixels.std}
    rest |= {"detector": spec.size.detector} if spec.family.reads_regions else {}
    rest |= {"init_std": spec.family.init_std} if spec.family.reads_init_std else {}
    rest |= {"tasks": spec.family.tasks} if "task" in spec.family.inputs else {}
    # Values in which stacks differ are omitted: no key can express them, so they remain the family's.
    blocks = spec.family.stacks.values()
    for name in OF_BLOCKS:
        values = {getattr(block, name) for block in blocks if name in _read(dict.fromkeys(OF_BLOCKS), block)}
        rest |= {name: values.pop()} if len(values) == 1 else {}
    model = config.model.model_copy(update={**shape, "stacks": stacks, **rest})
    return config.model_copy(update={"model": model})
