"""Shards whose names hold their index and number, such as `train-00000-of-00003.parquet` of Hugging Face `datasets`."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterable, Sequence
from fnmatch import fnmatchcase

from data_pipeline.sources.compression import without_compression
from data_pipeline.sources.listing import Listing
from data_pipeline.sources.source import InputFile, Source
from megaptm.errors import UserError

# Older versions of `datasets` append a hash, which differs between the shards of a dataset.
NUMBERED = re.compile(r"(?<!\d)(?P<index>\d{5,6})-of-(?P<count>\d{5,6})(?:-[0-9a-f]{16})?(?!\d)")

Shards = dict[int, InputFile]
"""Index -> file of a shard."""


def check_shard_names(source: Source, listing: Listing, files: Iterable[InputFile]) -> None:
    """Raise `UserError` if a folder or glob lacks shards of a dataset, or mixes two datasets: of an earlier download or
    save, for example.

    `files` are read. A shard that the glob does not match is not missing.
    """
    if listing.kind == "file":
        return
    datasets: dict[tuple[str, str], dict[int, Shards]] = {}
    for file in files:
        if (match := _match_name(file.name)) and int(match["count"]):
            plain = without_compression(file.name)
            by_count = datasets.setdefault((plain[: match.start()], plain[match.end() :]), {})
            first = by_count.setdefault(int(match["count"]), {}).setdefault(int(match["index"]), file)
            if first is not file:
                raise UserError(
                    f"source {source.path}: {first.name} and {file.name} are one shard of two datasets, or of two "
                    "copies of one: remove one of them, or name the files of one dataset with a glob."
                )
    for by_count in datasets.values():
        if len(by_count) > 1:
            raise _two_datasets_error(source, by_count)
        [(count, shards)] = by_count.items()
        if not source.incomplete:
            _refuse_missing(source, listing, count, shards)


def _match_name(name: str) -> re.Match[str] | None:
    """Return the last number of a shard in the file name of a source, not in that of its folder."""
    matches = list(NUMBERED.finditer(name, name.rfind("/") + 1))
    return matches[-1] if matches else None


def _refuse_missing(source: Source, listing: Listing, count: int, shards: Shards) -> None:
    first = int(count in shards)  # some writers count from 1
    name = next(iter(shards.values())).name
    match = _match_name(name)
    assert match is not None
    missing = [
        f"{name[: match.start()]}{index:0{len(match['index'])}}-of-{match['count']}{name[match.end() :]}"
        for index in range(first, first + count)
        if index not in shards
    ]
    refuse_missing_files(source, [name for name in missing if is_requested(name, source, listing)], name)


def is_requested(name: str, source: Source, listing: Listing) -> bool:
    """Whether a source includes a file of this name: a folder all of its files, a glob those that it matches."""
    pattern = source.path.partition("::")[0].rpartition("/")[2]
    return listing.kind == "folder" or fnmatchcase(posixpath.basename(name), pattern)


def refuse_missing_files(source: Source, missing: Sequence[str], neighbor: str) -> None:
    """Raise `UserError` if shards of a dataset are missing beside a file."""
    if missing:
        plural = "s" if len(missing) > 2 else ""
        subject = f" and {len(missing) - 1:,} other{plural} do" if len(missing) > 1 else " does"
        raise UserError(
            f"source {source.path}: {missing[0]}{subject} not exist beside {neighbor}: complete the copy, or set "
            "`incomplete: true` to read a part of the dataset."
        )


def _two_datasets_error(source: Source, by_count: dict[int, Shards]) -> UserError:
    files = [shards[min(shards)] for _, shards in sorted(by_count.items())]
    pattern = f"*-of-{max(by_count):05}*"
    return UserError(
        f"source {source.path}: {files[0].name} and {files[1].name} are shards of two datasets: remove the earlier "
        f"one, or name the shards of one with a glob, such as `{pattern}`."
    )
