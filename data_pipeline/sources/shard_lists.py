"""Lists of shards that libraries write into a folder: `state.json` of Hugging Face `datasets`, `index.json` of MDS.

A dataset that is saved again with fewer shards leaves the others of the earlier one in its folder.
"""

from __future__ import annotations

import json
import posixpath
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import Any

from data_pipeline.sources.compression import without_compression
from data_pipeline.sources.listing import FoundFile
from megaptm.storage import is_remote, read_file

MAX_BYTES = 64 << 20
"""Maximum bytes of a list of shards; a larger file is not one."""
SUFFIXES = {"state.json": ".arrow", "index.json": ".mds"}
"""Name of a list -> suffix of the shards that it lists."""


def check_shard_lists(files: list[FoundFile]) -> list[tuple[str, str]]:
    """Return skipped entries of a listed folder, as (reason, name): shards that the list beside them does not name,
    listed shards that do not exist, and unreadable lists. A shard that is there compressed and uncompressed is read
    once."""
    names_by_folder: dict[str, list[str]] = {}
    for file in files:
        names_by_folder.setdefault(posixpath.dirname(file.name), []).append(file.name)
    names = {file.name for file in files}
    skipped: list[tuple[str, str]] = []
    for file in files:
        folder, list_name = posixpath.split(file.name)
        if list_name not in SUFFIXES or file.size > MAX_BYTES:
            continue
        shards = {name for name in names_by_folder[folder] if without_compression(name).endswith(SUFFIXES[list_name])}
        if not shards:
            continue
        try:
            options_by_shard = _listed_shards(file.path)
        except OSError:
            skipped.append(("unreadable list", file.name))
            continue
        alternatives = [[str(PurePosixPath(folder, name)) for name in options] for options in options_by_shard]
        listed = {next((name for name in options if name in shards), "") for options in alternatives} - {""}
        if listed:  # else the shards were renamed
            skipped += [("unlisted shard", name) for name in shards - listed]
            skipped += [
                ("missing shard", options[0]) for options in alternatives if options and names.isdisjoint(options)
            ]
    return skipped


def _listed_shards(path: str) -> list[list[str]]:
    """Return for each shard of a list its possible names, in order of preference; no shards if the file is no list.

    Raises `OSError` if a local list cannot be read."""
    content = read_file(path) if is_remote(path) else Path(path).read_bytes()
    try:
        return [*_names(json.loads(content))]
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return []


def _names(content: Any) -> Iterator[list[str]]:
    for file in content.get("_data_files", ()):
        yield [str(file["filename"])]
    for shard in content.get("shards", ()):
        yield [str(data["basename"]) for data in (shard.get("raw_data"), shard.get("zip_data")) if data]
