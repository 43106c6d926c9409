"""Config rules of the folders of families: `RULES` in their `rules.py`. Each rule gives one message with its key."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from functools import cache

from megaptm.config.schema import Config
from megaptm.families import contributions
from megaptm.spec import ModelSpec


class FamilyRules:
    """Rules of a folder, applied to every model with layers. A model without the folder's idea has no errors, but may
    have unused keys."""

    def unused_keys(self, spec: ModelSpec) -> Iterator[tuple[Collection[str], str]]:
        """Yield keys of the section `model` that the model does not use, and the reason: "reads no images"."""
        yield from ()

    def model_errors(self, spec: ModelSpec) -> Iterator[str]:
        """Yield errors of the section `model`."""
        yield from ()

    def config_errors(self, config: Config, spec: ModelSpec) -> Iterator[str]:
        """Yield errors of the whole config."""
        yield from ()


@cache
def family_rules() -> tuple[FamilyRules, ...]:
    """Return the rules of all folders."""
    return tuple(contributions("rules", "RULES"))
