"""Rules for recurrent families and for models of words and characters. Each rule gives one message with its key."""

from __future__ import annotations

from collections.abc import Iterator

from megaptm.batch import LONGEST_WORD
from megaptm.config.schema import Layout, ModelConfig
from megaptm.spec import ModelSpec

OF_ATTENTION: dict[str, object] = {
    "head_width": None,
    "kv_heads": None,
    "band": None,
    "cutoffs": (),
    "division": 1,
    "share": (),
    "attention_dropout": True,
}
"""Key that recurrent layers do not use -> value in a saved config."""


def recurrent_layout(layout: Layout, name: str) -> Iterator[str]:
    """Yield errors of layouts other than data parallelism. The state passes from position to position, so ranks that
    divide the sequence, a cell or the layers would wait for each other at each word."""
    for key in ("tensor", "pipeline", "virtual"):
        if (number := getattr(layout, key)) > 1:
            yield f"layout.{key} ({number}) must be 1: {name} is recurrent, and data ranks alone divide it."
    if layout.sequence_parallel:
        yield f"layout.sequence_parallel must be off: {name} is recurrent, and reads a row place after place."
    if layout.recompute != "none":
        yield f"layout.recompute ({layout.recompute}) must be none: {name} is recurrent, and nothing is computed again."


def recurrent_shape(model: ModelConfig, spec: ModelSpec) -> Iterator[str]:
    """Yield errors of unused keys and impossible values."""
    family, size = spec.family, spec.size
    for key, nothing in OF_ATTENTION.items() if family.is_recurrent else ():
        if getattr(model, key) not in (None, nothing):
            yield f"model.{key} means nothing to {family.name}, which is recurrent; remove it."
    for key in ("embedding", "stacks") if family.reads_characters else ():
        if getattr(model, key):
            yield f"model.{key} means nothing to {family.name}, which is of one width throughout; remove it."
    if family.reads_characters and not size.filters:
        yield f"model.size custom of {family.name} needs model.filters, such as [[1, 32], [2, 32], [3, 64]]."
    if (widest := max((characters for characters, _ in size.filters), default=0)) > LONGEST_WORD:
        yield f"model.filters has one that reads {widest} characters, and words have {LONGEST_WORD} here; narrow it."
    if family.is_recurrent and size.remembered and not family.reads_characters:
        yield f"model.memory ({size.remembered}) means nothing to {family.name}: texts are read apart; remove it."
    elif family.is_recurrent and size.remembered > 1:
        yield f"model.memory ({size.remembered}) must be 0 or 1: {family.name} is recurrent, and remembers a state."
    if family.is_recurrent and size.heads > 1:
        yield f"model.heads ({size.heads}) must be 1: {family.name} is recurrent, and has none."
