"""Keys of the section `model` for character-based word embeddings."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field, Strict

from megaptm.section import Count, Section


class CharacterKeys(Section):
    """Keys of the section `model` for ELMo's convolutions over characters."""

    filters: Annotated[tuple[Annotated[tuple[Count, Count], Strict(False)], ...], Strict(False)] | None = None
    """Character convolutions: [characters, filters] of each. Default: from `size`."""
    highway: Annotated[int, Field(ge=0, le=1 << 10)] | None = None
    """Highway layers after the character convolutions. Default: from `size`."""
    character_width: Count | None = None
    """Width of a character's vector. Default: from `size`."""


MODEL_KEYS = CharacterKeys
