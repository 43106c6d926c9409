"""Lists of shards that libraries write into a folder: `state.json` of Hugging Face `datasets`, `index.json` of MDS.

A dataset that is saved again with fewer shards leaves the others of the earlier one in its folder.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import PurePosixPath
from typing import Any

from data_pipeline.sources.compression import without_compression
from data_pipeline.sources.listing import FoundFile
from megaptm.storage import read_file

MAX_BYTES = 64 << 20
"""Maximum bytes of a list of shards; a larger file is not one."""
SUFFIXES = {"state.json": ".arrow", "index.json": ".mds"}
"""Name of a list -> suffix of the shards that it lists."""


def find_unlisted(files: list[FoundFile]) -> set[str]:
    """Return the names of the shards in the listed folder that the list beside them does not name. A shard that is
    there compressed and uncompressed is read once."""
    names = [file.name for file in files]
    unlisted: set[str] = set()
    for file in files:
        path = PurePosixPath(file.name)
        if path.name not in SUFFIXES or file.size > MAX_BYTES:
            continue
        if not (shards := {name for name in names if _is_shard(name, path)}):
            continue
        alternatives = [[str(path.parent / name) for name in options] for options in _listed_shards(file.path)]
        listed = {next((name for name in options if name in shards), "") for options in alternatives} - {""}
        if listed:  # else the shards were renamed
            unlisted |= shards - listed
    return unlisted


def _is_shard(name: str, list_path: PurePosixPath) -> bool:
    return PurePosixPath(name).parent == list_path.parent and without_compression(name).endswith(
        SUFFIXES[list_path.name]
    )


def _listed_shards(path: str) -> list[list[str]]:
    """Return for each shard of a list its possible names, in order of preference; no shards if the file is no list."""
    try:
        return [*_names(json.loads(read_file(path)))]
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return []


def _names(content: Any) -> Iterator[list[str]]:
    for file in content.get("_data_files", ()):
        yield [str(file["filename"])]
    for shard in content.get("shards", ()):
        yield [str(data["basename"]) for data in (shard.get("raw_data"), shard.get("zip_data")) if data]
