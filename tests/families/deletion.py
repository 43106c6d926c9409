"""Copies of the project without some families or extensions."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

from megaptm.families import FOLDERS
from megaptm.plugins import EXTENSIONS
from tests import ROOT

NAME = re.compile(r"megaptm\.families\.([a-z0-9_]+)")


def bases(folder: str) -> set[str]:
    """Return the families that the folder of a family imports."""
    files = (ROOT / "megaptm/families" / folder).rglob("*.py")
    return {name for file in files for name in NAME.findall(file.read_text(encoding="utf-8"))} & {*FOLDERS} - {folder}


def dependents(folder: str) -> set[str]:
    """Return the families that import a family, directly or through others."""
    importers: set[str] = set()
    while more := {name for name in FOLDERS if bases(name) & {folder, *importers}} - importers:
        importers |= more
    return importers


def copy_without(folders: set[str], target: Path) -> Path:
    """Copy both packages to `target`, without the folders of these families and their lines in the registry."""
    copy = _copy_folder("megaptm", target)
    _copy_folder("data_pipeline", target)
    for name in ("configs", "slurm"):  # links of the package lead here
        (target / name).symlink_to(ROOT / name)
    registry = copy / "families/registry.py"
    lines = registry.read_text(encoding="utf-8").splitlines(keepends=True)
    registry.write_text("".join(line for line in lines if line.strip().strip('",') not in folders), encoding="utf-8")
    for folder in folders:
        shutil.rmtree(copy / "families" / folder)
    return target


def copy_without_extensions(target: Path) -> Path:
    """Copy the package to `target`, without the folders of extensions and their list."""
    copy_without(set(), target)
    for name in EXTENSIONS:
        shutil.rmtree(target / name.replace(".", "/"))
    listing = target / "megaptm/plugins.py"
    listing.write_text(
        re.sub(r"(?m)^EXTENSIONS = .*$", "EXTENSIONS: tuple[str, ...] = ()", listing.read_text(encoding="utf-8")),
        encoding="utf-8",
    )
    return target


def add_tests(target: Path) -> None:
    """Add what the tests need to a copy. Tests refer to the checkout that they are in, so they are no link."""
    for name in ("tests", "benchmarks"):
        _copy_folder(name, target)
    for path in ROOT.iterdir():
        if not path.name.startswith(".") and not (target / path.name).exists():
            (target / path.name).symlink_to(path)


def _copy_folder(name: str, target: Path) -> Path:
    return shutil.copytree(
        ROOT / name, target / name, symlinks=True, ignore=shutil.ignore_patterns("__pycache__", ".mypy_cache")
    )
