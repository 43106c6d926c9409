"""Find the files of a source, and name their documents."""

from __future__ import annotations

import os
import sysconfig
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import PurePosixPath

from data_pipeline.document import Dropped
from data_pipeline.sources.archives import archive_kind
from data_pipeline.sources.compression import without_compression
from data_pipeline.sources.formats import FORMATS, format_of, passed_over
from data_pipeline.sources.formats.image_text import is_image, is_metadata
from data_pipeline.sources.formats.text import read_text
from data_pipeline.sources.listing import FoundFile, Listing
from data_pipeline.sources.local import list_folder, list_path
from data_pipeline.sources.overrides import overridden, refuse_unmatched
from data_pipeline.sources.remote import list_url
from data_pipeline.sources.source import InputFile, Source
from megaptm.errors import UserError
from megaptm.storage import is_remote

__all__ = ["JSON_LINES", "PYTHON_LIBRARY", "InputFile", "find_files"]

PYTHON_LIBRARY = "python-library"
JSON_LINES = FORMATS["json-lines"].suffixes


def find_files(sources: Sequence[str | Source], dropped: Dropped | None = None) -> list[InputFile]:
    """Return the files of all sources, in the order of the sources. Files of a source are sorted by name (code points).

    Files that are skipped in a folder or glob are counted in `dropped`. Raises `UserError` if a source does not exist
    or has no text, or if two sources name the same file.
    """
    if not sources:
        raise UserError("no source is named: name a file, a folder, a glob or a URL of these.")
    found: list[InputFile] = []
    owners: dict[str, int] = {}
    for number, given in enumerate(sources):
        source = given if isinstance(given, Source) else Source(given)
        passed = Dropped()
        for file in _files_of(source, passed):
            owner = owners.setdefault(_identity(file.path), number)
            if owner != number:
                raise _twice(sources[owner], source, file)
            found.append(file)
        if dropped is not None and source.path != PYTHON_LIBRARY:  # users do not expect text of their own there
            dropped.merge(passed)
    refuse_unmatched((source for source in sources if isinstance(source, Source)), found)
    return found


SAID = {
    "no known format": "has no suffix of a format that is read: name it, or a glob and a `format`, if it is text",
    "unknown compression": "is compressed in a way that is not read here: decompress it, or use .gz, .zst, .bz2 or .xz",
    "corpus": "is the corpus of another build, and no text of its own",
    "unfinished build": "is where a corpus is being made",
    "folder read already": "is a link to a folder that is read under another name, and is not read again",
    "not a file": "is a pipe, a socket or a device: write it to a file",
}


def _files_of(source: Source, passed: Dropped) -> list[InputFile]:
    listing = _list(source)
    paired = _with_images if source.format == "image-text" else _aligned if source.aligned else _alone
    files = sorted(paired(source, listing), key=lambda file: (file.name, file.path))
    taken = {file.path for file in files} | {file.aligned.path for file in files if file.aligned is not None}
    left_out = [
        (passed_over(file.name, source, listing.kind) or "no known format", file.name)
        for file in listing.files
        if file.path not in taken
    ]
    for name, reason in sorted((name, reason) for reason, name in [*listing.left_out, *left_out]):
        passed.add(reason, name, said=SAID[reason])
    if not files:
        suffixes = FORMATS[source.format].suffixes if source.format else (*FORMATS["text"].suffixes, *JSON_LINES)
        there = ", ".join(
            f"{count:,} {reason} ({passed.examples[reason][0][0]})" for reason, count in passed.counts.items()
        )
        images = any(is_image(name) for _, name in left_out)
        raise UserError(
            f"no text found in {source.path}{f', but {there}' if there else ''}: name a file, or a folder or glob with "
            f"files such as {', '.join(sorted(suffixes)) or 'its format has'}, or say the `format` of what is there"
            f"{'; of images `megaptm corpus images` makes a corpus' if images else ''}."
        )
    return files


def _list(source: Source) -> Listing:
    path = os.path.expanduser(source.path.removeprefix("file://"))
    listing = list_url(path) if is_remote(path) else list_path(path)
    if listing is None and path == PYTHON_LIBRARY:
        listing = list_folder(sysconfig.get_path("stdlib"), PYTHON_LIBRARY)
    if listing is None:
        what = f"a file, a folder, a glob, a URL of these, or `{PYTHON_LIBRARY}`"
        raise UserError(f"source {source.path} does not exist: name {what}.")
    return listing


def _alone(source: Source, listing: Listing) -> Iterator[InputFile]:
    for found in listing.files:
        file = _input(found, source)
        named = listing.kind == "file" or file.source is not source
        if named or archive_kind(file.name) or not passed_over(file.name, source, listing.kind):
            yield file


def _aligned(source: Source, listing: Listing) -> Iterator[InputFile]:
    """Yield files, each with its neighbor that has the suffix `Source.aligned` and the same compression."""
    assert source.aligned is not None
    for file in _alone(source, listing):
        inner = without_compression(file.name)
        name = str(PurePosixPath(inner).with_suffix(source.aligned)) + file.name[len(inner) :]
        if name == file.name:
            continue  # the file is the aligned neighbor of another one
        if FORMATS[format_of(file)].reader is not read_text:
            raise UserError(f"source {source.path}: aligned is for lines of text, and {file.path} is none: use parts.")
        path = file.path.removesuffix(PurePosixPath(file.name).name) + PurePosixPath(name).name
        other = list_url(path) if is_remote(path) else list_path(path)
        if other is None:
            raise UserError(f"source {source.path}: there is no {path} beside {file.path}: put it there.")
        yield replace(file, aligned=_input(other.files[0], source))


def _with_images(source: Source, listing: Listing) -> Iterator[InputFile]:
    """Yield metadata files, which describe all files below their folder, and in other folders captions with images."""
    described = {_folder(file.name) for file in listing.files if is_metadata(file.name)}
    loose = [file for file in listing.files if not any(folder in described for folder in _above(file.name))]
    images = {_stem(file.name): file.path for file in loose if is_image(file.name)}
    captions = {_stem(file.name) for file in loose if file.name.lower().endswith(".txt")}
    for file in listing.files:
        if is_metadata(file.name):
            yield _input(file, source)
    for file in loose:
        stem = _stem(file.name)
        if file.name.lower().endswith(".txt"):
            yield _input(file, source, images.get(stem))
        elif is_image(file.name) and stem not in captions:
            yield _input(file, source)  # counted later as an image without a caption


def _folder(name: str) -> str:
    return str(PurePosixPath(name).parent)


def _above(name: str) -> list[str]:
    return [str(folder) for folder in PurePosixPath(name).parents]


def _stem(name: str) -> str:
    return str(PurePosixPath(name).with_suffix(""))


def _input(file: FoundFile, source: Source, image: str | None = None) -> InputFile:
    return overridden(InputFile(file.path, file.name, file.size, file.version, source, image))


def _identity(path: str) -> str:
    return path if is_remote(path) else os.path.realpath(path)


def _twice(one: str | Source, other: Source, file: InputFile) -> UserError:
    first = one.path if isinstance(one, Source) else one
    if first == other.path:
        return UserError(f"source {first} is named twice: name it once, or all of its text counts twice.")
    return UserError(
        f"sources {first} and {other.path} both have {file.path}: leave it out of one, or it counts twice."
    )
