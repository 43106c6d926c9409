"""A row of the table of what is spoiled."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.fuzz.mutations import Random

Command = list[str]


@dataclass(frozen=True)
class Target:
    """A kind of file."""

    name: str
    folder: str
    """Of `materials`, which is copied for each case."""
    spoil: Callable[[Path, Random], bool]
    """Change a file of the copied folder; whether a hash still tells, so that nothing else may be read than before."""
    read: Callable[[Path], Any]
    """Read all that a command would read; what it returns is compared."""
    commands: Callable[[Path], list[Command]]
