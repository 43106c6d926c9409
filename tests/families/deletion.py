"""Copies of the project without some families."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

from megaptm.families import FOLDERS
from tests import ROOT

NAME = re.compile(r"megaptm\.families\.([a-z0-9_]+)")


def bases(folder: str) -> set[str]:
    """Return the families that the folder of a family imports."""
    files = (ROOT / "megaptm/families" / folder).glob("*.py")
    return {name for file in files for name in NAME.findall(file.read_text(encoding="utf-8"))} & {*FOLDERS} - {folder}


def dependents(folder: str) -> set[str]:
    """Return the families that import a family, directly or through others."""
    importers: set[str] = set()
    while more := {name for name in FOLDERS if bases(name) & {folder, *importers}} - importers:
        importers |= more
    return importers


def copy_without(folders: set[str], target: Path) -> Path:
    """Copy the package to `target`, without the folders of these families and their lines in the registry."""
    copy = shutil.copytree(
        ROOT / "megaptm", target / "megaptm", symlinks=True, ignore=shutil.ignore_patterns("__pycache__")
    )
    for name in ("configs", "slurm"):  # links of the package lead here
        (target / name).symlink_to(ROOT / name)
    registry = copy / "families/registry.py"
    lines = registry.read_text(encoding="utf-8").splitlines(keepends=True)
    registry.write_text("".join(line for line in lines if line.strip().strip('",') not in folders), encoding="utf-8")
    for folder in folders:
        shutil.rmtree(copy / "families" / folder)
    return target
