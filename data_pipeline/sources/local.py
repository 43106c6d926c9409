"""Files of this machine."""

from __future__ import annotations

import glob
import os
from collections.abc import Iterator
from pathlib import Path
from typing import NoReturn

from data_pipeline.sources.listing import Found, Listing, fixed_folder, is_hidden
from megaptm.errors import UserError


def list_path(path: str) -> Listing | None:
    """None: there is nothing of this name."""
    if os.path.isdir(path):
        return list_folder(path, Path(path).resolve().name)
    if os.path.lexists(path):
        return Listing("file", [_found(path, os.path.basename(path))])
    if glob.has_magic(path):
        matches = (match for match in glob.iglob(path, recursive=True) if _is_file(match))
        return Listing("glob", [_found(match, _name_in_glob(match, fixed_folder(path))) for match in matches])
    return None


def list_folder(root: str, name: str) -> Listing:
    """A local folder's files, without what is hidden and what packages brought along."""
    return Listing("folder", [_found(path, f"{name}/{below}") for path, below in _walk(root)])


def _walk(root: str) -> Iterator[tuple[str, str]]:
    """Paths, and where they are below the root. Links are followed, each folder once."""
    seen = {os.path.realpath(root)}
    for folder, inner, files in os.walk(root, onerror=_refuse, followlinks=True):
        kept = []
        for name in sorted(inner):
            real = os.path.realpath(os.path.join(folder, name))
            if not is_hidden(name) and real not in seen:
                seen.add(real)
                kept.append(name)
        inner[:] = kept
        for name in files:
            path = os.path.join(folder, name)
            if not is_hidden(name) and _is_file(path):
                yield path, Path(path).relative_to(root).as_posix()


def _refuse(error: OSError) -> NoReturn:
    raise UserError(f"folder {error.filename} cannot be listed ({error.strerror}): make it readable, or move it away.")


def _is_file(path: str) -> bool:
    """Also a link that leads nowhere: reading it says so, where leaving it out would not."""
    return os.path.isfile(path) or not os.path.exists(path)


def _found(path: str, name: str) -> Found:
    # A name is written to files that are UTF-8; Linux lets it be any bytes.
    name = os.fsencode(name).decode("utf-8", "backslashreplace")
    try:
        stat = os.stat(path)
    except OSError:
        return Found(path, name, 0, "")
    return Found(path, name, stat.st_size, str(stat.st_mtime_ns))


def _name_in_glob(match: str, folder: str) -> str:
    """From the last folder on whose name has no wildcard."""
    if not folder and not os.path.isabs(match):
        return match
    return f"{Path(folder or '/').resolve().name}/{os.path.relpath(match, folder or '/')}".lstrip("/")
