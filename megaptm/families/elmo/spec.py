"""Options of character-based word embeddings (ELMo)."""

from __future__ import annotations

from dataclasses import dataclass

from megaptm.spec import InputSpec


@dataclass(frozen=True, kw_only=True)
class CharacterInput(InputSpec):
    """Words embedded from their characters (arXiv:1508.06615)."""

    name = "token"
    costs = "megaptm.bricks.characters:CharacterBrick"
    module = "megaptm.models.characters:CharacterWords"
    fields = ("characters",)
    replaces_tokens = True
    zero_first = ("characters.weight",)
