"""Mutations of the file with URLs of a corpus's shards."""

from __future__ import annotations

import hashlib
import json
import shutil
from pathlib import Path
from typing import Any

from megaptm.data.manifest import MANIFEST
from megaptm.data.shard_urls import shard_urls_name, write_shard_urls
from megaptm.data.table import ShardTable, table_name
from tests.fuzz.mutations import Random, change_bytes, change_tree
from tests.fuzz.rehash import rehash_manifest
from tests.fuzz.target import Command

SPLITS = ("train", "validation")
LOCAL_FILE_SYSTEMS = ("LocalFileSystem", "MemoryFileSystem", "DataFileSystem", "DirFileSystem", "ArchiveFileSystem")
"""File systems of fsspec that no corpus may name: a foreign corpus would show local files of its user."""


def write_remote_corpus(corpus: Path, folder: Path) -> None:
    """Write a corpus without its shards, whose manifest gives URLs for them."""
    shutil.copytree(corpus, folder)
    manifest = json.loads((folder / MANIFEST).read_text())
    manifest["addresses"] = {}
    for split in SPLITS:
        shards = [info.name for info in ShardTable(folder / table_name(split), split)]
        urls = [f"s3://bucket/laion/{name}" for name in shards]
        manifest["addresses"][split] = write_shard_urls(folder, split, urls)
        for name in shards:
            (folder / name).unlink()
    rehash_manifest(folder / MANIFEST, manifest)


def mutate_addresses(folder: Path, rng: Random) -> bool:
    """Change a line, the number of lines, or bytes. In most cases the manifest's hash is updated."""
    split = rng.choice(SPLITS)
    path = folder / shard_urls_name(split)
    way, lines = rng.random(), path.read_text().splitlines()
    if way < 0.3:
        path.write_bytes(change_bytes(path.read_bytes(), rng))
    elif way < 0.5:
        url = json.loads(rng.choice(lines))
        lines[0] = json.dumps(rng.choice(_urls(url, folder)))
        path.write_text("\n".join(lines) + "\n")
    elif way < 0.6:
        path.write_text("\n".join(rng.choice([lines[1:], lines * 2, lines * 200_000])))
    else:
        changed = change_tree([json.loads(line) for line in lines], rng)
        path.write_text(
            "".join(json.dumps(value) + "\n" for value in (changed if isinstance(changed, list) else [changed]))
        )
    manifest = json.loads((folder / MANIFEST).read_text())
    if rng.random() < 0.1:
        manifest["addresses"] = change_tree(manifest["addresses"], rng)
    elif rehashed := rng.random() < 0.8:
        manifest["addresses"][split] = hashlib.sha256(path.read_bytes()).hexdigest()
    else:
        return not rehashed
    rehash_manifest(folder / MANIFEST, manifest)
    return False


def _urls(url: str, folder: Path) -> list[str]:
    """Return URLs of local files with all protocols, and URLs that no shard has."""
    here = f"{folder}/manifest.json"
    local = [
        f"{protocol}://{here}"
        for protocol in ("file", "local", "dir", "FILE", "memory", "zip", "tar", "reference", "git")
    ]
    chains = [f"simplecache::file://{here}", f"zip://x::file://{here}", f"blockcache::{url}", f"{url}::file://{here}"]
    odd = [here, "s3://", "s3:///", "s3:bucket", "://x", "s3://key:secret@b/x", f"{url}\n", f" {url}", f"\ufeff{url}"]
    return [*local, *chains, *odd, url + "/" + "x" * 5000, url.replace("s3", "s" * 300), "s3://\ud800/x", "data:,x"]


def read_addresses(folder: Path) -> Any:
    """Return the URL of each shard; check that none is a local file."""
    from megaptm.data.shards import Corpus
    from megaptm.storage import RemoteFileCache

    corpus = Corpus.open(folder, RemoteFileCache(folder / "cache"))
    urls = [
        corpus.url_of(info.name) for split in SPLITS for info in ShardTable(corpus.folder / table_name(split), split)
    ]
    known_urls = corpus.mirror.addresses.values() if corpus.mirror else ()
    assert not [url for url in known_urls if _is_local(url)]
    return urls


def _is_local(url: str) -> bool:
    """Whether the file system of a URL reads local files."""
    import fsspec

    if "::" in url or "://" not in url:
        return True
    try:
        kind = fsspec.get_filesystem_class(url.partition("://")[0])
    except (ImportError, ValueError):  # library not installed, or unknown protocol
        return False
    return any(base.__name__ in LOCAL_FILE_SYSTEMS or base.__name__.startswith("Caching") for base in kind.__mro__)


def addresses_commands(folder: Path) -> list[Command]:
    config = str(folder.parent / "materials/config-images/clip.yaml")
    overrides = [f"data.mix={{{folder}: 1}}", f"data.cache_dir={folder / 'cache'}", f"run={folder / 'run'}"]
    return [["train", config, *overrides, "train.batch=1048576"]]
