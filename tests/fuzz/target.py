"""A row of the table of what is spoiled."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.fuzz.mutations import Random, change_kind

Command = list[str]
OTHER_KINDS = 0.05
"""Share of the cases in which a file becomes something else than a file."""


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
    short: bool = True
    """Whether the short form that runs with the tests has it: its good files are made in no time."""

    def change(self, folder: Path, draw: Random) -> bool:
        """`spoil`, or make a link, a folder or a pipe of a file."""
        if draw.random() < OTHER_KINDS:
            change_kind(folder, draw)
            return False
        return self.spoil(folder, draw)
