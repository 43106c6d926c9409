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
PLAIN_IN_SENTENCES = frozenset({"given", "kept", "least", "most"})
"""Rejected words of names that are plain English in a sentence."""
REPORTS = re.compile(r"(Error|Unreadable|UnreadableRecord|Finding|fault|_broken|warning|_?refuse\w*|_?require\w*)$")
"""Names of classes and functions that are called with a message."""
REASONS = frozenset({"reason", "remedy", "absence"})
"""Keyword arguments and class variables that hold a part of a message."""


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


def rejected_phrases() -> frozenset[str]:
    """Phrases that no docstring and no page may contain."""
    return _first_column("phrase")


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


def messages(tree: ast.AST) -> Iterator[str]:
    """Messages of a module, with `X` for inserted values: arguments of errors and reports, reasons, and strings that a
    generator of messages yields."""
    for node in ast.walk(tree):
        parts: list[ast.expr] = []
        match node:
            case ast.Call(func=ast.Name(id=name) | ast.Attribute(attr=name)):
                if REPORTS.search(name):
                    parts = [*node.args, *(keyword.value for keyword in node.keywords)]
                else:
                    parts = [keyword.value for keyword in node.keywords if keyword.arg in REASONS]
            case ast.FunctionDef(returns=ast.expr() as returns) if "Iterator[str]" in ast.unparse(returns):
                parts = [child.value for child in ast.walk(node) if isinstance(child, ast.Yield) and child.value]
            case ast.Assign(targets=[ast.Name(id=name)], value=value) if name in REASONS:
                parts = [value]
            case ast.AnnAssign(target=ast.Name(id=name), value=ast.expr() as value) if name in REASONS:
                parts = [value]
        yield from (text for part in parts if " " in (text := _literal(part)))


def _literal(node: ast.expr) -> str:
    match node:
        case ast.Constant(value=str(text)):
            return text
        case ast.JoinedStr(values=values):
            return "".join(_literal(value) if isinstance(value, ast.Constant) else "X" for value in values)
        case ast.BinOp(left=left, right=right):
            return _literal(left) + _literal(right)
        case ast.IfExp(body=body, orelse=orelse):
            return f"{_literal(body)} {_literal(orelse)}"
    return ""


def rejected_in_message(text: str) -> set[str]:
    """Words of a message that no identifier may have and that are not plain English in a sentence."""
    return {*re.findall(r"[a-z]+", text)} & (rejected_words() - PLAIN_IN_SENTENCES)


def messages_with_rejected_words() -> list[str]:
    """`FILE: MESSAGE` of the package and the data pipeline, for messages with a rejected word."""
    results = []
    for file in subprocess.check_output(["git", "ls-files", "megaptm", "data_pipeline"], cwd=ROOT, text=True).split():
        if file.endswith(".py") and (path := ROOT / file).exists():
            for text in messages(ast.parse(path.read_text(encoding="utf-8"))):
                if rejected_in_message(text):
                    results.append(f"{file}: {text}")
    return results


def texts_with_rejected_phrases() -> list[str]:
    """`FILE: PHRASE` of docstrings and pages with a rejected phrase."""
    pattern = re.compile("|".join(sorted(rejected_phrases())), re.IGNORECASE)
    results = []
    for file in subprocess.check_output(["git", "ls-files", "*.md", "*.py"], cwd=ROOT, text=True).split():
        if (path := ROOT / file).exists() and path != GLOSSARY:
            text = path.read_text(encoding="utf-8")
            parts = docstrings(ast.parse(text)) if file.endswith(".py") else [text]
            results += [f"{file}: {match[0]}" for part in parts if (match := pattern.search(" ".join(part.split())))]
    return results


def violations() -> dict[str, int]:
    """Room (folder of the second level, or file) -> rejected identifiers and fragments of docstrings."""
    words, names = rejected_words(), rejected_names()
    counts: Counter[str] = Counter()
    for file in subprocess.check_output(["git", "ls-files", "*.py"], cwd=ROOT, text=True).split():
        if not (path := ROOT / file).exists():
            continue
        tree = ast.parse(path.read_text(encoding="utf-8"))
        counts["/".join(file.split("/")[:2])] += sum(
            name in names or not words.isdisjoint(words_of(name)) for name in (path.stem, *identifiers(tree))
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
