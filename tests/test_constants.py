"""A module binds each constant once."""

import ast
from pathlib import Path

from tests import ROOT


def bound(path: Path) -> list[str]:
    """Return the upper-case names that a module binds at its top level."""
    names = []
    for statement in ast.parse(path.read_text(encoding="utf-8")).body:
        targets = statement.targets if isinstance(statement, ast.Assign) else []
        targets += [statement.target] if isinstance(statement, ast.AnnAssign) else []
        names += [target.id for target in targets if isinstance(target, ast.Name) and target.id.isupper()]
    return names


def test_constants_are_bound_once():
    modules = {
        str(path): bound(path) for package in ("megaptm", "data_pipeline") for path in (ROOT / package).rglob("*.py")
    }
    assert len(modules) > 100
    assert {f"{path}: {name}" for path, names in modules.items() for name in names if names.count(name) > 1} == set()
