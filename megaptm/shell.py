"""Commands and paths as one would type them here, or paste them."""

from __future__ import annotations

import shlex
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path


def command_line(words: Sequence[str], *, program: str = "megaptm") -> str:
    """A program of this environment and its words."""
    return f"{_called(program)} {shlex.join(words)}"


def typed_path(path: str | Path) -> str:
    """From this folder on, where the path is below it."""
    path, here = Path(path), Path.cwd()
    return str(path.relative_to(here)) if path.is_relative_to(here) and path != here else str(path)


def _called(program: str) -> str:
    """By its name where the PATH leads to the one of this environment."""
    beside = Path(sys.executable).parent / program
    if shutil.which(program) == str(beside):
        return program
    return shlex.quote(typed_path(beside)) if beside.exists() else f"{shlex.quote(sys.executable)} -m {program}"
