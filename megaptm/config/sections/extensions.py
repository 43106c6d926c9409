"""Sections that extensions add to a config."""

from __future__ import annotations

from typing import Any, TypeVar

from pydantic import Field, create_model

from megaptm.errors import UserError
from megaptm.families import contributions
from megaptm.section import ExtensionSection, Section

Schema = TypeVar("Schema", bound=type[Section])


def extension_sections() -> dict[str, type[ExtensionSection]]:
    """Return the config sections that extensions add: key -> class. A module `section.py` has `SECTION`, a class with
    its key."""
    sections: dict[str, type[ExtensionSection]] = {}
    for section in contributions("section", "SECTION"):
        if (other := sections.setdefault(section.key, section)) is not section:
            raise UserError(
                f"{section.key} is a section of both {other.__module__}.{other.__qualname__} and "
                f"{section.__module__}.{section.__qualname__}: rename one."
            )
    return sections


def used_sections(config: Any) -> list[ExtensionSection]:
    """Return the sections of extensions that a config has."""
    # A search of layouts asks several thousand times: the fields are at hand, modules are not.
    return [value for _, value in config if isinstance(value, ExtensionSection)]


def with_extension_sections(schema: Schema) -> Schema:
    """Return the class of a config with a key for each of these sections of extensions; absent by default."""
    base: type[Section] = schema
    if taken := sorted(extension_sections().keys() & base.model_fields.keys()):
        section = extension_sections()[taken[0]]
        raise UserError(
            f"{taken[0]} is a section of configs, and of {section.__module__}.{section.__qualname__}: rename that one."
        )
    fields = {
        key: (section | None, Field(None, description=section.meaning)) for key, section in extension_sections().items()
    }
    return create_model(  # type: ignore[call-overload,no-any-return]
        schema.__name__, __base__=schema, __module__=schema.__module__, __doc__=schema.__doc__, **fields
    )
