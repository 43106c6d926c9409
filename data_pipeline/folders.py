"""Folders that builds make. They are no text, also where someone builds into the folder that the text is in."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path

from megaptm.data.manifest import MANIFEST

SCRATCH = "scratch"
"""Unfinished work."""
FINISHED = "finished"
"""In it, results of jobs."""
SHARDS = "shards"
"""In it, shards and their indexes, until they get their names in the corpus."""
BUILDING = ".building"
"""Ends the name of the folder that a corpus is made in."""
CORPUS = "corpus"
"""In it, the corpus in the making."""


def is_corpus(names: Collection[str]) -> bool:
    """Whether a folder with these entries is a corpus."""
    return MANIFEST in names and any(name.endswith(".shards.npy") for name in names)


def is_unfinished(folder: Path) -> bool:
    """Whether a build left it, or is at work in it."""
    if folder.name == SCRATCH:
        return (folder / FINISHED).is_dir()
    return folder.name.endswith(BUILDING) and any((folder / name).is_dir() for name in (SCRATCH, CORPUS))
