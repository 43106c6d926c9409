"""Hooks of configs: rules of the sections that extensions define."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from megaptm.config.schema import Config, ModelConfig
from megaptm.families import contributions

ModelErrors = Callable[[ModelConfig], Iterator[str]]
"""Function that yields the broken rules of a model by itself."""


class ConfigHook:
    """Base class of hooks of a config, whose methods change nothing. A module `rules.py` has an instance,
    `CONFIG_HOOK`.

    Methods get the whole config, and do nothing if it does not have the extension's section.
    """

    def completed(self, config: Config) -> Config:
        """Return the config with absent values filled in, before the rules are checked."""
        return config

    def errors(self, config: Config, model_errors: ModelErrors) -> Iterator[str]:
        """Yield broken rules. The names in section `model` are known."""
        yield from ()

    def resolved(self, config: Config) -> Config:
        """Return a config without errors, with all sizes filled in."""
        return config


def config_hooks() -> list[ConfigHook]:
    """Return the hooks of all extensions."""
    return [*contributions("rules", "CONFIG_HOOK")]
