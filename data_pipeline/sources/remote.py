"""Remote files of a source, read by fsspec."""

from __future__ import annotations

import glob
import posixpath
from collections.abc import Iterable
from typing import Any, Literal

from data_pipeline.folders import is_corpus
from data_pipeline.sources.listing import FoundFile, Listing, folder_before_wildcards, is_hidden
from data_pipeline.sources.open import file_system, is_chained
from megaptm.errors import UserError
from megaptm.storage.remote import cause_of_not_found


def list_url(url: str) -> Listing | None:
    """List the remote files of a source at a URL. None if nothing has this name."""
    try:
        system, path = file_system(url)
        kind, folder, entries = _locate_source(system, path.rstrip("/"))
    except Exception as error:  # each fsspec file system and its library raise their own exceptions
        cause = cause_of_not_found(error) if isinstance(error, FileNotFoundError) else error
        if isinstance(cause, FileNotFoundError):
            return None
        raise UserError(
            f"source {url} cannot be listed ({cause}): correct the URL, or the endpoint and keys of its server."
        ) from None
    # A member found by `zip://*.txt::s3://bucket/pile.zip` keeps the chain to its archive.
    _, chained, outside = url.partition("::") if is_chained(url) else (url, "", "")
    top = "" if kind == "file" else posixpath.basename(folder) or posixpath.basename(outside)
    listing = Listing(kind, [])
    corpora = _corpus_folders(entries)
    for name, info in entries.items():
        inner_path = name[len(folder) :].lstrip("/")
        if kind == "folder" and any(is_hidden(part) for part in inner_path.split("/")):
            continue
        file_url = system.unstrip_protocol(name) + chained + outside
        if kind != "file" and any(name.startswith(f"{corpus}/") for corpus in corpora):
            listing.skipped.append(("corpus", posixpath.join(top, inner_path)))
        else:
            listing.files.append(
                FoundFile(file_url, posixpath.join(top, inner_path), info.get("size") or 0, _version_tag(info))
            )
    return listing


def _corpus_folders(names: Iterable[str]) -> list[str]:
    """Return the folders at a URL that hold a corpus."""
    folders: dict[str, list[str]] = {}
    for name in names:
        folders.setdefault(posixpath.dirname(name), []).append(posixpath.basename(name))
    return [folder for folder, inside in folders.items() if is_corpus(inside)]


def _locate_source(system: Any, path: str) -> tuple[Literal["file", "folder", "glob"], str, dict[str, dict[str, Any]]]:
    """Locate a source at a URL: return kind, base folder of the names, and name -> info from the server."""
    try:
        info = system.info(path)
    except FileNotFoundError:
        if not glob.has_magic(path):
            raise
        matches = system.glob(path, detail=True)
        return (
            "glob",
            folder_before_wildcards(path),
            {name: entry for name, entry in matches.items() if entry["type"] == "file"},
        )
    if info["type"] == "file":
        return "file", posixpath.dirname(path), {path: info}
    return "folder", path, system.find(path, detail=True)


def _version_tag(info: dict[str, Any]) -> str:
    """Return a value of `info` that changes with the content of a remote file: an ETag, a modification time or a
    checksum."""
    known = (info.get(name) for name in ("ETag", "etag", "mtime", "LastModified", "last_modified", "updated", "CRC"))
    return next((str(value).strip('"') for value in known if value), "")
