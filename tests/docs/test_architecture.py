"""Pages name only existing modules, functions, config keys and files."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path
from typing import get_args

import pytest

from megaptm.config import Config
from tests import ROOT
from tests.test_imports import MAY_IMPORT, PIPELINE_MAY_IMPORT

PAGES = sorted((ROOT / "docs").glob("*.md"))
PARTS = {path.stem for path in (ROOT / "megaptm").iterdir() if path.name[0] not in "_."}
TOP = {path.name for path in ROOT.iterdir()} - {"build"}  # where commands write


def spans(page: Path) -> set[str]:
    """Return the text between single backticks, outside of fenced blocks."""
    text = re.sub(r"^```.*?^```$", "", page.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
    return {span.removesuffix("()") for span in re.findall(r"`([^`\n]+)`", text)}


@cache
def module(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


def members(body: list[ast.stmt]) -> dict[str, ast.stmt]:
    """Return the names that a module or class defines, with the defining statements."""
    names: dict[str, ast.stmt] = {}
    for statement in body:
        if isinstance(statement, ast.FunctionDef | ast.ClassDef):
            names[statement.name] = statement
            if statement.name == "__init__":
                names |= {
                    node.attr: statement
                    for node in ast.walk(statement)
                    if isinstance(node, ast.Attribute) and ast.unparse(node.value) == "self"
                }
        elif isinstance(statement, ast.Assign):
            names |= {target.id: statement for target in statement.targets if isinstance(target, ast.Name)}
        elif isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name):
            names[statement.target.id] = statement
        elif isinstance(statement, ast.ImportFrom):
            names |= {alias.asname or alias.name: statement for alias in statement.names}
    return names


def is_code(name: str) -> bool:
    """Return whether code such as `layers.stack.Stack.forward` exists, under megaptm or the root."""
    words = name.removeprefix("megaptm.").split(".")
    folder = ROOT if words[0] in TOP else ROOT / "megaptm"
    while words and (folder / words[0]).is_dir():
        folder /= words.pop(0)
    is_module = words and (folder / f"{words[0]}.py").is_file()
    file = folder / (f"{words.pop(0)}.py" if is_module else "__init__.py")
    if not file.is_file():
        return False
    body = module(file).body
    for word in words:
        definition = members(body).get(word)
        if definition is None:
            return False
        body = getattr(definition, "body", [])
    return True


def is_config_key(name: str) -> bool:
    section: object = Config
    for key in name.split("."):
        sections = [section, *get_args(section)]  # an optional section is one of several types
        fields = [own.model_fields[key] for own in sections if key in getattr(own, "model_fields", {})]
        if not fields:
            return False
        section = fields[0].annotation
    return True


@cache
def classes() -> dict[str, set[str]]:
    """Return class -> its members, for all classes of the package."""
    return {
        node.name: set(members(node.body))
        for path in (ROOT / "megaptm").rglob("*.py")
        for node in ast.walk(module(path))
        if isinstance(node, ast.ClassDef)
    }


def is_path(name: str) -> bool:
    return any((folder / name).exists() for folder in (ROOT, ROOT / "megaptm"))


def is_missing(name: str) -> bool:
    """Return whether a name refers to this repository and does not exist."""
    if re.fullmatch(r"[\w.-]+(/[\w.-]*)+", name) and name.split("/")[0] in TOP | PARTS:
        return not is_path(name)
    if not re.fullmatch(r"[A-Za-z_]\w*(\.\w+)+", name):
        return False
    first, second, *_ = name.split(".")
    if first in PARTS | {"megaptm", "data_pipeline", "tests"} and not name.endswith(".py"):
        return not (is_code(name) or is_config_key(name))
    return first in classes() and second not in classes()[first]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_named_code_exists(page):
    assert [name for name in sorted(spans(page)) if is_missing(name)] == []


@pytest.mark.parametrize(
    "name",
    ["layers.layer.Pile", "parallel.engine.Engine.leap", "data.sequences", "Stack.aroun", "tests/parity/test_none.py"],
)
def test_missing_name_is_reported(name):
    assert is_missing(name)


def test_table_of_imports_is_the_enforced_one():
    page = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| `(\w+)` \| ?(.*) ?\|$", page, re.MULTILINE)
    assert {package: tuple(re.findall(r"\w+", cell)) for package, cell in rows} == MAY_IMPORT
    [pipeline_imports] = re.findall(r"`data_pipeline` imports (.*?)\.", page, re.DOTALL)
    assert tuple(re.findall(r"`(\w+)`", pipeline_imports)) == PIPELINE_MAY_IMPORT


def test_tree_names_every_package():
    _, _, section = (ROOT / "docs/architecture.md").read_text(encoding="utf-8").partition("## The tree\n")
    tree = "\n".join(line for line in section.partition("\n|")[0].splitlines() if line.startswith("    "))
    assert [package for package in MAY_IMPORT if not re.search(rf"\b{package}(/|\.py)", tree)] == []
