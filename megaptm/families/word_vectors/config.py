"""Keys of the section `model` for word vectors."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field, Strict

from megaptm.section import Count, Section


class WordKeys(Section):
    """Keys of n-gram tables and of networks in the section `model`."""

    buckets: Annotated[int, Field(ge=1, le=10**9)] | None = None
    """fastText: rows of the table for hashed n-grams of characters. Default: from `size`."""
    ngrams: Annotated[tuple[Count, Count], Strict(False)] | None = None
    """fastText: minimum and maximum characters of an n-gram. Default: from `size`."""
    hidden: Annotated[int, Field(ge=0)] | None = None
    """NNLM and C&W: hidden units between the vectors of a window and the output. Default: from `size`."""
    before: Count | None = None
    """NNLM and C&W: words of the window before the predicted one. Default: from `size`."""
    after: Annotated[int, Field(ge=0)] | None = None
    """C&W: words of the window after the predicted one. Default: from `size`."""
    direct: bool | None = None
    """NNLM: add direct connections from the vectors to the output. Default: from `size`."""


MODEL_KEYS = WordKeys
