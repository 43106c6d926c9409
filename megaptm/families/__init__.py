"""The catalogue of families. Each family is a folder of this package with everything that its paper brought.

A folder's `__init__.py` has the tables, `FAMILIES`, and loads no torch. `huggingface.py`, if there is one, maps them to
`transformers` (`hub.counterparts`). Nothing outside the folder imports it by name, except other families.
"""

from importlib import import_module

from megaptm.errors import UserError
from megaptm.families.own import refuse_invalid_family
from megaptm.families.words import WORDS, WordFamily
from megaptm.plugins import is_plugin, load_plugin
from megaptm.spec import Family

FOLDERS = (
    "transformer",
    "gpt",
    "palm",
    "bert",
    "roberta",
    "albert",
    "spanbert",
    "macbert",
    "deberta",
    "electra",
    "ernie",
    "t5",
    "bart",
    "transformer_xl",
    "xlnet",
    "unilm",
    "distilbert",
    "longformer",
    "led",
    "bigbird",
    "reformer",
    "elmo",
    "cove",
    "vit",
    "clip",
    "uniter",
    "unimo",
)
"""Folders of families, in the order in which families are listed."""

_TABLES: tuple[Family, ...] = tuple(
    table for folder in FOLDERS for table in import_module(f"megaptm.families.{folder}").FAMILIES
)
RECURRENT: dict[str, Family] = {table.name: table for table in _TABLES if table.is_recurrent}
"""Families with recurrent layers; they are trained with data parallelism only."""
VISION: dict[str, Family] = {table.name: table for table in _TABLES if table.reads_images or table.reads_regions}
"""Families that read images."""
CATALOGUE: dict[str, Family] = {table.name: table for table in _TABLES if table.name not in RECURRENT | VISION}
"""Families of transformers that read text only."""
FAMILIES: dict[str, Family | WordFamily] = {**CATALOGUE, **RECURRENT, **VISION, **WORDS}
"""All families, in the order in which they are listed; word vectors have no layers."""


def find_family(name: str) -> Family | WordFamily | None:
    """Return a built-in family, or the user's own, `package.module:NAME`; None if the name is unknown.

    Raises UserError if the user's own family cannot be loaded.
    """
    if not is_plugin(name):
        return FAMILIES.get(name)
    found = load_plugin(name, "model.family", "family")
    if not isinstance(found, Family | WordFamily):
        raise UserError(f"model.family: `{name}` is not a `megaptm.spec.Family`: correct the name.")
    refuse_invalid_family(found, name)
    return found
