"""Heads, objectives, counterparts and commands that families add to the registries of the project.

The folders of this package are listed here. Packages of users are found by their entry points (`megaptm.plugins`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, MutableMapping
from typing import Any, TypeVar

from megaptm.errors import UserError
from megaptm.plugins import EXTENSIONS, package_attributes, registered_attributes

V = TypeVar("V")

FOLDERS = (
    "transformer",
    "gpt",
    "palm",
    "llama",
    "qwen3",
    "olmo2",
    "mistral",
    "gemma",
    "bert",
    "roberta",
    "albert",
    "spanbert",
    "macbert",
    "deberta",
    "electra",
    "ernie",
    "t5",
    "t5gemma",
    "bart",
    "transformer_xl",
    "xlnet",
    "unilm",
    "distilbert",
    "longformer",
    "led",
    "bigbird",
    "reformer",
    "modernbert",
    "eurobert",
    "neobert",
    "nomic_bert",
    "elmo",
    "cove",
    "vit",
    "clip",
    "uniter",
    "unimo",
    "infoword",
    "word_vectors",
)
"""Folders of built-in families, in the order in which families are listed."""


def contributions(module: str, name: str) -> Iterator[Any]:
    """Yield the attribute `name` of `families.FOLDER.module`, for each folder that has both; then of extensions and of
    packages of users."""
    yield from package_attributes((*(f"megaptm.families.{folder}" for folder in FOLDERS), *EXTENSIONS), module, name)
    yield from registered_attributes(module, name)


class Registry(MutableMapping[str, V]):
    """Entries by name: first entries of the core, then entries of families, which are loaded at the first look-up."""

    def __init__(self, core: Mapping[str, V], of_families: Callable[[], Iterable[tuple[str, V]]]) -> None:
        self._entries, self._of_families, self._complete = dict(core), of_families, False

    def __getitem__(self, name: str) -> V:
        # The core may use its own entries while the modules of families cannot be imported yet.
        return self._entries[name] if name in self._entries else self._all_entries()[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._all_entries())

    def __len__(self) -> int:
        return len(self._all_entries())

    def __setitem__(self, name: str, entry: V) -> None:
        """Add an entry. Raise `UserError` if another one has this name."""
        if (known := self._all_entries().setdefault(name, entry)) is not entry and _qualified_name(
            known
        ) != _qualified_name(entry):
            raise UserError(f"{name!r} is registered twice: rename one.")
        self._entries[name] = entry

    def __delitem__(self, name: str) -> None:
        del self._all_entries()[name]

    def _all_entries(self) -> dict[str, V]:
        if not self._complete:
            self._complete = True  # modules of families may look up entries of the core while they are loaded
            added: dict[str, V] = {}
            try:
                for name, entry in self._of_families():
                    if name in self._entries or name in added:
                        raise UserError(f"{name!r} is registered twice: rename one.")
                    added[name] = entry
            except BaseException:
                self._complete = False
                raise
            self._entries |= added
        return self._entries


def _qualified_name(entry: Any) -> tuple[str | None, str | None]:
    """Return module and name of a class or function. They stay the same when its module is imported again, which
    creates another object."""
    return getattr(entry, "__module__", None), getattr(entry, "__qualname__", None)
