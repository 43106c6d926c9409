"""Base class and types of config sections."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any, ClassVar

from pydantic import BaseModel, ConfigDict, Field

Count = Annotated[int, Field(ge=1)]
Fraction = Annotated[float, Field(ge=0.0, lt=1.0)]


class Section(BaseModel):
    """Frozen section that rejects unknown keys; `config.errors` words the messages."""

    model_config = ConfigDict(
        frozen=True, extra="forbid", strict=True, allow_inf_nan=False, use_attribute_docstrings=True
    )


class ExtensionSection(Section):
    """Section of a config that an extension defines. Methods are called for configs that have it."""

    key: ClassVar[str]
    """Key of the section in a config."""
    meaning: ClassVar[str]
    """Description of the section."""
    replaced: ClassVar[tuple[str, ...]] = ()
    """Keys of the section whose value replaces that of an extended config as a unit, instead of being merged."""
    moved: ClassVar[tuple[str, ...]] = ()
    """Keys of the section with paths that may change when a run is continued; the content is compared by a hash."""

    def with_filled_values(self, config: Any) -> Any:
        """Return the config with absent values of the section filled in, before the rules are checked."""
        return config

    def errors(self, config: Any) -> Iterator[str]:
        """Yield an error for each broken rule of the section. Only called if family and size in section `model` are
        valid names."""
        yield from ()

    def with_resolved_sizes(self, config: Any) -> Any:
        """Return a config without errors, with all sizes in the section filled in."""
        return config

    def run_hook(self) -> Any:
        """Return a `run.hooks.RunHook`, or None."""
        return None

    def extra_costs(self, config: Any) -> Any:
        """Return the costs that it adds to plans, a `plan.extra_costs.ExtraCosts`, or None."""
        return None

    def build_hook(self, config: Any, rank_env: Any) -> Any:
        """Return a `parallel.hooks.EngineHook`, or None. All ranks call this, with their `run.rank.RankEnvironment`."""
        return None
