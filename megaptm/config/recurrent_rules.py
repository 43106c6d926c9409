"""Rules for recurrent families and for models of words and characters. Each rule gives one message with its key."""

from __future__ import annotations

from collections.abc import Iterator

from megaptm.batch import MAX_WORD_LENGTH
from megaptm.config.schema import Layout
from megaptm.spec import ModelSpec


def recurrent_layout_errors(layout: Layout, name: str) -> Iterator[str]:
    """Yield errors of layouts other than data parallelism. The state passes from position to position, so ranks that
    divide the sequence, a cell or the layers would wait for each other at each word."""
    for key in ("tensor", "pipeline", "virtual"):
        if (number := getattr(layout, key)) > 1:
            yield f"layout.{key} ({number}) must be 1: {name} is recurrent, and supports only data parallelism."
    if layout.sequence_parallel:
        yield f"layout.sequence_parallel must be false: {name} is recurrent, and reads a sequence position by position."
    if layout.recompute != "none":
        yield (
            f"layout.recompute ({layout.recompute}) must be none: {name} is recurrent, and does not support "
            "recomputation."
        )


def recurrent_model_errors(spec: ModelSpec) -> Iterator[str]:
    """Yield errors of impossible values."""
    family, size = spec.family, spec.size
    if family.reads_characters and not size.filters:
        yield f"model.size custom of {family.name} needs model.filters, such as [[1, 32], [2, 32], [3, 64]]."
    if (widest := max((characters for characters, _ in size.filters), default=0)) > MAX_WORD_LENGTH:
        yield f"model.filters has a filter of {widest} characters, and words have at most {MAX_WORD_LENGTH}: narrow it."
    if family.is_recurrent and family.reads_characters and size.cached_positions > 1:
        yield f"model.memory ({size.cached_positions}) must be 0 or 1: {family.name} is recurrent, and keeps one state."
    if family.is_recurrent and size.heads > 1:
        yield f"model.heads ({size.heads}) must be 1: {family.name} is recurrent, without attention heads."
