"""Kind of file to mutate, with its readers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.fuzz.mutations import Random, change_kind

Command = list[str]
OTHER_KIND_SHARE = 0.05
"""Share of cases in which a file is replaced by something that is not a file."""


@dataclass(frozen=True)
class Target:
    """Kind of file."""

    name: str
    folder: str
    """Folder of `materials`, which is copied for each case."""
    mutate: Callable[[Path, Random], bool]
    """Change a file in the folder; return whether a hash detects it, so that no other content may be read."""
    read: Callable[[Path], Any]
    """Read everything that a command would read; the result is compared with that of the unchanged files."""
    commands: Callable[[Path], list[Command]]
    is_short: bool = True
    """Whether the short form includes it, because its files are written fast."""
    read_share: float = 1.0
    """Share of the read cases that are run: below 1 where each case builds a corpus."""

    def change(self, folder: Path, rng: Random) -> bool:
        """Call `mutate`, or replace a file by a link, a folder or a pipe."""
        if rng.random() < OTHER_KIND_SHARE:
            change_kind(folder, rng)
            return False
        return self.mutate(folder, rng)
