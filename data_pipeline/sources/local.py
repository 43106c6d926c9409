"""Local files of a source."""

from __future__ import annotations

import glob
import os
from collections.abc import Iterator
from pathlib import Path
from typing import NoReturn

from data_pipeline.folders import is_corpus, is_unfinished
from data_pipeline.sources.listing import FoundFile, Listing, folder_before_wildcards, is_hidden
from megaptm.data.manifest import MANIFEST
from megaptm.errors import UserError

ALREADY_READ = "folder already read"


def list_path(path: str) -> Listing | None:
    """List the local files of a source: a file, a folder or a glob. None if nothing has this name."""
    if os.path.isdir(path):
        return list_folder(path, Path(path).resolve().name)
    if os.path.lexists(path):
        if not _is_file(path):
            raise UserError(f"source {path} is a pipe, a socket or a device: write its content to a file.")
        return Listing("file", [_stat_file(path, os.path.basename(path))])
    if glob.has_magic(path):
        return _list_glob(path, folder_before_wildcards(path))
    return None


def list_folder(root: str, name: str) -> Listing:
    """List the files of a local folder, without hidden files and installed packages."""
    listing = Listing("folder", [])
    for path, below, reason in _walk_folder(root):
        if reason:
            listing.skipped.append((reason, f"{name}/{below}"))
        else:
            listing.files.append(_stat_file(path, f"{name}/{below}"))
    return listing


def _list_glob(pattern: str, root: str) -> Listing:
    listing = Listing("glob", [])
    already_read: list[str] = []
    for match in dict.fromkeys(_match_glob(pattern, already_read)):
        name = _name_in_glob(match, root)
        if os.path.isdir(match):
            continue
        if reason := _skip_reason_above(os.path.dirname(match), root):
            listing.skipped.append((reason, name))
        elif not _is_file(match):
            listing.skipped.append(("not a file", name))
        else:
            listing.files.append(_stat_file(match, name))
    listing.skipped.extend((ALREADY_READ, _name_in_glob(folder, root)) for folder in dict.fromkeys(already_read))
    return listing


def _match_glob(pattern: str, already_read: list[str]) -> Iterator[str]:
    """Yield the paths that match a glob. Below `**` each folder is searched once. Further links to it are added to
    `already_read`."""
    parts = pattern.split("/")
    if "**" not in parts:
        yield from glob.iglob(pattern)
        return
    index = parts.index("**")
    inner_pattern = "/".join(parts[index + 1 :]) or "*"
    for top in glob.iglob("/".join(parts[:index]) or "/") if index else [""]:
        for folder in _visible_folders(top, already_read):
            yield from _match_glob(os.path.join(glob.escape(folder), inner_pattern), already_read)


def _visible_folders(top: str, already_read: list[str]) -> Iterator[str]:
    """Yield a folder and its subfolders that are not hidden. Links are followed, and each folder is visited once."""
    visited = {os.path.realpath(top)}
    for folder, subfolders, _ in os.walk(top or ".", followlinks=True):
        yield folder if top else os.path.relpath(folder) if folder != "." else ""
        subfolders[:] = sorted(name for name in subfolders if not name.startswith("."))
        for name in [*subfolders]:
            path = os.path.join(folder, name)
            real = os.path.realpath(path)
            if real in visited:
                subfolders.remove(name)
                already_read.append(path)
            visited.add(real)


def _skip_reason_above(folder: str, root: str) -> str | None:
    """Return the reason to skip the first skipped folder between `root` and `folder`, or None."""
    reason = _skip_reason_above(os.path.dirname(folder), root) if len(folder) > len(root) else None
    return reason or _skip_reason(folder or ".")


def _skip_reason(folder: str) -> str | None:
    """Return the reason why a source's folder is skipped, or None."""
    if is_unfinished(Path(folder)):
        return "unfinished build"
    # Listed only if a manifest exists, because other folders can be large.
    return "corpus" if os.path.exists(os.path.join(folder, MANIFEST)) and is_corpus(os.listdir(folder)) else None


def _walk_folder(root: str) -> Iterator[tuple[str, str, str | None]]:
    """Walk through a local folder: yield path, path relative to the root, and reason to skip it. Links are followed,
    and each folder is visited once."""
    if reason := _skip_reason(root):
        yield root, "", reason
        return
    visited = {os.path.realpath(root)}
    for folder, subfolders, files in os.walk(root, onerror=_raise_unlistable, followlinks=True):
        retained = []
        for name in sorted(subfolders):
            path = os.path.join(folder, name)
            real = os.path.realpath(path)
            if is_hidden(name):
                continue
            if reason := ALREADY_READ if real in visited else _skip_reason(path):
                yield path, Path(path).relative_to(root).as_posix(), reason
            else:
                visited.add(real)
                retained.append(name)
        subfolders[:] = retained
        for name in files:
            path = os.path.join(folder, name)
            if not is_hidden(name):
                yield path, Path(path).relative_to(root).as_posix(), None if _is_file(path) else "not a file"


def _raise_unlistable(error: OSError) -> NoReturn:
    raise UserError(f"folder {error.filename} cannot be listed ({error.strerror}): make it readable, or move it.")


def _is_file(path: str) -> bool:
    """Whether a local path is a file or a broken link. Reading a broken link reports an error, where skipping it would
    not."""
    return os.path.isfile(path) or not os.path.exists(path)


def _stat_file(path: str, name: str) -> FoundFile:
    # Names are written to UTF-8 files, but Linux allows arbitrary bytes in them.
    name = os.fsencode(name).decode("utf-8", "backslashreplace")
    try:
        stat = os.stat(path)
    except OSError:
        return FoundFile(path, name, 0, "")
    return FoundFile(path, name, stat.st_size, str(stat.st_mtime_ns))


def _name_in_glob(match: str, folder: str) -> str:
    """Return the name of a file that matches a glob, starting at the last folder without a wildcard."""
    if not folder and not os.path.isabs(match):
        return match
    return f"{Path(folder or '/').resolve().name}/{os.path.relpath(match, folder or '/')}".lstrip("/")
