"""tests/tiers.yaml lists existing tests, of each package, and its first part names no family but three."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from megaptm.families import FOLDERS
from tests import ROOT
from tests.tiers import CORE_FAMILIES, PARTS, contains, quick_tests, read_tiers, with_seconds

PACKAGES = sorted(
    f"{package}.{folder.parent.name}"
    for package in ("megaptm", "data_pipeline")
    for folder in ROOT.glob(f"{package}/*/__init__.py")
)
MAX_CPU_SECONDS = 110


def test_parts_are_known() -> None:
    assert tuple(read_tiers()) == PARTS


@pytest.mark.parametrize("entry", quick_tests())
def test_listed_test_exists(entry: str) -> None:
    path, _, test = entry.partition("::")
    assert (ROOT / path).exists()
    assert not test or test.partition("[")[0] in functions_of(ROOT / path)


@pytest.mark.parametrize("package", PACKAGES)
def test_package_has_a_quick_test(package: str) -> None:
    assert any(package in path.read_text(encoding="utf-8") for path in quick_files())


def test_quick_tests_stay_cheap() -> None:
    """Imports and collection of two workers take the rest of the 180 CPU seconds."""
    seconds = [took for entries in read_tiers().values() for took in entries.values()]
    assert sum(took for took in seconds if took is not None) < MAX_CPU_SECONDS


def test_entry_contains_its_tests() -> None:
    assert contains("tests/a", "tests/a/test_b.py::test_c")
    assert contains("tests/a/test_b.py", "tests/a/test_b.py::test_c")
    assert contains("tests/a/test_b.py::test_c", "tests/a/test_b.py::test_c[1]")
    assert not contains("tests/a/test_b.py::test_c", "tests/a/test_b.py::test_cd")


def test_seconds_of_an_entry_are_summed() -> None:
    measured = {"tests/a.py::test_b": 1.0, "tests/a.py::test_c": 0.5, "tests/d.py::test_e": 4.0}
    assert with_seconds({"core": {"tests/a.py": None}}, measured) == {"core": {"tests/a.py": 1.5}}


def quick_files(*parts: str) -> list[Path]:
    paths = {ROOT / entry.partition("::")[0] for entry in quick_tests(*parts)}
    return sorted(file for path in paths for file in (path.rglob("test_*.py") if path.is_dir() else (path,)))


def test_core_part_imports_no_other_families() -> None:
    """tests/families/test_deletion.py runs it without them."""
    families = {
        f"{path.relative_to(ROOT)}: {name}"
        for path in quick_files("core")
        for name in re.findall(r"megaptm\.families\.(\w+)", path.read_text(encoding="utf-8"))
        if name in FOLDERS and name not in CORE_FAMILIES
    }
    assert families == set()


def functions_of(path: Path) -> set[str]:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    return {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}
