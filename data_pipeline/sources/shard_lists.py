"""Lists of shards that libraries write into a folder: `state.json` of Hugging Face `datasets`, `index.json` of MDS.

A dataset that is saved again with fewer shards leaves the others of the earlier one in its folder.
"""

from __future__ import annotations

import json
import os
import posixpath
import re
from collections.abc import Iterator
from pathlib import PurePosixPath
from typing import Any

from data_pipeline.sources.compression import without_compression
from data_pipeline.sources.listing import FoundFile, Listing
from data_pipeline.sources.open import SOURCE_PATH_ERRORS
from data_pipeline.sources.shard_names import is_requested, refuse_missing_files
from data_pipeline.sources.source import Source
from megaptm.storage import exists, file_size, is_remote, read_file, regular_file

MAX_BYTES = 64 << 20
"""Maximum bytes of a list of shards; a larger file is not one."""
CACHE = re.compile(r"cache-[0-9a-f]{16}(_\d{5}_of_\d{5})?\.arrow")
"""Name of a file in which `datasets` keeps the result of `map` or `filter`, beside the dataset."""
INFO = "dataset_info.json"
"""Name of the file that describes a dataset, in the folders of `datasets`."""
SUFFIXES = {"state.json": ".arrow", "index.json": ".mds"}
"""Name of a list -> suffix of the shards that it lists."""


def check_shard_lists(source: Source, listing: Listing) -> list[tuple[str, str]]:
    """Return skipped entries of a listed folder or glob, as (reason, name): shards that the list beside them does not
    name, unreadable lists, and cached results. A shard that is there compressed and uncompressed is read once.

    Raises `UserError` if a listed shard does not exist, unless the source is `incomplete`: then it is counted.
    """
    if listing.kind == "file":
        return []
    names_by_folder: dict[str, list[str]] = {}
    for file in listing.files:
        names_by_folder.setdefault(posixpath.dirname(file.name), []).append(file.name)
    names = {file.name for file in listing.files}
    skipped: list[tuple[str, str]] = []
    for file in _lists(listing):
        folder, list_name = posixpath.split(file.name)
        shards = {name for name in names_by_folder[folder] if _is_shard(name, list_name)}
        if not shards:
            continue
        try:
            options_by_shard = _listed_shards(file.path)
        except OSError as error:
            if error.errno not in SOURCE_PATH_ERRORS:
                raise
            skipped.append(("unreadable list", file.name))
            continue
        alternatives = [[str(PurePosixPath(folder, name)) for name in options] for options in options_by_shard]
        listed = {next((name for name in options if name in shards), "") for options in alternatives} - {""}
        if listed:  # else the shards were renamed
            skipped += [("unlisted shard", name) for name in shards - listed]
            absent = [options for options in alternatives if names.isdisjoint(options)]
            requested = [[name for name in options if is_requested(name, source, listing)] for options in absent]
            missing = [matched[0] for matched in requested if matched]
            if not source.incomplete:
                pairs = zip(absent, requested, strict=True)
                unmatched = [name for options, matched in pairs if matched for name in options if name not in matched]
                hint = f" (or only as {unmatched[0]}, which the glob does not match)" if unmatched else ""
                refuse_missing_files(source, missing, f"{file.name}{hint}")
            skipped += [("missing shard", name) for name in missing]
    if listing.kind == "folder":
        cached = [name for name in names if CACHE.fullmatch(posixpath.basename(name))]
        skipped += [("cached result", name) for name in cached if f"{posixpath.dirname(name)}/{INFO}" in names]
    return sorted(set(skipped))


def _lists(listing: Listing) -> Iterator[FoundFile]:
    """Yield the files that may be lists of shards: files of a folder, and files beside the shards that a glob
    matches."""
    if listing.kind == "folder":
        yield from (file for file in listing.files if posixpath.basename(file.name) in SUFFIXES)
        return
    beside: dict[str, FoundFile] = {}
    for file in listing.files:
        for list_name in SUFFIXES:
            if _is_shard(file.name, list_name) and "::" not in file.path:
                path, name = (posixpath.join(posixpath.dirname(at), list_name) for at in (file.path, file.name))
                beside[path] = FoundFile(path, name, 0, "")
    for path, file in beside.items():
        if exists(path) if is_remote(path) else os.path.lexists(path):
            yield file


def _is_shard(name: str, list_name: str) -> bool:
    return without_compression(name).endswith(SUFFIXES[list_name])


def _listed_shards(path: str) -> list[list[str]]:
    """Return for each shard of a list its possible names, in order of preference; no shards if the file is no list.

    Raises `OSError` if a local list cannot be read."""
    if (file_size(path) if is_remote(path) else os.stat(path).st_size) > MAX_BYTES:
        return []
    content = read_file(path) if is_remote(path) else regular_file(path).read_bytes()
    try:
        return [*_names(json.loads(content))]
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return []


def _names(content: Any) -> Iterator[list[str]]:
    for file in content.get("_data_files", ()):
        yield [str(file["filename"])]
    for shard in content.get("shards", ()):
        yield [str(data["basename"]) for data in (shard.get("raw_data"), shard.get("zip_data")) if data]
