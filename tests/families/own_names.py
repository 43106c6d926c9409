"""Names that only the folder of a family defines, and the files outside that use them."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from megaptm.families import FOLDERS
from tests import ROOT
from tests.families.core_words import texts
from tests.families.deletion import dependents

NAMING = ("kind", "name", "label_field", "fields", "label")
"""Class attributes whose strings name an idea: kinds of attention, heads, objectives, inputs, batch fields."""


REGISTRY = "megaptm/families/registry.py"
OTHER_MEANINGS = {"clip", "block_size", "in_float32", "image-text"}
"""Names with another meaning outside: gradient clipping, a key of other trainers, a local variable, a file format."""
TWO_WORDS = re.compile(r"[a-z0-9][A-Z]|\w[_-]\w")
"""A name of two words: single words, such as `random`, have other uses."""


@cache
def tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


@cache
def modules() -> tuple[Path, ...]:
    return (*(ROOT / "megaptm").rglob("*.py"), *(ROOT / "data_pipeline").rglob("*.py"))


@cache
def defined(path: Path) -> frozenset[str]:
    """Return the classes, functions, constants and fields that a module defines, and the strings that name an idea."""
    return frozenset(name for name in _defined(tree(path)) if TWO_WORDS.search(name))


def _defined(module: ast.Module) -> Iterator[str]:
    for node in ast.walk(module):
        match node:
            case ast.ClassDef(name=name) | ast.FunctionDef(name=name):
                yield name
            case ast.AnnAssign(target=ast.Name(id=name)):
                yield name
            case ast.Assign(targets=targets, value=value):
                names = {target.id for target in targets if isinstance(target, ast.Name)}
                yield from names
                if names & {*NAMING}:
                    yield from strings(value)
            case ast.keyword(arg=str(name), value=value) if name in NAMING:
                yield from strings(value)


@cache
def used_names(path: Path) -> frozenset[str]:
    """Return the identifiers and strings of a module."""
    return frozenset(texts(tree(path)))


def strings(value: ast.expr) -> Iterator[str]:
    yield from (
        node.value for node in ast.walk(value) if isinstance(node, ast.Constant) and isinstance(node.value, str)
    )


def folder_of(path: Path) -> str | None:
    """Return the folder of the family that a module belongs to."""
    parts = path.relative_to(ROOT).parts
    return parts[2] if parts[:2] == ("megaptm", "families") and parts[2] in FOLDERS else None


def users(folder: str) -> dict[str, set[str]]:
    """Return the files outside the folder of a family, and of those derived from it, that use names which only this
    folder defines, and these names."""
    inside = {folder, *dependents(folder)}
    outside = [path for path in modules() if folder_of(path) not in inside]
    own = frozenset().union(*(defined(path) for path in modules() if folder_of(path) == folder))
    own = own.difference(*(defined(path) for path in outside)) | {folder}
    used = {str(path.relative_to(ROOT)): own & used_names(path) for path in outside}
    other = {path: names - OTHER_MEANINGS if path != REGISTRY else names for path, names in used.items()}
    return {path: {*names} for path, names in other.items() if names}
