"""Commands and paths as typed in a shell."""

from __future__ import annotations

import shlex
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path


def command_line(words: Sequence[str], *, program: str = "megaptm") -> str:
    """Return the command line of a program of this environment, quoted for a shell."""
    return f"{_program_name(program)} {shlex.join(words)}"


def typed_path(path: str | Path) -> str:
    """Return a path as typed in a shell: relative to the working directory if it is inside."""
    path, here = Path(path), Path.cwd()
    return str(path.relative_to(here)) if path.is_relative_to(here) and path != here else str(path)


def _program_name(program: str) -> str:
    """Return the name by which a shell calls a program if PATH leads to this environment's copy, otherwise its path or
    `python -m`."""
    beside = Path(sys.executable).parent / program
    if shutil.which(program) == str(beside):
        return program
    return shlex.quote(typed_path(beside)) if beside.exists() else f"{shlex.quote(sys.executable)} -m {program}"
