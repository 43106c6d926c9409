"""Rejected names of `docs/glossary.md`, and where the project's code still has them."""

from __future__ import annotations

import ast
import re
import subprocess
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import yaml

from tests import ROOT

GLOSSARY = ROOT / "docs/glossary.md"
REMAINING = Path(__file__).with_name("remaining.yaml")
FRAGMENT = re.compile(r"(What|Of|Those|That|As|By|Whose|Where|Who|Both|And|So|Not|Once)\b")
"""First words that make a docstring a fragment."""


def rejected_words() -> frozenset[str]:
    """Words that no identifier may contain."""
    return _first_column("word")


def rejected_names() -> frozenset[str]:
    """Names that are rejected only as whole identifiers."""
    return _first_column("name")


def _first_column(header: str) -> frozenset[str]:
    rows = GLOSSARY.read_text(encoding="utf-8").partition(f"| {header} | instead |\n|---|---|\n")[2]
    cells = (line.split("|")[1] for line in rows.partition("\n\n")[0].splitlines())
    return frozenset(word.strip() for cell in cells for word in cell.split(","))


def words_of(identifier: str) -> list[str]:
    """Lower-case words of a snake_case or CamelCase identifier."""
    return [word.lower() for word in re.findall(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])", identifier)]


def identifiers(tree: ast.AST) -> Iterator[str]:
    """Identifiers that a module defines: functions, classes, parameters, variables, attributes."""
    for node in ast.walk(tree):
        match node:
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
                yield name
            case ast.arg(arg=name):
                yield name
            case ast.Name(id=name, ctx=ast.Store()) | ast.Attribute(attr=name, ctx=ast.Store()):
                yield name


def docstrings(tree: ast.AST) -> Iterator[str]:
    """Docstrings of a module: of the module, classes, functions and fields."""
    for node in ast.walk(tree):
        match node:
            case ast.Expr(value=ast.Constant(value=str(text))):
                yield text.strip()


def violations() -> dict[str, int]:
    """Room (folder of the second level, or file) -> rejected identifiers and fragments of docstrings."""
    words, names = rejected_words(), rejected_names()
    counts: Counter[str] = Counter()
    for file in subprocess.check_output(["git", "ls-files", "*.py"], cwd=ROOT, text=True).split():
        if not (path := ROOT / file).exists():
            continue
        tree = ast.parse(path.read_text(encoding="utf-8"))
        counts["/".join(file.split("/")[:2])] += sum(
            name in names or not words.isdisjoint(words_of(name)) for name in identifiers(tree)
        ) + sum(bool(FRAGMENT.match(text)) for text in docstrings(tree))
    return {room: count for room, count in sorted(counts.items()) if count}


def remaining() -> dict[str, int]:
    """Room -> violations that are not mended yet. A room that is absent has none."""
    return yaml.safe_load(REMAINING.read_text(encoding="utf-8")) or {}


if __name__ == "__main__":
    REMAINING.write_text(
        "# Rejected names and fragments of docstrings that are still to be rewritten, by room (docs/glossary.md).\n"
        "# Numbers only fall: `python -m tests.style.vocabulary` writes this file after a room was rewritten.\n"
        + yaml.safe_dump(violations()),
        encoding="utf-8",
    )
