"""Config rules of character-based word embeddings."""

from __future__ import annotations

from collections.abc import Collection, Iterator

from megaptm.config.family_rules import FamilyRules
from megaptm.families.elmo.spec import CharacterInput, character_sizes
from megaptm.families.elmo.spelling import MAX_WORD_LENGTH
from megaptm.spec import ModelSpec


class CharacterRules(FamilyRules):
    """Rules of the convolutions over characters."""

    def unused_keys(self, spec: ModelSpec) -> Iterator[tuple[Collection[str], str]]:
        if spec.family.find_input(CharacterInput) is None:
            yield CharacterInput.size_keys, "reads token ids, not characters"
        else:
            yield ("embedding", "stacks"), "has one width throughout"

    def model_errors(self, spec: ModelSpec) -> Iterator[str]:
        family, filters = spec.family, character_sizes(spec.size).filters
        if family.find_input(CharacterInput) is None:
            return
        if not filters:
            yield f"model.size custom of {family.name} needs model.filters, such as [[1, 32], [2, 32], [3, 64]]."
        if (widest := max((characters for characters, _ in filters), default=0)) > MAX_WORD_LENGTH:
            yield (
                f"model.filters has a filter of {widest} characters, and words have at most {MAX_WORD_LENGTH}: narrow "
                "it."
            )


RULES = CharacterRules()
