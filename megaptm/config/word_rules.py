"""What a config of word vectors may not combine: tables have no layers, and only data ranks divide them."""

from __future__ import annotations

from collections.abc import Iterator

from megaptm.config.schema import Config, Layout, ModelConfig, OptimizerConfig
from megaptm.families import find_family
from megaptm.families.words import LANES, WordFamily

OF_PIECES = ("buckets", "ngrams")
OF_ALL = ("family", "size", "vocabulary", "width")
"""Keys of `model` that mean something to all of them."""
ALONE = ("tensor", "pipeline", "virtual", "sequence_parallel", "distributed_optimizer", "recompute")
OF_RATE = ("name", "lr", "warmup_steps", "stable_steps", "decay", "power", "final", "decay_steps", "counts")
"""Keys of `optimizer` that do."""


def word_rules(config: Config) -> Iterator[str]:
    """Every broken rule."""
    yield from word_shape(config.model)
    yield from _layout(config)
    yield from _optimizer(config)
    if config.train.precision != "fp32":
        yield (
            f"train.precision ({config.train.precision}) must be fp32 for {config.model.family}, whose tables are "
            "moved in place: set it."
        )


def word_shape(model: ModelConfig) -> Iterator[str]:
    """Every key of a model that its tables have no use for, and pieces of words that cannot be."""
    family = find_family(model.family)
    assert isinstance(family, WordFamily)
    pieces = any(size.buckets for size in family.sizes.values())
    for key, value in model:
        if key in OF_ALL or value in (None, {}):
            continue
        if key not in OF_PIECES:
            yield f"model.{key} means nothing to {model.family}, which has no layers; remove it."
        elif not pieces:
            yield f"model.{key} means nothing to {model.family}, which knows no pieces of words; use fasttext."
    if pieces and model.ngrams is not None and model.ngrams[0] > model.ngrams[1]:
        yield f"model.ngrams ({model.ngrams[0]}, {model.ngrams[1]}) must be the shorter and then the longer."


def _layout(config: Config) -> Iterator[str]:
    layout, family = config.layout, config.model.family
    usual = Layout()
    for key in ALONE:
        if getattr(layout, key) != getattr(usual, key):
            yield (
                f"layout.{key} ({getattr(layout, key)}) means nothing to {family}, whose tables data ranks divide "
                "among them: use layout.data alone."
            )
    if layout.microbatch != 1:
        yield (
            f"layout.microbatch ({layout.microbatch}) must be 1 for {family}, which learns row by row: make rows "
            "longer with data.sequence."
        )
    if layout.data > LANES:
        yield f"layout.data ({layout.data}) must not exceed {LANES} for {family}: its tables are divided by {LANES}."


def _optimizer(config: Config) -> Iterator[str]:
    optimizer, family = config.optimizer, config.model.family
    if optimizer.name != "sgd":
        yield f"optimizer.name ({optimizer.name}) must be sgd for {family}, which moves a vector at each word: set it."
    usual = OptimizerConfig(lr=1.0)
    for key in OptimizerConfig.model_fields:
        if key not in OF_RATE and getattr(optimizer, key) != getattr(usual, key):
            yield f"optimizer.{key} means nothing to {family}, whose vectors move by the gradient alone; remove it."
