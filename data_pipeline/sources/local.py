"""Local files."""

from __future__ import annotations

import glob
import os
from collections.abc import Iterator
from pathlib import Path
from typing import NoReturn

from data_pipeline.folders import is_corpus, is_unfinished
from data_pipeline.sources.listing import FoundFile, Listing, fixed_folder, is_hidden
from megaptm.data.manifest import MANIFEST
from megaptm.errors import UserError

TWICE = "folder read already"


def list_path(path: str) -> Listing | None:
    """List a file, a folder or a glob. None if nothing has this name."""
    if os.path.isdir(path):
        return list_folder(path, Path(path).resolve().name)
    if os.path.lexists(path):
        if not _is_file(path):
            raise UserError(f"source {path} is a pipe, a socket or a device: write it to a file, and name that.")
        return Listing("file", [_found(path, os.path.basename(path))])
    if glob.has_magic(path):
        return _list_glob(path, fixed_folder(path))
    return None


def list_folder(root: str, name: str) -> Listing:
    """List the files of a local folder, without hidden files and installed packages."""
    listing = Listing("folder", [])
    for path, below, reason in _walk(root):
        if reason:
            listing.left_out.append((reason, f"{name}/{below}"))
        else:
            listing.files.append(_found(path, f"{name}/{below}"))
    return listing


def _list_glob(pattern: str, root: str) -> Listing:
    listing = Listing("glob", [])
    twice: list[str] = []
    for match in dict.fromkeys(_matches(pattern, twice)):
        name = _name_in_glob(match, root)
        if os.path.isdir(match):
            continue
        if reason := _not_text_above(os.path.dirname(match), root):
            listing.left_out.append((reason, name))
        elif not _is_file(match):
            listing.left_out.append(("not a file", name))
        else:
            listing.files.append(_found(match, name))
    listing.left_out.extend((TWICE, _name_in_glob(folder, root)) for folder in dict.fromkeys(twice))
    return listing


def _matches(pattern: str, twice: list[str]) -> Iterator[str]:
    """Yield the paths that match a glob. Below `**` each folder is searched once; further links to it go to `twice`."""
    parts = pattern.split("/")
    if "**" not in parts:
        yield from glob.iglob(pattern)
        return
    place = parts.index("**")
    behind = "/".join(parts[place + 1 :]) or "*"
    for top in glob.iglob("/".join(parts[:place]) or "/") if place else [""]:
        for folder in _folders(top, twice):
            yield from _matches(os.path.join(glob.escape(folder), behind), twice)


def _folders(top: str, twice: list[str]) -> Iterator[str]:
    """Yield a folder and its subfolders that are not hidden. Links are followed, and each folder is visited once."""
    seen = {os.path.realpath(top)}
    for folder, inner, _ in os.walk(top or ".", followlinks=True):
        yield folder if top else os.path.relpath(folder) if folder != "." else ""
        inner[:] = sorted(name for name in inner if not name.startswith("."))
        for name in [*inner]:
            path = os.path.join(folder, name)
            real = os.path.realpath(path)
            if real in seen:
                inner.remove(name)
                twice.append(path)
            seen.add(real)


def _not_text_above(folder: str, root: str) -> str | None:
    """Return why the first skipped folder between `root` and `folder` is skipped, or None."""
    reason = _not_text_above(os.path.dirname(folder), root) if len(folder) > len(root) else None
    return reason or _not_text(folder or ".")


def _not_text(folder: str) -> str | None:
    """Return why a folder is skipped, or None."""
    if is_unfinished(Path(folder)):
        return "unfinished build"
    # Listed only if a manifest exists, because other folders can be large.
    return "corpus" if os.path.exists(os.path.join(folder, MANIFEST)) and is_corpus(os.listdir(folder)) else None


def _walk(root: str) -> Iterator[tuple[str, str, str | None]]:
    """Yield path, path relative to the root, and reason to skip it. Links are followed, and each folder is visited
    once."""
    if reason := _not_text(root):
        yield root, "", reason
        return
    seen = {os.path.realpath(root)}
    for folder, inner, files in os.walk(root, onerror=_refuse, followlinks=True):
        kept = []
        for name in sorted(inner):
            path = os.path.join(folder, name)
            real = os.path.realpath(path)
            if is_hidden(name):
                continue
            if reason := TWICE if real in seen else _not_text(path):
                yield path, Path(path).relative_to(root).as_posix(), reason
            else:
                seen.add(real)
                kept.append(name)
        inner[:] = kept
        for name in files:
            path = os.path.join(folder, name)
            if not is_hidden(name):
                yield path, Path(path).relative_to(root).as_posix(), None if _is_file(path) else "not a file"


def _refuse(error: OSError) -> NoReturn:
    raise UserError(f"folder {error.filename} cannot be listed ({error.strerror}): make it readable, or move it away.")


def _is_file(path: str) -> bool:
    """Whether a path is a file or a broken link. Reading a broken link reports an error, where skipping it would
    not."""
    return os.path.isfile(path) or not os.path.exists(path)


def _found(path: str, name: str) -> FoundFile:
    # Names are written to UTF-8 files, but Linux allows arbitrary bytes in them.
    name = os.fsencode(name).decode("utf-8", "backslashreplace")
    try:
        stat = os.stat(path)
    except OSError:
        return FoundFile(path, name, 0, "")
    return FoundFile(path, name, stat.st_size, str(stat.st_mtime_ns))


def _name_in_glob(match: str, folder: str) -> str:
    """Return the name of a match, starting at the last folder without a wildcard."""
    if not folder and not os.path.isabs(match):
        return match
    return f"{Path(folder or '/').resolve().name}/{os.path.relpath(match, folder or '/')}".lstrip("/")
