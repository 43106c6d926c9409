"""Rules for the section `model`. Each rule gives one message with its key."""

from __future__ import annotations

import math
from collections.abc import Iterator

from megaptm.bricks.adaptive import cluster_mistakes
from megaptm.config.image_rules import image_shape
from megaptm.config.model import OF_CHARACTERS, OF_TABLES, model_spec
from megaptm.config.recurrent_rules import recurrent_shape
from megaptm.config.region_rules import region_shape
from megaptm.config.schema import ModelConfig
from megaptm.errors import nearest
from megaptm.families import WORDS
from megaptm.spec import PATTERN_NUMBERS, ModelSpec, Size


def model_rules(model: ModelConfig) -> Iterator[str]:
    """Yield every broken rule of a family with layers."""
    spec = model_spec(model)
    yield from _keys_without_meaning(model, spec)
    if spec.family.is_recurrent or spec.family.reads_characters:
        yield from recurrent_shape(model, spec)
    if spec.family.reads_images:
        yield from image_shape(model, spec)
    if spec.family.reads_regions:
        yield from region_shape(model, spec)
    if any(block.position == "axial" for block in spec.family.stacks.values()):
        yield from _axial(spec)
    read_otherwise = spec.family.is_recurrent or spec.family.reads_characters or spec.family.reads_images
    if spec.size.cutoffs and not (read_otherwise or spec.family.reads_regions):  # the others reject cutoffs
        yield from cluster_mistakes(spec)
    yield from _stacks(model, spec)
    yield from _heads(model, spec)


def _keys_without_meaning(model: ModelConfig, spec: ModelSpec) -> Iterator[str]:
    """Yield errors of keys that the family does not use."""
    family, size = spec.family, spec.size
    for key in OF_TABLES:
        if getattr(model, key) is not None:
            known = " or ".join(name for name, other in WORDS.items() if key in other.numbers)
            yield f"model.{key} means nothing to {title_of(model)}: remove it, or use {known}."
    if family.negatives and (
        loss := next((key for key in ("z_loss", "label_smoothing") if getattr(family, key)), None)
    ):
        yield f"model.{loss} is of a softmax over all words, and model.negatives draws some: set one to 0."
    for key in OF_CHARACTERS:
        if getattr(model, key) is not None and not family.reads_characters:
            yield f"model.{key} means nothing to {family.name}, which has a table of tokens; remove it."
    if model.vectors is not None and (family.reads_characters or family.reads_images or size.cutoffs):
        yield f"model.vectors means nothing to {family.name}, which has no one table of words; remove it."
    if model.negatives is not None and "bidirectional-lm" not in family.heads:
        yield f"model.negatives means nothing to {family.name}, whose losses compare all tokens; remove it."
    if model.patch is not None and not family.reads_images:
        yield f"model.patch ({model.patch}) means nothing to {family.name}, which reads no images; remove it."
    for key in ("pixel_mean", "pixel_std"):
        if getattr(model, key) is not None and not family.reads_images:
            yield f"model.{key} means nothing to {family.name}, which reads no images; remove it."
    if model.detector is not None and not family.reads_regions:
        yield (
            f"model.detector ({[*model.detector]}) means nothing to {family.name}, which reads no regions of images; "
            "remove it."
        )
    if model.init_std is not None and not family.reads_init_std:
        yield (
            f"model.init_std ({model.init_std:g}) means nothing to {title_of(model)}, where each weight begins by a "
            "rule of its own; remove it."
        )
    if model.tasks is not None and "task" not in family.inputs:
        yield f"model.tasks ({model.tasks}): {spec.name} is not told its task; remove it, or use ernie-2."
    shares = any(block.share for block in family.stacks.values())
    for key in () if shares else ("groups", "cycle"):
        if (getattr(model, key) or 1) > 1:
            yield (
                f"model.{key} ({getattr(model, key)}) means nothing to {title_of(model)}, whose layers share no "
                "weights: remove it, or say what they share (model.share=[attention, ffn])."
            )
    words = {word for block in family.stacks.values() for word in block.words}
    for name, readers in PATTERN_NUMBERS.items():
        if getattr(model, name) is not None and not words & {*readers}:
            yield f"model.{name} is of {' and '.join(readers)} attention, which {spec.name} has not; leave it out."
    if model.axial is not None and not any(block.position == "axial" for block in family.stacks.values()):
        yield f"model.axial is of axial positions, which {spec.name} has not; leave it out."


def _axial(spec: ModelSpec) -> Iterator[str]:
    """Yield errors of axial positions and hash buckets."""
    if (places := math.prod(spec.axial)) != spec.context:
        yield (
            f"model.axial ({spec.axial[0]} x {spec.axial[1]}) has {places} places, and model.context is "
            f"{spec.context}: make them equal, or leave model.axial out."
        )
    if spec.size.table_width < 4:
        yield f"model.width ({spec.size.table_width}) leaves no features to rows of axial positions; make it 4 or more."
    for block in spec.family.stacks.values():
        factors = (block.hash_buckets,) if isinstance(block.hash_buckets, int) else block.hash_buckets
        if "lsh" in block.words and (odd := [one for one in factors if one % 2]):
            yield f"model.hash_buckets ({odd[0]}) must be even: half of them are the opposites of the others."
        if "lsh" in block.words and math.prod(factors) >= 1 << 31:
            yield f"model.hash_buckets multiply to {math.prod(factors):,}, which a hash cannot tell apart: lower them."


def _stacks(model: ModelConfig, spec: ModelSpec) -> Iterator[str]:
    """Yield errors of the values of each stack."""
    if unknown := [name for name in model.stacks if name not in spec.family.stacks]:
        yield f"model.stacks has {unknown[0]}, which {spec.name} has not; {nearest(unknown[0], spec.family.stacks)}"
    for name, own in model.stacks.items():
        if own.context is not None and name in spec.family.stacks and spec.family.stacks[name].position != "learned":
            yield f"model.stacks.{name}.context ({own.context}): the {name} has no table of positions; leave it out."
    for stack, block in spec.family.stacks.items():
        layers = spec.size_of(stack).layers
        windows = (block.window,) if isinstance(block.window, int) else block.window
        if "window" in block.words and not block.causal and (odd := [one for one in windows if one % 2]):
            yield f"model.window ({odd[0]}) must be even: half of it is seen to each side."
        if block.share and block.groups * block.cycle > layers:
            yield (
                f"model.groups ({block.groups}) x model.cycle ({block.cycle}) must not exceed the {layers} layers of "
                f"the {stack} of {title_of(model)}: each would be the only one of its kind."
            )


def _heads(model: ModelConfig, spec: ModelSpec) -> Iterator[str]:
    """Yield an error unless heads divide the width, and key heads divide all heads."""
    for size, key in sizes_of(spec):
        if size.head_width is None and size.width % size.heads:
            yield (
                f"{key}.heads ({size.heads}) must divide the width {size.width} of {title_of(model)}; "
                f"change it or give {key}.head_width."
            )
        if size.heads % size.key_heads:
            yield (
                f"{key}.kv_heads ({size.key_heads}) must divide the {size.heads} attention heads of {title_of(model)}."
            )


def sizes_of(spec: ModelSpec) -> list[tuple[Size, str]]:
    """Return the sizes of the stacks, and their config sections."""
    own = [(size, f"model.stacks.{name}") for name, size in spec.size.stacks.items()]
    return own if len(own) == len(spec.family.stacks) else [(spec.size, "model"), *own]


def title_of(model: ModelConfig) -> str:
    """Return the title of a model: `bert/base`."""
    return f"{model.family}/{model.size}"
