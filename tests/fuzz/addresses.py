"""The file of a corpus that says where its shards lie, when that is elsewhere."""

from __future__ import annotations

import hashlib
import json
import shutil
from pathlib import Path
from typing import Any

from megaptm.data.addresses import addresses_name, write_addresses
from megaptm.data.manifest import MANIFEST
from megaptm.data.table import ShardTable, table_name
from tests.fuzz.mutations import Random, change_bytes, change_tree
from tests.fuzz.seals import seal_manifest
from tests.fuzz.target import Command

SPLITS = ("train", "validation")
OF_THIS_MACHINE = ("LocalFileSystem", "MemoryFileSystem", "DataFileSystem", "DirFileSystem", "ArchiveFileSystem")
"""File systems of fsspec that no corpus may name: by them a stranger's corpus would show files of who reads it."""


def write_corpus_elsewhere(corpus: Path, folder: Path) -> None:
    """A corpus without its shards, which it says are at a URL."""
    shutil.copytree(corpus, folder)
    manifest = json.loads((folder / MANIFEST).read_text())
    manifest["addresses"] = {}
    for split in SPLITS:
        shards = [info.name for info in ShardTable(folder / table_name(split), split)]
        urls = [f"s3://bucket/laion/{name}" for name in shards]
        manifest["addresses"][split] = write_addresses(folder, split, urls)
        for name in shards:
            (folder / name).unlink()
    seal_manifest(folder / MANIFEST, manifest)


def spoil_addresses(folder: Path, draw: Random) -> bool:
    """A line, how many there are, or the bytes; the manifest's hash is right again, mostly."""
    split = draw.choice(SPLITS)
    path = folder / addresses_name(split)
    way, lines = draw.random(), path.read_text().splitlines()
    if way < 0.3:
        path.write_bytes(change_bytes(path.read_bytes(), draw))
    elif way < 0.5:
        url = json.loads(draw.choice(lines))
        lines[0] = json.dumps(draw.choice(_urls(url, folder)))
        path.write_text("\n".join(lines) + "\n")
    elif way < 0.6:
        path.write_text("\n".join(draw.choice([lines[1:], lines * 2, lines * 200_000])))
    else:
        changed = change_tree([json.loads(line) for line in lines], draw)
        path.write_text(
            "".join(json.dumps(one) + "\n" for one in (changed if isinstance(changed, list) else [changed]))
        )
    manifest = json.loads((folder / MANIFEST).read_text())
    if draw.random() < 0.1:
        manifest["addresses"] = change_tree(manifest["addresses"], draw)
    elif sealed := draw.random() < 0.8:
        manifest["addresses"][split] = hashlib.sha256(path.read_bytes()).hexdigest()
    else:
        return not sealed
    seal_manifest(folder / MANIFEST, manifest)
    return False


def _urls(url: str, folder: Path) -> list[str]:
    """Of files of this machine, by whatever protocol; and others that no shard has."""
    here = f"{folder}/manifest.json"
    shown = [f"{one}://{here}" for one in ("file", "local", "dir", "FILE", "memory", "zip", "tar", "reference", "git")]
    chains = [f"simplecache::file://{here}", f"zip://x::file://{here}", f"blockcache::{url}", f"{url}::file://{here}"]
    odd = [here, "s3://", "s3:///", "s3:bucket", "://x", "s3://key:secret@b/x", f"{url}\n", f" {url}", f"\ufeff{url}"]
    return [*shown, *chains, *odd, url + "/" + "x" * 5000, url.replace("s3", "s" * 300), "s3://\ud800/x", "data:,x"]


def read_addresses(folder: Path) -> Any:
    """Where each shard is; what is said of that is never a file of this machine."""
    from megaptm.data.shards import Corpus
    from megaptm.storage import Cache

    corpus = Corpus.open(folder, Cache(folder / "cache"))
    found = [
        corpus.url_of(info.name) for split in SPLITS for info in ShardTable(corpus.folder / table_name(split), split)
    ]
    said = corpus.mirror.addresses.values() if corpus.mirror else ()
    assert not [url for url in said if _shows_this_machine(url)]
    return found


def _shows_this_machine(url: str) -> bool:
    """By who opens it."""
    import fsspec

    if "::" in url or "://" not in url:
        return True
    try:
        kind = fsspec.get_filesystem_class(url.partition("://")[0])
    except (ImportError, ValueError):  # a library that is not here, or none that anybody knows
        return False
    return any(base.__name__ in OF_THIS_MACHINE or base.__name__.startswith("Caching") for base in kind.__mro__)


def addresses_commands(folder: Path) -> list[Command]:
    config = str(folder.parent / "materials/config-images/clip.yaml")
    told = [f"data.mix={{{folder}: 1}}", f"data.cache_dir={folder / 'cache'}", f"run={folder / 'run'}"]
    return [["train", config, *told, "train.batch=1048576"]]
