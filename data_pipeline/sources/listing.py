"""What a source's path means: a file, a folder's files, or those that match a glob."""

from __future__ import annotations

import glob
from dataclasses import dataclass, field
from typing import Literal

# Other people's packages and compiled caches.
SKIPPED_FOLDERS = frozenset({"site-packages", "dist-packages", "__pycache__", "node_modules"})


@dataclass(frozen=True)
class FoundFile:
    """A file, whatever is in it."""

    path: str
    name: str
    """From the folder that was asked for on, with slashes."""
    size: int
    version: str


@dataclass(frozen=True)
class Listing:
    """All files of a path, in no order."""

    kind: Literal["file", "folder", "glob"]
    files: list[FoundFile]
    left_out: list[tuple[str, str]] = field(default_factory=list)
    """Why, and the name: folders that builds made, and what is no file."""


def is_hidden(name: str) -> bool:
    return name.startswith(".") or name in SKIPPED_FOLDERS


def fixed_folder(pattern: str) -> str:
    """The folder of a glob that has no wildcard: `a/b/*/c.txt` -> `a/b`"""
    fixed: list[str] = []
    for part in pattern.split("/")[:-1]:
        if glob.has_magic(part):
            break
        fixed.append(part)
    return "/".join(fixed)
