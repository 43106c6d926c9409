"""Listing of a source's path: a file, the files of a folder, or the matches of a glob."""

from __future__ import annotations

import glob
from dataclasses import dataclass, field
from typing import Literal

# Installed packages and compiled caches.
SKIPPED_FOLDERS = frozenset({"site-packages", "dist-packages", "__pycache__", "node_modules"})


@dataclass(frozen=True)
class FoundFile:
    """A file found in a source, with any content."""

    path: str
    name: str
    """Path of a found file relative to the listed folder, starting with the folder's name, with slashes."""
    size: int
    version: str


@dataclass(frozen=True)
class Listing:
    """All files at the path of a source, unordered."""

    kind: Literal["file", "folder", "glob"]
    files: list[FoundFile]
    skipped: list[tuple[str, str]] = field(default_factory=list)
    """Skipped entries, as (reason, name): folders that a build created, and entries that are not files."""


def is_hidden(name: str) -> bool:
    return name.startswith(".") or name in SKIPPED_FOLDERS


def folder_before_wildcards(pattern: str) -> str:
    """Return the leading folders of a glob that have no wildcard: `a/b/*/c.txt` -> `a/b`"""
    fixed: list[str] = []
    for part in pattern.split("/")[:-1]:
        if glob.has_magic(part):
            break
        fixed.append(part)
    return "/".join(fixed)
