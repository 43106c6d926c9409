"""Folders created by builds. They are never read as text, even if the output folder is inside the source folder."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path

from megaptm.data.manifest import MANIFEST

SCRATCH = "scratch"
"""Subfolder of a build for unfinished work."""
FINISHED = "finished"
"""Subfolder of a corpus build for results of finished jobs."""
SHARDS = "shards"
"""Subfolder of a build for shards and their indexes, until they are linked into the corpus."""
BUILDING = ".building"
"""Suffix of the folder in which a corpus is built."""
CORPUS = "corpus"
"""Subfolder of a build for the unfinished corpus."""


def is_corpus(names: Collection[str]) -> bool:
    """Whether a folder with these entries is a finished corpus."""
    return MANIFEST in names and any(name.endswith(".shards.npy") for name in names)


def is_unfinished(folder: Path) -> bool:
    """Whether a folder belongs to a running or killed corpus build."""
    if folder.name == SCRATCH:
        return (folder / FINISHED).is_dir()
    return folder.name.endswith(BUILDING) and any((folder / name).is_dir() for name in (SCRATCH, CORPUS))
