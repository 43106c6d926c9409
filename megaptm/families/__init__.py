"""The catalogue of families. Each family is a folder of this package with everything that its paper brought.

Only other families import such a folder by name. Its modules are found by their names: docs/architecture.md lists them.
A user's package has the same modules, and an entry point.
"""

from collections.abc import Callable, Iterator
from importlib import import_module
from itertools import chain
from typing import Any

from megaptm.errors import UserError
from megaptm.families.own import refuse_invalid_family
from megaptm.families.registry import FOLDERS, Registry, contributions
from megaptm.plugins import is_plugin, load_plugin, registered_attributes
from megaptm.spec import Family, LayerlessFamily

__all__ = [
    "CATALOGUE",
    "FAMILIES",
    "FOLDERS",
    "LAYERLESS",
    "RECURRENT",
    "VISION",
    "Registry",
    "contributions",
    "find_family",
]


_BUILT_IN: tuple[Family | LayerlessFamily, ...] = tuple(
    table for folder in FOLDERS for table in import_module(f"megaptm.families.{folder}").FAMILIES
)


def _of_packages() -> Iterator[Family | LayerlessFamily]:
    """Yield the tables of users' packages, checked."""
    for table in chain.from_iterable(registered_attributes("", "FAMILIES")):
        if not isinstance(table, Family | LayerlessFamily):
            raise UserError(f"FAMILIES of a package has {table!r}, which is not a `megaptm.spec.Family`: remove it.")
        refuse_invalid_family(table, table.name)
        yield table


def _is_recurrent(table: Family | LayerlessFamily) -> bool:
    return isinstance(table, Family) and table.layer is not None


def _reads_more_than_text(table: Family | LayerlessFamily) -> bool:
    return isinstance(table, Family) and table.layer is None and any(record.fields for record in table.inputs)


def _is_text_transformer(table: Family | LayerlessFamily) -> bool:
    return isinstance(table, Family) and not _is_recurrent(table) and not _reads_more_than_text(table)


def _is_layerless(table: Family | LayerlessFamily) -> bool:
    return isinstance(table, LayerlessFamily)


def _registry(*kinds: Callable[[Family | LayerlessFamily], bool]) -> Registry[Any]:
    """Return the families of these kinds, one kind after the other."""
    return Registry(
        {table.name: table for is_kind in kinds for table in _BUILT_IN if is_kind(table)},
        lambda: ((table.name, table) for is_kind in kinds for table in _of_packages() if is_kind(table)),
    )


CATALOGUE: Registry[Family] = _registry(_is_text_transformer)
"""Families of transformers that read text only."""
RECURRENT: Registry[Family] = _registry(_is_recurrent)
"""Families with recurrent layers; they are trained with data parallelism only."""
VISION: Registry[Family] = _registry(_reads_more_than_text)
"""Families of transformers with inputs besides a text."""
LAYERLESS: Registry[LayerlessFamily] = _registry(_is_layerless)
"""Families whose models have no layers."""
FAMILIES: Registry[Family | LayerlessFamily] = _registry(
    _is_text_transformer, _is_recurrent, _reads_more_than_text, _is_layerless
)
"""All families, in the order in which they are listed."""


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
