"""The catalogue of families. Each family is a folder of this package with everything that its paper introduced.

Only other families import such a folder by name. Its modules are found by their names: docs/architecture.md lists them.
A user's package has the same modules, and an entry point.
"""

from collections.abc import Iterator
from enum import IntEnum
from importlib import import_module
from itertools import chain
from typing import Any

from megaptm.errors import UserError
from megaptm.families.own import refuse_invalid_family
from megaptm.families.registry import FOLDERS, Registry, contributions
from megaptm.plugins import is_plugin, load_plugin, registered_attributes
from megaptm.spec import Family, LayerlessFamily, can_change_direction, with_direction

__all__ = [
    "CATALOGUE",
    "FAMILIES",
    "FOLDERS",
    "LAYERLESS",
    "Registry",
    "contributions",
    "find_family",
    "find_family_with_direction",
]


_BUILT_IN: tuple[Family | LayerlessFamily, ...] = tuple(
    table for folder in FOLDERS for table in import_module(f"megaptm.families.{folder}").FAMILIES
)


def _package_families() -> Iterator[Family | LayerlessFamily]:
    """Yield the families of users' packages, after checking them."""
    for table in chain.from_iterable(registered_attributes("", "FAMILIES")):
        if not isinstance(table, Family | LayerlessFamily):
            raise UserError(f"FAMILIES of a package has {table!r}, which is not a `megaptm.spec.Family`: remove it.")
        refuse_invalid_family(table, table.name)
        yield table


class _Group(IntEnum):
    """Group of families, in the order in which families are listed."""

    TEXT = 0
    """Group of transformers that read text only."""
    OTHER_LAYERS = 1
    OTHER_INPUTS = 2
    LAYERLESS = 3


def _group_of(table: Family | LayerlessFamily) -> _Group:
    if isinstance(table, LayerlessFamily):
        return _Group.LAYERLESS
    if table.layer is not None:
        return _Group.OTHER_LAYERS
    return _Group.OTHER_INPUTS if any(record.fields for record in table.inputs) else _Group.TEXT


def _registered_families(*groups: _Group) -> Registry[Any]:
    """Return the families of these groups by name, one group after the other."""
    return Registry(
        {table.name: table for group in groups for table in _BUILT_IN if _group_of(table) is group},
        lambda: ((table.name, table) for group in groups for table in _package_families() if _group_of(table) is group),
    )


CATALOGUE: Registry[Family] = _registered_families(_Group.TEXT)
"""Families of transformers that read text only."""
LAYERLESS: Registry[LayerlessFamily] = _registered_families(_Group.LAYERLESS)
"""Families whose models have no layers."""
FAMILIES: Registry[Family | LayerlessFamily] = _registered_families(*_Group)
"""All families, in the order in which they are listed."""


def find_family_with_direction(name: str, *, causal: object) -> Family | LayerlessFamily | None:
    """Return a family as `find_family` does, with attention to one side (`causal`) or both, if it is true or false and
    the family can have it."""
    family = find_family(name)
    if isinstance(causal, bool) and isinstance(family, Family) and can_change_direction(family):
        return with_direction(family, causal=causal)
    return family


def find_family(name: str) -> Family | LayerlessFamily | None:
    """Return a built-in family, or the user's own, `package.module:NAME`; None if the name is unknown.

    Raises UserError if the user's own family cannot be loaded.
    """
    if not is_plugin(name):
        return FAMILIES.get(name)
    family = load_plugin(name, "model.family", "family")
    if not isinstance(family, Family | LayerlessFamily):
        raise UserError(f"model.family: `{name}` is not a `megaptm.spec.Family`: correct the name.")
    refuse_invalid_family(family, name)
    return family
