"""Find the files of a source, and name their documents."""

from __future__ import annotations

import os
import sysconfig
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import PurePosixPath

from data_pipeline.document import DropCounts
from data_pipeline.sources.archives import archive_kind
from data_pipeline.sources.compression import without_compression
from data_pipeline.sources.formats import FORMATS, TEXT_FORMATS, format_of, skip_reason
from data_pipeline.sources.formats.text import read_text
from data_pipeline.sources.listing import FoundFile, Listing
from data_pipeline.sources.local import list_folder, list_path
from data_pipeline.sources.overrides import apply_overrides, refuse_unmatched
from data_pipeline.sources.remote import list_url
from data_pipeline.sources.shard_lists import check_shard_lists
from data_pipeline.sources.shard_names import check_shard_names
from data_pipeline.sources.source import InputFile, Source
from megaptm.errors import UserError
from megaptm.storage import is_remote

__all__ = ["JSON_LINES", "PYTHON_LIBRARY", "InputFile", "find_files"]

PYTHON_LIBRARY = "python-library"
JSON_LINES = TEXT_FORMATS["json-lines"].suffixes


def find_files(sources: Sequence[str | Source], dropped: DropCounts | None = None) -> list[InputFile]:
    """Return the files of all sources of a corpus, in the order of the sources. Files of a source are sorted by name
    (code points).

    Files that are skipped in a folder or glob are counted in `dropped`. Raises `UserError` if a source does not exist
    or has no text, if two sources name the same file, or if shards of a dataset are missing.
    """
    if not sources:
        raise UserError("no source is given: name a file, a folder, a glob or a URL.")
    all_files: list[InputFile] = []
    owners: dict[str, int] = {}
    for index, source_or_path in enumerate(sources):
        source = source_or_path if isinstance(source_or_path, Source) else Source(source_or_path)
        skipped = DropCounts()
        for file in _files_of(source, skipped):
            owner = owners.setdefault(file.path if is_remote(file.path) else os.path.realpath(file.path), index)
            if owner != index:
                raise _duplicate_file_error(sources[owner], source, file)
            all_files.append(file)
        if dropped is not None and source.path != PYTHON_LIBRARY:  # users do not expect text of their own there
            dropped.merge(skipped)
    refuse_unmatched((source for source in sources if isinstance(source, Source)), all_files)
    return all_files


REASON_MESSAGES = {
    "unknown format": "does not have the suffix of a known format: to read it, name the file, or a glob and a `format`",
    "unsupported compression": "has an unsupported compression: decompress it, or use .gz, .zst, .bz2 or .xz",
    "corpus": "is a corpus that another build created",
    "unfinished build": "is the folder of an unfinished build",
    "folder already read": "is a link to a folder that is already read under another name",
    "unlisted shard": "is not in state.json or index.json of its folder, or is there uncompressed, too",
    "missing shard": "is in state.json or index.json of its folder, but does not exist: complete the copy",
    "cached result": "is a result of `map` or `filter` that `datasets` keeps beside a dataset: to read it, name it",
    "unreadable list": "cannot be read, so that all shards beside it are read: make it readable",
    "not a file": "is a pipe, a socket or a device: write its content to a file",
}


def _files_of(source: Source, skipped: DropCounts) -> list[InputFile]:
    listing = _list_source(source)
    if entries := check_shard_lists(source, listing):
        skipped_names = {name for _, name in entries}
        remaining = [file for file in listing.files if file.name not in skipped_names]
        listing = replace(listing, files=remaining, skipped=[*listing.skipped, *entries])
    find_inputs = FORMATS[source.format].find_files if source.format else None
    if find_inputs is None:
        find_inputs = _aligned_files if source.aligned else _unpaired_files
    files = sorted(find_inputs(source, listing), key=lambda file: (file.name, file.path))
    check_shard_names(source, listing, files)
    taken = {file.path for file in files} | {file.aligned.path for file in files if file.aligned is not None}
    not_taken = [
        (skip_reason(file.name, source, listing.kind) or "unknown format", file.name)
        for file in listing.files
        if file.path not in taken
    ]
    for name, reason in sorted((name, reason) for reason, name in [*listing.skipped, *not_taken]):
        skipped.add(reason, name, message=REASON_MESSAGES[reason])
    if not files:
        suffixes = FORMATS[source.format].suffixes if source.format else (*TEXT_FORMATS["text"].suffixes, *JSON_LINES)
        counts = ", ".join(
            f"{count:,} {reason} ({skipped.examples[reason][0][0]})" for reason, count in skipped.counts.items()
        )
        suffixes_not_taken = {PurePosixPath(name).suffix.lower() for _, name in not_taken}
        remedies = [form.remedy for form in FORMATS.values() if suffixes_not_taken & {*form.attached}]
        raise UserError(
            f"no text found in {source.path}{f', but {counts}' if counts else ''}: name a file, or a folder or glob "
            f"with files such as {', '.join(sorted(suffixes)) or 'those of its format'}, or set the `format` of its "
            f"{'; '.join(('files', *remedies))}."
        )
    return files


def _list_source(source: Source) -> Listing:
    path = os.path.expanduser(source.path.removeprefix("file://"))
    listing = list_url(path) if is_remote(path) else list_path(path)
    if listing is None and path == PYTHON_LIBRARY:
        listing = list_folder(sysconfig.get_path("stdlib"), PYTHON_LIBRARY)
    if listing is None:
        known_kinds = f"a file, a folder, a glob, a URL of these, or `{PYTHON_LIBRARY}`"
        raise UserError(f"source {source.path} does not exist: name {known_kinds}.")
    return listing


def _unpaired_files(source: Source, listing: Listing) -> Iterator[InputFile]:
    for entry in listing.files:
        file = input_file(entry, source)
        named = listing.kind == "file" or file.source is not source
        if named or archive_kind(file.name) or not skip_reason(file.name, source, listing.kind):
            yield file


def _aligned_files(source: Source, listing: Listing) -> Iterator[InputFile]:
    """Yield the files of a source, each with its neighbor that has the suffix `Source.aligned` and the same
    compression."""
    assert source.aligned is not None
    for file in _unpaired_files(source, listing):
        inner = without_compression(file.name)
        name = str(PurePosixPath(inner).with_suffix(source.aligned)) + file.name[len(inner) :]
        if name == file.name:
            continue  # the file is the aligned neighbor of another one
        if FORMATS[format_of(file)].reader is not read_text:
            raise UserError(
                f"source {source.path}: aligned works on lines of text, but {file.path} is another format: use parts."
            )
        path = file.path.removesuffix(PurePosixPath(file.name).name) + PurePosixPath(name).name
        other = list_url(path) if is_remote(path) else list_path(path)
        if other is None:
            raise UserError(f"source {source.path}: {path} does not exist beside {file.path}: add it.")
        yield replace(file, aligned=input_file(other.files[0], source))


def input_file(file: FoundFile, source: Source, attached: str | None = None) -> InputFile:
    """Return a file of a source, with the settings that match its name. `attached`: file that its text describes."""
    return apply_overrides(InputFile(file.path, file.name, file.size, file.version, source, attached))


def _duplicate_file_error(first_source: str | Source, second_source: Source, file: InputFile) -> UserError:
    first_path = first_source.path if isinstance(first_source, Source) else first_source
    if first_path == second_source.path:
        return UserError(f"source {first_path} is named twice, which would duplicate its text: name it once.")
    return UserError(
        f"sources {first_path} and {second_source.path} both contain {file.path}, which would duplicate its text: "
        "remove it from one of them."
    )
