"""Corpora: shards on disk, the order in which they are read, and the loader of micro-batches."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from megaptm.data.mix import Mix
from megaptm.data.opening import open_mix
from megaptm.data.shards import Corpus, ShardWriter, read_manifest, write_manifest

if TYPE_CHECKING:
    from megaptm.data.loader import Loader, read_validation

__all__ = [
    "Corpus",
    "Loader",
    "Mix",
    "ShardWriter",
    "open_mix",
    "read_manifest",
    "read_validation",
    "write_manifest",
]


def __getattr__(name: str) -> Any:
    # Loading lazily avoids importing torch in corpus jobs and for the command line's help.
    if name in ("Loader", "read_validation"):
        from megaptm.data import loader

        return getattr(loader, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
