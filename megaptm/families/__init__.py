"""The catalogue of families. Each family is a folder of this package with everything that its paper brought.

Only other families import such a folder by name. Its modules are found by their names: docs/architecture.md lists them.
"""

from importlib import import_module

from megaptm.errors import UserError
from megaptm.families.own import refuse_invalid_family
from megaptm.families.registry import FOLDERS, Registry, contributions
from megaptm.plugins import is_plugin, load_plugin
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

_ALL: tuple[Family | LayerlessFamily, ...] = tuple(
    table for folder in FOLDERS for table in import_module(f"megaptm.families.{folder}").FAMILIES
)
_TABLES = [table for table in _ALL if isinstance(table, Family)]
RECURRENT: dict[str, Family] = {table.name: table for table in _TABLES if table.layer is not None}
"""Families with recurrent layers; they are trained with data parallelism only."""
VISION: dict[str, Family] = {
    table.name: table
    for table in _TABLES
    if table.name not in RECURRENT and any(record.fields for record in table.inputs)
}
"""Families of transformers with inputs besides a text."""
CATALOGUE: dict[str, Family] = {table.name: table for table in _TABLES if table.name not in RECURRENT | VISION}
"""Families of transformers that read text only."""
LAYERLESS: dict[str, LayerlessFamily] = {table.name: table for table in _ALL if isinstance(table, LayerlessFamily)}
"""Families whose models have no layers."""
FAMILIES: dict[str, Family | LayerlessFamily] = {**CATALOGUE, **RECURRENT, **VISION, **LAYERLESS}
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
